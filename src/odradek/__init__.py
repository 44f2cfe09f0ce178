"""Odradek: Kafka's consumer-offset system in Python."""

from importlib import import_module
from typing import TYPE_CHECKING

from odradek._version import __version__

if TYPE_CHECKING:
    from odradek.client.admin import Admin
    from odradek.client.consumer import Consumer
    from odradek.client.producer import Producer
    from odradek.core.ids import OffsetAndMetadata, TopicPartition
    from odradek.testing.broker import Broker

__all__ = ["Admin", "Broker", "Consumer", "OffsetAndMetadata", "Producer", "TopicPartition", "__version__"]

# Loaded when somebody wants one.
_HOMES = {
    "Admin": "odradek.client.admin",
    "Broker": "odradek.testing.broker",
    "Consumer": "odradek.client.consumer",
    "OffsetAndMetadata": "odradek.core.ids",
    "Producer": "odradek.client.producer",
    "TopicPartition": "odradek.core.ids",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
