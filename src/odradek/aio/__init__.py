"""The client for asyncio: the same calls as ``odradek.Consumer``, awaited, on the loop they are made on."""

from odradek.aio.consumer import Consumer

__all__ = ["Consumer"]
