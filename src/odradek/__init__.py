"""Odradek: Kafka's consumer-offset system in Python."""

from typing import TYPE_CHECKING

from odradek._version import __version__

if TYPE_CHECKING:
    from odradek.testing.broker import Broker

__all__ = ["Broker", "__version__"]


def __getattr__(name: str) -> object:
    # The broker is loaded when somebody wants one.
    if name == "Broker":
        from odradek.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
