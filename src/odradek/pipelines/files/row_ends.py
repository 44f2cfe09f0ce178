"""The offsets after the last rows of a table, from the rows themselves.

The rows of replays do not count: they say nothing about the position of an ingest. The names of files tell who has
written them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from odradek.core.ids import TopicPartition
from odradek.pipelines.files.file_names import REPLAYS, is_named
from odradek.pipelines.files.table_folders import folder_of
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame

    from odradek.pipelines.filesystems.location import Location

_COLUMNS = "topic STRING, partition INT, offset BIGINT"


def parquet_row_ends(
    location: Location,
    partition_by: Sequence[str],
    partitions: Collection[TopicPartition] | None = None,
    left_out: re.Pattern[str] = REPLAYS,
) -> dict[TopicPartition, int]:
    """Returns what ``row_ends`` returns, of a Parquet table. Spark reads a table at a URI. The columns of
    ``partition_by`` are strings: the topic ``007`` is no number. Raises OSError, StorageError."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    files = [file for file in location.data_files() if not is_named(file.name, left_out)]
    if not files:
        return {}
    if isinstance(location, HadoopLocation):
        return _row_ends_by_spark(location.rows(_COLUMNS), partitions, left_out)
    folder = folder_of(location)
    folders = ds.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    names = [folder.path(file.name) for file in files]
    rows = ds.dataset(names, format="parquet", filesystem=folder.filesystem, partitioning=folders)
    return row_ends(rows, partitions, left_out)


def _row_ends_by_spark(
    rows: DataFrame, partitions: Collection[TopicPartition] | None, left_out: re.Pattern[str]
) -> dict[TopicPartition, int]:
    from pyspark.sql import functions as f

    rows = rows.where(~f.input_file_name().rlike(f"/{left_out.pattern}$"))
    if partitions is not None:
        rows = rows.where(f.col("topic").isin(sorted({tp.topic for tp in partitions})))
    last = rows.groupBy("topic", "partition").agg(f.max("offset").alias("last"))
    found = {TopicPartition(row.topic, row.partition): row.last + 1 for row in last.collect()}
    return {tp: end for tp, end in sorted(found.items()) if partitions is None or tp in partitions}


def row_ends(
    dataset: ds.FileSystemDataset,
    partitions: Collection[TopicPartition] | None = None,
    left_out: re.Pattern[str] = REPLAYS,
) -> dict[TopicPartition, int]:
    """Returns the offset after the last row of each of these partitions that has rows; None: of all partitions. Files
    with the names ``left_out`` do not count.

    It reads three columns, and only the row groups that may have these topics. Raises OSError.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    kept = [file for file in dataset.get_fragments() if not is_named(file.path, left_out)]
    dataset = ds.FileSystemDataset(kept, dataset.schema, dataset.format, dataset.filesystem)
    found: dict[TopicPartition, int] = {}
    names = None if partitions is None else pa.array(sorted({tp.topic for tp in partitions}))
    wanted = None if names is None else ds.field("topic").isin(names.cast(dataset.schema.field("topic").type))
    columns = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    for batch in dataset.to_batches(columns=columns.names, filter=wanted):
        rows = pa.Table.from_batches([batch]).cast(columns).group_by(columns.names[:2]).aggregate([("offset", "max")])
        found_columns = (rows[name].to_pylist() for name in ("topic", "partition", "offset_max"))
        for topic, partition, last in zip(*found_columns, strict=True):
            tp = TopicPartition(topic, partition)
            if partitions is None or tp in partitions:
                found[tp] = max(found.get(tp, 0), last + 1)
    return dict(sorted(found.items()))
