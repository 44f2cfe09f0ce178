"""The exchange of one batch with a broker: the request, and its reply without an error, packed and read by hand."""

from __future__ import annotations

import struct

from odradek.core.ids import TopicPartition
from odradek.core.varints import uvarint

FLEXIBLE_FROM = 9
_HEAD = struct.Struct(">hhih").pack
_REQUEST = struct.Struct(">hi").pack  # acks, timeout
_OFFSETS = struct.Struct(">qqq")  # base offset, time of the append, log start offset
_API_KEY = 0
_REPLY_END = b"\1\0\0\0" + bytes(4) + b"\0"
"""No record errors, no message, no tagged fields twice, no throttle time, no tagged fields."""


class SingleBatch:
    """The messages of version 9 to 12 for one batch of one partition, without a transaction."""

    __slots__ = ("_after", "_before", "_reply_begin", "_reply_bytes")

    def __init__(self, version: int, client_id: str, limits: tuple[int, int], tp: TopicPartition) -> None:
        """``limits``: acks, and the timeout in ms."""
        topic, partition = tp
        name, client = topic.encode(), client_id.encode()
        length, index = uvarint(len(name) + 1), partition.to_bytes(4, "big")
        self._before = _HEAD(_API_KEY, version, 0, len(client))[:4]
        head = len(client).to_bytes(2, "big") + client + b"\0"
        self._after = head + b"\0" + _REQUEST(*limits) + b"\2" + length + name + b"\2" + index
        self._reply_begin = b"\0\2" + length + name + b"\2" + index + b"\0\0"
        self._reply_bytes = 4 + len(self._reply_begin) + _OFFSETS.size + len(_REPLY_END)

    def pack(self, correlation_id: int, records: bytes) -> bytes:
        """Returns the request with its length prefix."""
        parts = (
            self._before, correlation_id.to_bytes(4, "big"), self._after, uvarint(len(records) + 1), records, b"\0\0\0",
        )  # fmt: skip
        return b"".join((sum(map(len, parts)).to_bytes(4, "big"), *parts))

    def base_offset(self, reply: memoryview) -> int | None:
        """Returns the base offset in a reply, correlation id first; None for any reply that has more to say."""
        begin = self._reply_begin
        if len(reply) != self._reply_bytes or reply[4 : 4 + len(begin)] != begin:
            return None
        if reply[-len(_REPLY_END) :] != _REPLY_END:
            return None
        return int(_OFFSETS.unpack_from(reply, 4 + len(begin))[0])
