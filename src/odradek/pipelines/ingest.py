"""From a topic into a table, as a consumer group: what was not read yet, in micro-batches, each exactly once.

Spark's checkpoint says which offsets belong to which batch, the table holds each batch once (``pipelines.lake``), and
the source commits the group's offsets after each batch, so group tools see how far the table is.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.core.errors import OdradekError
from odradek.pipelines.flights import EVENT_SCHEMA
from odradek.pipelines.lake import Lake
from odradek.spark.errors import reason

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP = "flight-lake"
MAX_OFFSETS_PER_TRIGGER = 60_000
_POLL_S = 1.0


class IngestError(OdradekError):
    """The streaming query failed; the message is its cause."""


@dataclass(frozen=True)
class Ingested:
    """``rows`` went into the table in ``batches`` micro-batches; it took ``seconds``."""

    rows: int
    batches: int
    seconds: float


@dataclass(frozen=True)
class IngestSource:
    """What to read: a topic, on whose behalf, and how many records at most in one micro-batch."""

    bootstrap: str
    topic: str
    group: str = GROUP
    max_offsets_per_trigger: int = MAX_OFFSETS_PER_TRIGGER

    def stream(self, spark: SparkSession) -> DataFrame:
        """The records of the topic from the group's offsets on, following the group when somebody resets it."""
        from odradek.spark.source import register

        register(spark)
        return (
            spark.readStream.format("odradek")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", self.topic)
            .option("kafka.group.id", self.group)
            .option("startingOffsets", "committed")
            .option("onGroupReset", "follow")
            .option("maxOffsetsPerTrigger", str(self.max_offsets_per_trigger))
            .load()
        )


def parse_events(records: DataFrame) -> DataFrame:
    """The event's fields with their types, then the record's key, partition, offset and timestamp."""
    from pyspark.sql import functions as f

    event = f.from_json(f.col("value").cast("string"), EVENT_SCHEMA).alias("e")
    parsed = records.select(event, f.col("key").cast("string"), "partition", "offset", "timestamp")
    return parsed.select("e.*", "key", "partition", "offset", "timestamp")


def ingest(spark: SparkSession, source: IngestSource, lake: Lake, advance: Callable[[int], None]) -> Ingested:
    """Reads all there is for the group into the table; calls ``advance`` with each batch's rows.

    Raises IngestError.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    # Spark's own default is a 96-bit type that other readers only tolerate.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    lake.prepare()
    batches: list[int] = []

    def add(batch: DataFrame, batch_id: int) -> None:
        rows = lake.add(parse_events(batch).coalesce(2), batch_id)
        batches.append(rows)
        advance(rows)

    started = time.monotonic()
    try:
        writer = source.stream(spark).writeStream.foreachBatch(add).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(lake.checkpoint)).start()
        while not query.awaitTermination(_POLL_S):
            pass
    except (PySparkException, Py4JError, OSError) as error:  # the latter two: Java has gone
        raise IngestError(f"the Spark query stopped: {cause_of(error)}") from error
    return Ingested(rows=sum(batches), batches=len(batches), seconds=time.monotonic() - started)


# The line that ends a Python traceback; Java's exceptions have a package and therefore dots in their names.
_PYTHON = re.compile(r"^(\w+(?:Error|Exception): .+)$", re.MULTILINE)


def cause_of(error: BaseException) -> str:
    """The one line of a Spark error that says what went wrong: the last of ours, else of Python's, else its first."""
    ours = reason(error)
    if ours is not None:
        return ours
    text = str(error)
    if found := _PYTHON.findall(text):
        return str(found[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
