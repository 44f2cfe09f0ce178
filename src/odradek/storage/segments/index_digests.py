"""The digests of a log's files, at the end of a snapshot of the log's producers.

Kafka's format of the indexes of aborted transactions has no checksum. With the digests, a start finds out that an index
is lost, damaged or an older copy. The snapshot of a clean stop also has the size and the end of each segment: a
compacted log has gaps between its segments, so a lost end of a segment or an older copy looks like a cleaned one.
Kafka's reader of snapshots ignores bytes after the producers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

_DIGESTS_MAGIC = b"odt1"
_SEGMENTS_MAGIC = b"ods1"
_DIGEST = struct.Struct(">qiI")
_SEGMENT = struct.Struct(">qqq")
_COUNT = struct.Struct(">i4s")


class IndexDigest(NamedTuple):
    """The size in entries and the CRC of the index of aborted transactions of the segment at ``base_offset``."""

    base_offset: int
    entries: int
    crc: int


class SegmentDigest(NamedTuple):
    """The size of a segment file in bytes, and the offset after its last record."""

    base_offset: int
    size: int
    end_offset: int


class LogDigest(NamedTuple):
    """``segments`` is empty in a snapshot that was not written at a clean stop."""

    indexes: Sequence[IndexDigest] = ()
    segments: Sequence[SegmentDigest] = ()


NO_DIGEST = LogDigest()


def encode_digests(digest: LogDigest) -> bytes:
    """Encodes a digest for the end of a snapshot."""
    return _encoded(_SEGMENT, digest.segments, _SEGMENTS_MAGIC) + _encoded(_DIGEST, digest.indexes, _DIGESTS_MAGIC)


def _encoded(one: struct.Struct, rows: Sequence[tuple[int, ...]], magic: bytes) -> bytes:
    return b"".join(one.pack(*row) for row in rows) + _COUNT.pack(len(rows), magic) if rows else b""


def decode_digests(data: bytes) -> LogDigest:
    """Returns the digest at the end of a valid snapshot."""
    end, indexes = _decoded(data, len(data), _DIGEST, _DIGESTS_MAGIC)
    _, segments = _decoded(data, end, _SEGMENT, _SEGMENTS_MAGIC)
    return LogDigest([IndexDigest(*row) for row in indexes], [SegmentDigest(*row) for row in segments])


def _decoded(data: bytes, end: int, one: struct.Struct, magic: bytes) -> tuple[int, list[tuple[int, ...]]]:
    """Returns the rows that end at ``end`` with their start; no rows if other bytes are there."""
    if data[max(end - len(magic), 0) : end] != magic:
        return end, []
    rows_end = end - _COUNT.size
    start = rows_end - _COUNT.unpack_from(data, rows_end)[0] * one.size
    return (start, list(one.iter_unpack(data[start:rows_end]))) if 0 < start < rows_end else (end, [])
