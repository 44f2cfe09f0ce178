"""Shared code of the tests of ingest and replay: a table as readers without Spark see it, and a group's commits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from odradek.client.admin import Admin
from odradek.core.ids import LATEST, TopicPartition

RecordId = tuple[str, int, int]


def parquet(output: Path) -> pa.Table:
    """Reads a table with pyarrow. The names of folders become columns."""
    return ds.dataset(output, partitioning="hive").to_table()


def delta(output: Path) -> pa.Table:
    from deltalake import DeltaTable

    return DeltaTable(output).to_pyarrow_dataset().to_table()


def record_ids(table: pa.Table) -> Counter[RecordId]:
    """The number of occurrences of each record."""
    columns = (table.column(name).to_pylist() for name in ("topic", "partition", "offset"))
    return Counter(zip(*columns, strict=True))


def by_record_id(table: pa.Table) -> dict[tuple[int, int], dict[str, Any]]:
    return {(row["partition"], row["offset"]): row for row in table.to_pylist()}


def duckdb_count(output: Path) -> int:
    """Counts the rows of all .parquet files below a table. DuckDB also reads hidden folders."""
    ((count,),) = duckdb.sql(f"SELECT count(*) FROM read_parquet('{output}/**/*.parquet')").fetchall()
    return int(count)


def expected(admin: Admin, *topics: str) -> Counter[RecordId]:
    """Each record of the topics once."""
    found: Counter[RecordId] = Counter()
    for tp, end in ends(admin, *topics).items():
        found.update((tp.topic, tp.partition, offset) for offset in range(end))
    return found


def ends(admin: Admin, *topics: str) -> dict[TopicPartition, int]:
    partitions = [tp for topic in topics for tp in admin.partitions(topic)]
    return {tp: row.offset for tp, row in admin.list_offsets(dict.fromkeys(partitions, LATEST)).items()}


def committed(admin: Admin, group: str) -> dict[TopicPartition, int]:
    return {tp: commit.offset for tp, commit in admin.list_group_offsets(group).items()}


def checkpoint_end(checkpoint: Path) -> dict[TopicPartition, int]:
    """The end of the last micro-batch that Spark marked as complete, from the checkpoint itself."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    offset = json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[2])
    return {
        TopicPartition(topic, int(number)): end
        for topic, partitions in offset.items()
        if not topic.startswith("$")
        for number, end in partitions.items()
    }


def forget_that_the_last_batch_was_done(checkpoint: Path) -> int:
    """Restores the state after a kill between the work of a micro-batch and the moment at which Spark marks it as
    complete."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdigit())
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    return last
