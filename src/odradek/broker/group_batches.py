"""The records of the groups as batches of ``__consumer_offsets``: how much they take, and all of a tick as one."""

from __future__ import annotations

from itertools import chain

from odradek.batches.encode import encode_batch, pack_record, seal_batch
from odradek.core.effects import Block, Record

MAX_RECORD_OVERHEAD_BYTES = 32  # length, attributes, deltas and the two lengths of a record, as varints


def most_bytes(record: Record | Block) -> int:
    """What it takes in a batch at most."""
    if isinstance(record, Record):
        return len(record.key) + (0 if record.value is None else len(record.value)) + MAX_RECORD_OVERHEAD_BYTES
    return record.most_bytes


def batch_of(items: list[Record | Block], now_ms: int) -> bytes:
    """All of them as one batch, in order."""
    blocks = [item for item in items if not isinstance(item, Record)]
    records = [item for item in items if isinstance(item, Record)]
    if not blocks:
        return encode_batch(records, now_ms=now_ms)
    if any(record.timestamp_ms is not None for record in records):
        every = [[item] if isinstance(item, Record) else item.records() for item in items]
        return encode_batch(chain.from_iterable(every), now_ms=now_ms)
    packed: list[bytes] = []
    count = 0
    for item in items:
        if isinstance(item, Record):
            packed += pack_record(item, count)
            count += 1
        else:
            packed += item.pack(count)
            count += item.count
    return seal_batch(packed, count, now_ms=now_ms)
