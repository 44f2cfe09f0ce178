"""Tombstones of deleted groups and their offsets as one block.

A deleted group can have tens of thousands of offsets. Their tombstones are in one batch, which is written in one piece.
So ``add_offsets`` packs a few tombstones at a time before the write, and the broker serves other requests between the
calls.
"""

from __future__ import annotations

from collections.abc import Sequence

from odradek.codecs.offsets_topic import group_key, offset_key_prefix
from odradek.core.effects import SimpleRecord
from odradek.core.varints import uvarint
from odradek.groups.offsets.commit_plan import DELTA_BYTES, DELTA_STEPS, offset_deltas

_NO_VALUE_NO_HEADERS = b"\1\0"
_FIXED_BYTES = 2  # the part of a record before its offset delta: attributes and timestamp delta
_PARTITION_BYTES = 4

Row = tuple[str, str | None, Sequence[int]]
"""Group id, topic, partitions. A row without a topic is the tombstone of a classic group."""


class Tombstones:
    """Tombstones of offsets and of classic groups in the order of their addition; a ``core.effects.Block``."""

    __slots__ = ("_middles", "most_bytes", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._middles: list[bytes] = []  # the bytes of each record after its offset delta
        self.most_bytes = 0

    @property
    def count(self) -> int:
        return len(self._middles)

    def add_offsets(self, group_id: str, topic: str, partitions: Sequence[int]) -> None:
        prefix = offset_key_prefix(group_id, topic)
        size = len(prefix) + _PARTITION_BYTES
        head = uvarint(size << 1) + prefix
        self._middles += [
            head + partition.to_bytes(_PARTITION_BYTES, "big", signed=True) + _NO_VALUE_NO_HEADERS
            for partition in partitions
        ]
        self.rows.append((group_id, topic, partitions))
        self.most_bytes += len(partitions) * _most_bytes(len(head) + _PARTITION_BYTES)
        offset_deltas(self.count, self.count)  # extends the cache of deltas here and not in the write of the batch

    def add_group(self, group_id: str) -> None:
        key = group_key(group_id)
        head = uvarint(len(key) << 1) + key
        self._middles.append(head + _NO_VALUE_NO_HEADERS)
        self.rows.append((group_id, None, ()))
        self.most_bytes += _most_bytes(len(head))

    def records(self) -> list[SimpleRecord]:
        made: list[SimpleRecord] = []
        for group_id, topic, partitions in self.rows:
            if topic is None:
                made.append(SimpleRecord(group_key(group_id), None))
            else:
                prefix = offset_key_prefix(group_id, topic)
                made += [
                    SimpleRecord(prefix + partition.to_bytes(_PARTITION_BYTES, "big", signed=True), None)
                    for partition in partitions
                ]
        return made

    def pack(self, first: int) -> list[bytes]:
        middles, count = self._middles, len(self._middles)
        end = first + count
        sizes = set(map(len, middles))
        parts: list[bytes] = [b""] * (3 * count)
        at = first
        for size, step in enumerate((*DELTA_STEPS, end), 1):
            until = min(step, end)
            if at < until:
                heads = {rest: uvarint((_FIXED_BYTES + size + rest) << 1) + b"\0\0" for rest in sizes}
                some = map(len, middles[at - first : until - first])
                parts[3 * (at - first) : 3 * (until - first) : 3] = map(heads.__getitem__, some)
                at = until
        parts[1::3] = offset_deltas(first, end)
        parts[2::3] = middles
        return parts


def _most_bytes(head_bytes: int) -> int:
    """Returns the largest size of a record. ``head_bytes`` is the size of its key and of the key's length field."""
    return _FIXED_BYTES + DELTA_BYTES + head_bytes + len(_NO_VALUE_NO_HEADERS)
