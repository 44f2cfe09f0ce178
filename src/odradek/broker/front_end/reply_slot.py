"""The place of replies in the order of a connection's replies."""

from __future__ import annotations

from collections.abc import Sequence

from odradek.wire.chunks import Chunk


class ReplySlot:
    """The place of one or several replies. ``chunks`` is ``None`` until they are ready."""

    __slots__ = ("chunks", "request_bytes", "requests")

    def __init__(self, request_bytes: int, requests: int = 1) -> None:
        self.chunks: Sequence[Chunk] | None = None
        self.request_bytes = request_bytes
        self.requests = requests
