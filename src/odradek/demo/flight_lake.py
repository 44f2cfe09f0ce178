"""Fills the demo's table from the topic of flights, as a consumer group. The events' fields become columns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.client.admin import Admin, offsets_topic
from odradek.client.admin.offsets_topic import Entry
from odradek.codecs.offsets_topic import OffsetCommitRecord, OffsetKey, decode
from odradek.demo.flights import EVENT_SCHEMA
from odradek.pipelines.checkpoint import plan_of, planned_batch, query_id
from odradek.pipelines.files.batch_rows import SparkRows
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.parquet.table import ParquetTable
from odradek.pipelines.queries import run_query
from odradek.pipelines.sources import Source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "flight-lake"
MAX_OFFSETS_PER_TRIGGER = 60_000


@dataclass(frozen=True)
class FillResult:
    """``rows``: rows added to the table in ``batches`` micro-batches. ``seconds``: the duration."""

    rows: int
    batches: int
    seconds: float


class Lake:
    """The demo's table under ``root``. Readers use ``table/``; only the writer uses the other folders."""

    def __init__(self, root: Path, partition_by: str) -> None:
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        table, batches, staging = (LocalLocation(root / name) for name in ("table", "batches", "staging"))
        self._table = ParquetTable(table, batches, staging, (partition_by,))

    def prepare(self) -> None:
        """Creates missing folders and completes micro-batches of killed writers. Raises StorageError."""
        self._table.prepare()

    def add(self, batch: DataFrame, batch_id: int) -> int:
        """Adds a micro-batch, unless the table already has it; returns the number of its rows."""
        checkpoint = LocalLocation(self.checkpoint)
        planned = planned_batch(checkpoint, batch_id)
        plan = plan_of(checkpoint, planned, query_id(checkpoint), batch_id)
        return self._table.add(SparkRows(batch), plan).rows

    def files(self) -> Iterable[Path]:
        """Returns the table's data files."""
        return [self.table / file.name for file in LocalLocation(self.table).data_files()]


def flight_source(bootstrap: str, topic: str, max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER) -> Source:
    """Returns the topic as the source of the demo's group. The query follows resets of the group."""
    options = {"onGroupReset": "follow", "maxOffsetsPerTrigger": str(max_offsets_per_trigger)}
    return Source(bootstrap, GROUP, topics=(topic,), options=options)


def parse_events(records: DataFrame) -> DataFrame:
    """Returns the event's fields with their types, then the record's key, partition, offset and timestamp."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT_SCHEMA).alias("e")
    parsed = records.select(event, f.col("key").cast("string"), "partition", "offset", "timestamp")
    return parsed.select("e.*", "key", "partition", "offset", "timestamp")


def fill(spark: SparkSession, source: Source, lake: Lake, advance: Callable[[int], None]) -> FillResult:
    """Reads all unread records of the group into the table; calls ``advance`` with each micro-batch's row count.

    Raises QueryFailed.
    """
    lake.prepare()
    batches: list[int] = []

    def add(batch: DataFrame, batch_id: int) -> None:
        rows = lake.add(parse_events(batch).coalesce(2), batch_id)
        batches.append(rows)
        advance(rows)

    started = time.monotonic()
    run_query(source.stream(spark), add, LocalLocation(lake.checkpoint).spark_uri)
    return FillResult(rows=sum(batches), batches=len(batches), seconds=time.monotonic() - started)


def newest_commits(admin: Admin, group: str) -> list[Entry]:
    """Returns a group's newest commit record or tombstone for each partition, sorted by topic and partition."""
    newest: dict[OffsetKey, Entry] = {}
    for entry in offsets_topic.entries(admin, group):
        record = decode(entry.key, entry.value)
        if isinstance(record, OffsetCommitRecord):
            newest[record.key] = entry
    return [newest[key] for key in sorted(newest)]
