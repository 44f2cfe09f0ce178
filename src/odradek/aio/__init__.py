"""The client for asyncio: the calls of ``odradek.Consumer`` and ``odradek.Producer``, awaited, on the loop they are
made on."""

from odradek.aio.consumer import Consumer
from odradek.aio.producer import Producer

__all__ = ["Consumer", "Producer"]
