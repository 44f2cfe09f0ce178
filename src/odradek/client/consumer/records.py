"""The result of a poll: columns by partition, or records one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from odradek.batches.columns import DEFAULT_COLUMNS
from odradek.core.ids import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


class Record(NamedTuple):
    """One record. ``timestamp_ms`` is in ms since 1970; ``timestamp_type`` is 0 (CreateTime) or 1 (LogAppendTime)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        """The record's partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def next_offset(self) -> int:
        """The offset to commit after this record: its offset + 1, since a commit of its offset would read it again."""
        return self.offset + 1

    @property
    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """``next_offset`` in the form for ``commit``."""
        return {self.topic_partition: OffsetAndMetadata(self.next_offset)}


class Polled(dict[TopicPartition, "list[pa.RecordBatch]"]):
    """RecordBatches by partition, in the order of their offsets. Empty, and therefore false, without records."""

    def __init__(self, columns: tuple[str, ...] = DEFAULT_COLUMNS) -> None:
        super().__init__()
        self.columns = columns
        """The requested columns, which ``table`` has even without records."""
        self.next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """The offsets to commit after all these records."""

    @property
    def num_rows(self) -> int:
        """The number of records of all partitions."""
        return sum(batch.num_rows for batches in self.values() for batch in batches)

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """All RecordBatches, partition by partition."""
        for batches in self.values():
            yield from batches

    def table(self) -> pa.Table:
        """All records as one table, which is empty without records."""
        import pyarrow as pa

        from odradek.batches.arrow import schema

        return pa.Table.from_batches(list(self.record_batches()), None if self else schema(self.columns))

    def records(self) -> Iterator[Record]:
        """All records one by one, partition by partition."""
        for tp, batches in self.items():
            yield from records_of(tp, batches)


def records_of(tp: TopicPartition, batches: list[pa.RecordBatch]) -> Iterator[Record]:
    for batch in batches:
        yield from rows_of(tp, batch)


def rows_of(tp: TopicPartition, batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of one partition's RecordBatch; columns that were not requested are empty."""
    import pyarrow as pa

    found = {name: batch.column(name) for name in batch.schema.names}
    count = batch.num_rows
    nothing = [None] * count
    times = found["timestamp"].cast(pa.int64()).to_pylist() if "timestamp" in found else [-1000] * count
    kinds = found["timestampType"].to_pylist() if "timestampType" in found else [0] * count
    keys = found["key"].to_pylist() if "key" in found else nothing
    values = found["value"].to_pylist() if "value" in found else nothing
    headers = found["headers"].to_pylist() if "headers" in found else nothing
    offsets = found["offset"].to_pylist()
    for offset, time, kind, key, value, pairs in zip(offsets, times, kinds, keys, values, headers, strict=True):
        row = tuple((pair["key"], pair["value"]) for pair in pairs or ())
        yield Record(tp.topic, tp.partition, offset, time // 1000, kind, key, value, row)
