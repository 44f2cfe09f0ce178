"""Fetch requests, and their replies read in place: the records stay a view of what the socket received.

What versions changed in the reply: 5 log start offset, 7 session and top-level error, 11 preferred read replica,
12 compact lengths and tagged fields (0: diverging epoch, 1: current leader), 13 topic ids for names.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from uuid import UUID

from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition

FETCH = 1
IDS_FROM = 13

_EMPTY = memoryview(b"")


class FetchedPartition(NamedTuple):
    """One partition's part of a reply. ``aborted`` holds (producer id, first offset); None under read_uncommitted.

    ``diverging_epoch`` is (epoch, end offset) where the leader says that our history is not its own.
    """

    topic: str | UUID
    partition: int
    error_code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...] | None
    preferred_read_replica: int
    records: memoryview
    diverging_epoch: tuple[int, int] | None = None


class FetchReply(NamedTuple):
    """``throttle_ms`` above 0: the broker held the reply back, or left data out, because of a quota."""

    throttle_ms: int
    error_code: ErrorCode
    session_id: int
    partitions: tuple[FetchedPartition, ...]


def request(
    partition: TopicPartition,
    topic_id: UUID | None,
    offset: int,
    *,
    leader_epoch: int,
    max_bytes: int,
    min_bytes: int,
    max_wait_ms: int,
    isolation_level: int,
    rack: str = "",
) -> dict[str, Any]:
    """A request for one partition outside of any fetch session, for every version."""
    row = {
        "partition": partition.partition,
        "current_leader_epoch": leader_epoch,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": max_bytes,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation_level,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": partition.topic, "topic_id": topic_id, "partitions": [row]}],
        "forgotten_topics_data": [],
        "rack_id": rack,
    }


class _Cursor:
    """Reads a reply from front to back. Raises ValueError where it is too short."""

    __slots__ = ("at", "data", "flexible")

    def __init__(self, data: memoryview, flexible: bool) -> None:
        self.data, self.at, self.flexible = data, 0, flexible

    def unpack(self, shape: struct.Struct) -> tuple[Any, ...]:
        try:
            values = shape.unpack_from(self.data, self.at)
        except struct.error as error:
            raise ValueError(f"fetch reply ends early: {error}") from error
        self.at += shape.size
        return values

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self.data) or shift > 28:
                raise ValueError("fetch reply: malformed length")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def length(self, legacy: struct.Struct) -> int:
        """-1 for null."""
        return self.uvarint() - 1 if self.flexible else int(self.unpack(legacy)[0])

    def take(self, size: int) -> memoryview:
        if size < 0 or size > len(self.data) - self.at:
            raise ValueError("fetch reply: a field runs past its end")
        view = self.data[self.at : self.at + size]
        self.at += size
        return view

    def tags(self) -> dict[int, memoryview]:
        if not self.flexible:
            return {}
        return {self.uvarint(): self.take(self.uvarint()) for _ in range(self.uvarint())}

    def count(self, smallest: int) -> int:
        """An array's length; refuses one that the rest of the reply cannot hold."""
        count = self.length(_INT32)
        if count > (len(self.data) - self.at) // smallest:
            raise ValueError(f"fetch reply: {count} elements cannot fit")
        return max(count, 0) if count >= -1 else -1


_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_TOP = struct.Struct(">ihi")
_PARTITION = struct.Struct(">ihqqq")
_PARTITION_V4 = struct.Struct(">ihqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")


def parse_reply(version: int, data: memoryview) -> FetchReply:
    """Reads a reply, correlation id first, of any version from 4 on. Raises ValueError."""
    cursor = _Cursor(data, version >= 12)
    cursor.take(4)
    cursor.tags()
    if version >= 7:
        throttle_ms, code, session_id = cursor.unpack(_TOP)
    else:
        ((throttle_ms,), code, session_id) = cursor.unpack(_INT32), 0, 0
    partitions: list[FetchedPartition] = []
    for _ in range(cursor.count(4)):
        topic = _topic(cursor, version)
        partitions += [_partition(cursor, version, topic) for _ in range(cursor.count(20))]
        cursor.tags()
    return FetchReply(throttle_ms, _error_code(code), session_id, tuple(partitions))


def _error_code(code: int) -> ErrorCode:
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error  # of a broker newer than our list


def _topic(cursor: _Cursor, version: int) -> str | UUID:
    if version >= IDS_FROM:
        return UUID(bytes=bytes(cursor.take(16)))
    return bytes(cursor.take(cursor.length(_INT16))).decode()


def _partition(cursor: _Cursor, version: int, topic: str | UUID) -> FetchedPartition:
    if version >= 5:
        index, code, high_watermark, last_stable, log_start = cursor.unpack(_PARTITION)
    else:
        index, code, high_watermark, last_stable = cursor.unpack(_PARTITION_V4)
        log_start = -1
    aborted = None
    if (count := cursor.length(_INT32)) >= 0:
        if count > (len(cursor.data) - cursor.at) // 16:
            raise ValueError(f"fetch reply: {count} aborted transactions cannot fit")
        rows = []
        for _ in range(count):
            rows.append(cursor.unpack(_ABORTED))
            cursor.tags()
        aborted = tuple((int(producer), int(first)) for producer, first in rows)
    preferred = int(cursor.unpack(_INT32)[0]) if version >= 11 else -1
    size = cursor.length(_INT32)
    records = cursor.take(size) if size > 0 else _EMPTY
    diverging = None
    if (tag := cursor.tags().get(0)) is not None and len(tag) >= _DIVERGING.size:
        epoch, end = _DIVERGING.unpack_from(tag)
        diverging = (epoch, end) if epoch >= 0 or end >= 0 else None
    return FetchedPartition(
        topic, index, _error_code(code), high_watermark, last_stable, log_start, aborted, preferred, records, diverging
    )
