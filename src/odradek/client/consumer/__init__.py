"""``Consumer``: its calls, fetches and the results of polls."""

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.client.consumer.consumer import Consumer

__all__ = ["Consumer"]

_HOMES = {"Consumer": "odradek.client.consumer.consumer"}
__getattr__ = loader(__name__, _HOMES)
