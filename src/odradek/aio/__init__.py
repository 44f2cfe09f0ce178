"""The asyncio client: the calls of ``odradek.Consumer``, ``odradek.Producer`` and ``odradek.Admin`` as coroutines."""

from odradek.aio.admin import Admin
from odradek.aio.consumer import Consumer
from odradek.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
