"""The result of a poll: columns by partition, or records one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from odradek.batches.columns import DEFAULT_COLUMNS
from odradek.batches.row_sets import RowBatch, needs_columns
from odradek.client.other_names import OtherNames, missing_text
from odradek.core.errors import ConfigError
from odradek.core.ids import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


_LISTED = 5
_HTML_ROWS = 10


class _Unread(tuple[tuple[str, "bytes | None"], ...]):
    """The headers of a record that was read without them: an empty tuple would say that it has none."""

    __slots__ = ()

    def _refuse(self, *_: object) -> NoReturn:
        raise ConfigError("headers were not read: add headers to the consumer's setting columns, or iterate over it")

    __iter__ = __len__ = __bool__ = __getitem__ = __contains__ = __add__ = __mul__ = __reversed__ = _refuse
    index = count = _refuse

    def __repr__(self) -> str:
        return "<not read>"

    def __reduce__(self) -> str:
        return "UNREAD_HEADERS"


UNREAD_HEADERS = _Unread()


class Record(NamedTuple):
    """One record. ``timestamp_ms`` is in ms since 1970; ``timestamp_type`` is 0 (CreateTime) or 1 (LogAppendTime).

    ``headers`` are read if the consumer's setting ``columns`` has ``headers``, and by an iteration over the consumer.
    Otherwise each use of them raises ConfigError, which names the setting.
    """

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
        """The offset to commit after this record: its offset + 1. A commit of its own offset means a second read."""
        return self.offset + 1

    @property
    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """``next_offset`` in the form for ``commit``."""
        return {self.topic_partition: OffsetAndMetadata(self.next_offset)}


if not TYPE_CHECKING:  # a type checker would accept every attribute

    def _missing(self: Record, name: str) -> object:
        raise AttributeError(missing_text("Record", name), name=name, obj=self)

    Record.__getattr__ = _missing


class Polled(OtherNames, dict[TopicPartition, "list[pa.RecordBatch]"]):
    """RecordBatches by partition, in the order of their offsets. Empty, and therefore false, without records.

    Without the packages of the extra ``arrow`` the values are ``RowBatch``es: ``records`` works, and the methods that
    return columns raise ColumnsMissing. Records with a timestamp outside of the years -290308 to 294247 are
    ``RowBatch``es, too: then these methods raise TimeOutOfRange, and ``records`` has the exact time.
    """

    def __init__(self, columns: tuple[str, ...] = DEFAULT_COLUMNS) -> None:
        super().__init__()
        self.columns = columns
        """The requested columns, which ``table`` has even without records."""
        self.next_offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        """The offsets to commit after all these records."""

    def __repr__(self) -> str:
        if not self:
            return "<Polled: no records>"
        ends = [(tp, offset_at(records[0], 0), offset_at(records[-1], -1)) for tp, records in self.items() if records]
        parts = [f"{tp} {first}" if first == last else f"{tp} {first} to {last}" for tp, first, last in ends]
        shown = ", ".join(parts[:_LISTED])
        rest = f" and {len(parts) - _LISTED} more partitions" if len(parts) > _LISTED else ""
        return f"<Polled: {_counted(self.num_rows)}, offsets {shown}{rest}>"

    def _repr_html_(self) -> str:
        """Returns the first records as an HTML table, for notebooks."""
        from odradek.text.html_table import html_table

        first = list(islice(self.records(), _HTML_ROWS))
        rows = [
            (one.partition, one.offset, one.timestamp_ms if one.timestamp_ms >= 0 else None, one.key, one.value)
            for one in first
        ]
        return html_table(
            f"{_counted(self.num_rows)} of {', '.join(sorted({tp.topic for tp in self})) or 'no topic'}",
            ("partition", "offset", "timestamp in ms", "key", "value"),
            rows,
            self.num_rows - len(first),
        )

    @property
    def num_rows(self) -> int:
        """The number of records of all partitions."""
        return sum(batch.num_rows for batches in self.values() for batch in batches)

    def record_batches(self) -> Iterator[pa.RecordBatch]:
        """Returns all RecordBatches, partition by partition. Raises ColumnsMissing, TimeOutOfRange."""
        for batches in self.values():
            for batch in batches:
                if isinstance(batch, RowBatch):
                    batch.refuse("record_batches()")
                yield batch

    def table(self) -> pa.Table:
        """Returns all records as one table, which is empty without records. Raises ColumnsMissing, TimeOutOfRange."""
        with needs_columns("table()"):
            import pyarrow as pa

            from odradek.batches.columns.arrow_columns import schema

        return pa.Table.from_batches(list(self.record_batches()), None if self else schema(self.columns))

    def records(self, partition: tuple[str, int] | None = None) -> Iterator[Record]:
        """Returns all records one by one, partition by partition, or only those of one partition."""
        chosen = self.items() if partition is None else [(tp, self[tp]) for tp in self if tp == partition]
        for tp, batches in chosen:
            yield from records_of(tp, batches)


def _counted(number: int) -> str:
    return "1 record" if number == 1 else f"{number:,} records"


def offset_at(batch: pa.RecordBatch | RowBatch, number: int) -> int:
    """Returns the offset of record ``number`` of a batch, counted from 0; -1 is the last record."""
    return batch.rows[number].offset if isinstance(batch, RowBatch) else int(batch.column("offset")[number].as_py())


def records_of(tp: TopicPartition, batches: list[pa.RecordBatch | RowBatch]) -> Iterator[Record]:
    for batch in batches:
        yield from _rows_of(tp, batch) if isinstance(batch, RowBatch) else rows_of(tp, batch)


def _rows_of(tp: TopicPartition, batch: RowBatch) -> Iterator[Record]:
    """Returns the records of a RowBatch. Columns that were not requested are treated as in ``rows_of``."""
    has_key, has_value, has_headers, has_time, has_type = (
        name in batch.columns for name in ("key", "value", "headers", "timestamp", "timestampType")
    )
    kind = batch.timestamp_type if has_type else 0
    for row in batch.rows:
        key, value = row.key if has_key else None, row.value if has_value else None
        time_ms = row.timestamp if has_time else -1
        yield Record(
            tp.topic,
            tp.partition,
            row.offset,
            time_ms,
            kind,
            key,
            value,
            row.headers if has_headers else UNREAD_HEADERS,
        )


def rows_of(tp: TopicPartition, batch: pa.RecordBatch) -> Iterator[Record]:
    """Returns the records of one partition's RecordBatch.

    If a column was not requested, its field is None, or UNREAD_HEADERS, -1 for the timestamp, 0 for its type."""
    import pyarrow as pa

    columns = {name: batch.column(name) for name in batch.schema.names}
    count = batch.num_rows
    nothing = [None] * count
    times = columns["timestamp"].cast(pa.int64()).to_pylist() if "timestamp" in columns else [-1000] * count
    kinds = columns["timestampType"].to_pylist() if "timestampType" in columns else [0] * count
    keys = columns["key"].to_pylist() if "key" in columns else nothing
    values = columns["value"].to_pylist() if "value" in columns else nothing
    has_headers = "headers" in columns
    headers = columns["headers"].to_pylist() if has_headers else nothing
    offsets = columns["offset"].to_pylist()
    for offset, time, kind, key, value, pairs in zip(offsets, times, kinds, keys, values, headers, strict=True):
        row = tuple((pair["key"], pair["value"]) for pair in pairs or ()) if has_headers else UNREAD_HEADERS
        yield Record(tp.topic, tp.partition, offset, time // 1000, kind, key, value, row)
