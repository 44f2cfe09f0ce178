"""The client for asyncio: the calls of ``odradek.Consumer``, ``odradek.Producer`` and ``odradek.Admin``, awaited, on
the loop they are made on."""

from odradek.aio.admin import Admin
from odradek.aio.consumer import Consumer
from odradek.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
