"""The offsets after the last rows of a table, from the rows themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from odradek.core.ids import TopicPartition
from odradek.pipelines.tables.table_folders import folder_of

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from odradek.pipelines.filesystems import Location


def parquet_dataset(location: Location, partition_by: Sequence[str]) -> ds.Dataset | None:
    """Returns the rows of a Parquet table; None if it has no file. Columns of ``partition_by`` are strings: the topic
    ``007`` is no number."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    folder = folder_of(location)
    names = [folder.path(file.name) for file in location.data_files()]
    if not names:
        return None
    folders = ds.partitioning(pa.schema([(name, pa.string()) for name in partition_by]), flavor="hive")
    return ds.dataset(names, format="parquet", filesystem=folder.filesystem, partitioning=folders)


def row_ends(
    dataset: ds.Dataset | None, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Returns the offset after the last row of each of these partitions that has rows; None: of all partitions.

    It reads three columns, and only the row groups that may have these topics. Raises OSError.
    """
    import pyarrow as pa
    import pyarrow.dataset as ds

    if dataset is None:
        return {}
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
