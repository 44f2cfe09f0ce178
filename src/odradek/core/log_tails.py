"""The evidence that a log is still the one that was read: the last record batch of a range."""

from __future__ import annotations

from typing import NamedTuple


class LogTail(NamedTuple):
    """The last record batch of a range of a partition. ``end``: the end offset of the range. ``base``, ``crc``: the
    batch's base offset and CRC32-C.

    A log has one batch at an offset, for ever, unless compaction rewrites it. If a batch with another base or CRC is in
    its place, other records stand at these offsets: the log was put back from an older copy and has grown again, or it
    was truncated.
    """

    end: int
    base: int
    crc: int


__all__ = ["LogTail"]
