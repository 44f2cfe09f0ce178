"""The interface to the log of a shard, and the batch of one tick's records."""

from __future__ import annotations

from itertools import chain
from typing import Protocol

from odradek.batches.encode import encode_batch, pack_record, seal_batch
from odradek.core.effects import LogEntry, SimpleRecord
from odradek.core.ids import EndTransactionMarker


class AppendResult(Protocol):
    """The result of an append: the offset of the first appended record."""

    @property
    def base_offset(self) -> int: ...


class ShardLog(Protocol):
    """The methods of a partition of an internal topic that the runtime uses.

    Every method may raise KafkaError or StorageError.
    """

    @property
    def max_message_bytes(self) -> int:
        """The topic's ``max.message.bytes``. No batch for ``append`` is longer."""

    @property
    def is_held(self) -> bool:
        """Whether an append leaves the high watermark where it is: other replicas have to get the records first."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def append(self, data: bytes) -> AppendResult:
        """Stores one batch as leader. Raises KafkaError or StorageError if it was not stored."""

    def append_marker(self, marker: EndTransactionMarker) -> AppendResult:
        """Writes the control batch that ends a producer's transaction. Raises KafkaError if it was not written."""

    def read_bytes(self, offset: int, max_bytes: int) -> bytes:
        """Returns whole batches from the batch with ``offset`` on, at least one; no bytes at the end of the log."""


def batch_of(items: list[LogEntry], now_ms: int) -> bytes:
    """Returns one batch of all items, in order."""
    if len(items) == 1 and not isinstance(items[0], SimpleRecord):
        return seal_batch(items[0].pack(0), items[0].count, now_ms=now_ms)
    blocks = [item for item in items if not isinstance(item, SimpleRecord)]
    records = [item for item in items if isinstance(item, SimpleRecord)]
    if not blocks:
        return encode_batch(records, now_ms=now_ms)
    if any(record.timestamp_ms is not None for record in records):
        every = [[item] if isinstance(item, SimpleRecord) else item.records() for item in items]
        return encode_batch(chain.from_iterable(every), now_ms=now_ms)
    packed: list[bytes] = []
    count = 0
    for item in items:
        if isinstance(item, SimpleRecord):
            packed += pack_record(item, count)
            count += 1
        else:
            packed += item.pack(count)
            count += item.count
    return seal_batch(packed, count, now_ms=now_ms)
