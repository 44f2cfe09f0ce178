"""The rows of a table at given offsets: what they have in common with the records that they were made of."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from odradek.core.ids import TopicPartition
from odradek.pipelines.files.file_names import REPLAYS, is_named, last_part
from odradek.pipelines.files.table_folders import folder_of
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame

    from odradek.pipelines.filesystems.location import Location

T = TypeVar("T")

_COLUMNS = ("topic", "partition", "offset", "timestamp", "key")
_TYPES = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, key BINARY"
_PARTITIONS = 64
"""The most partitions of one filter."""
_FILES = 64
"""About so many files are opened at once. The newest ones are first, and mostly have the wanted rows."""


class RecordMark(NamedTuple):
    """The time and the key of a record or of its row. ``time_ms``: None if the column cannot hold it. ``key``: None for
    a record without a key, and for a row whose key is not known."""

    time_ms: int | None
    key: bytes | None

    def is_row_of(self, record: RecordMark) -> bool:
        """Returns whether this may be the row of ``record``."""
        is_time = None in (self.time_ms, record.time_ms) or self.time_ms == record.time_ms
        return is_time and self.key in (None, record.key)


Spans = Mapping[TopicPartition, tuple[int, int]]
"""For each partition, the first offset and the end of a range."""
Marks = dict[TopicPartition, dict[int, list[RecordMark]]]
"""By partition and offset; an offset has several rows if a reset has added them again."""


def parquet_marks(
    location: Location, partition_by: Sequence[str], spans: Spans, files_of: re.Pattern[str] | None = None
) -> Marks:
    """Returns the marks of the rows in these ranges of a Parquet table. ``files_of``: as for ``marks_in``. Spark reads
    a table at a URI of Hadoop. Raises OSError, StorageError."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    files = location.data_files()
    if not files:
        return {}
    if isinstance(location, HadoopLocation):
        return _marks_by_spark(location.rows(_TYPES), partition_by, spans, files_of)
    folder = folder_of(location)
    folders = ds.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    names = [folder.path(file.name) for file in files]
    form = ds.ParquetFileFormat(coerce_int96_timestamp_unit="ms")  # Spark's own form of times; in ns they overflow
    return marks_in(ds.dataset(names, format=form, filesystem=folder.filesystem, partitioning=folders), spans, files_of)


def _marks_by_spark(
    rows: DataFrame, partition_by: Sequence[str], spans: Spans, files_of: re.Pattern[str] | None
) -> Marks:
    from pyspark.sql import functions as f

    found: Marks = {}
    named = f.input_file_name().rlike(f"/{(files_of or REPLAYS).pattern}$")
    for some in _parts(sorted(spans.items()), _PARTITIONS):
        conditions = [
            (f.col("topic") == tp.topic)
            & (f.col("partition") == tp.partition)
            & f.col("offset").between(first, end - 1)
            & (~named if files_of is None else named)
            for tp, (first, end) in some
        ]
        wanted = rows.where(functools.reduce(operator.or_, conditions))
        times = f.floor(f.unix_micros("timestamp") / 1000).alias("time")
        key = f.lit(None) if "key" in partition_by else f.col("key")
        for row in wanted.select("topic", "partition", "offset", times, key.alias("key")).collect():
            mark = RecordMark(row.time, None if row.key is None else bytes(row.key))
            _note(found, TopicPartition(row.topic, row.partition), row.offset, mark)
    return found


def marks_in(dataset: ds.FileSystemDataset, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
    """Returns the marks of the rows in these ranges: of files with the names ``files_of``; None: of all files except
    those of replays. It opens the files of the newest micro-batches first, and no further ones if those have rows of
    each range. Raises OSError."""
    import pyarrow.dataset as ds

    found: Marks = {}
    named = REPLAYS if files_of is None else files_of
    kept = [one for one in dataset.get_fragments() if is_named(one.path, named) != (files_of is None)]
    for files in _newest_first(kept):
        part = ds.FileSystemDataset(files, dataset.schema, dataset.format, dataset.filesystem)
        left = [one for one in sorted(spans.items()) if one[0] not in found]
        for some in _parts(left, _PARTITIONS):
            _read(part, some, found)
        if all(tp in found for tp in spans):
            break
    return found


def _newest_first(files: Sequence[ds.Fragment]) -> Iterator[list[ds.Fragment]]:
    """Yields groups of at least ``_FILES`` files, if there are so many. All files of a micro-batch are in one group."""
    by_batch: dict[str, list[ds.Fragment]] = {}
    for file in files:
        by_batch.setdefault("-".join(last_part(file.path).split("-")[:2]), []).append(file)
    group: list[ds.Fragment] = []
    for name in sorted(by_batch, reverse=True):
        group += by_batch[name]
        if len(group) >= _FILES:
            yield group
            group = []
    if group:
        yield group


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _read(dataset: ds.FileSystemDataset, spans: Iterable[tuple[TopicPartition, tuple[int, int]]], found: Marks) -> None:
    import pyarrow as pa
    import pyarrow.dataset as ds

    schema = dataset.schema
    columns = [name for name in _COLUMNS if name in schema.names]

    def equal(name: str, value: object) -> Any:
        return ds.field(name) == pa.scalar(value).cast(schema.field(name).type)

    conditions = [
        equal("topic", tp.topic)
        & equal("partition", tp.partition)
        & (ds.field("offset") >= first)
        & (ds.field("offset") < end)
        for tp, (first, end) in spans
    ]
    for batch in dataset.to_batches(columns=columns, filter=functools.reduce(operator.or_, conditions)):
        rows = {name: batch.column(name) for name in columns}
        partitions = rows["partition"].cast(pa.int32()).to_pylist()
        marks = map(RecordMark, _times(rows.get("timestamp"), len(batch)), _keys(rows.get("key"), len(batch)))
        places = zip(rows["topic"].to_pylist(), partitions, rows["offset"].to_pylist(), marks, strict=True)
        for topic, partition, offset, mark in places:
            _note(found, TopicPartition(topic, partition), offset, mark)


def _note(found: Marks, tp: TopicPartition, offset: int, mark: RecordMark) -> None:
    found.setdefault(tp, {}).setdefault(offset, []).append(mark)


def _times(column: pa.Array | None, count: int) -> list[int | None]:
    import pyarrow as pa

    if column is None or not pa.types.is_timestamp(column.type):
        return [None] * count
    times: list[int | None] = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    return times


def _keys(column: pa.Array | None, count: int) -> list[bytes | None]:
    import pyarrow as pa

    if column is None or not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return [None] * count  # a column in the names of folders
    keys: list[bytes | None] = column.to_pylist()
    return keys
