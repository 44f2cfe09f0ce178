"""Topics into tables in a running Spark session: by Spark's connector, and by our pipeline with either writer.

The figures of a run:

* ``s``: seconds from the call (``readStream`` or ``ingest``) to the end of the query, the query's start included.
* ``batches_s``: the sum of ``triggerExecution`` over the triggers that ran a micro-batch, from Spark's listener:
  planning, write-ahead log, reading, writing, commit of the table. The start of the query is not included.
* ``cpu``: user and system seconds per million records, of this process, of Java and of the Python workers. Ended
  workers are included, and the broker is not.
* ``mb``: the size of the table's files.
* ``batches``: the number of micro-batches. ``batch_ms``: their median time without the first quarter.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bench.apache import ApacheBroker, spark_connector
from bench.sides import cpu_seconds, with_descendants
from odradek.pipelines.ingestion.job import ingest
from odradek.spark.session import session

CONNECTOR, WORKERS, SPARK, DELTA = "connector", "workers", "spark", "delta"
COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
MEMORY = "4g"
SETTINGS = {
    "spark.driver.memory": MEMORY,
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Spark's settings of every side, here and in ``bench/ingest_commands``."""
_END_S = 30
Figures = dict[str, float]


@dataclass(frozen=True)
class Job:
    """A topic to ingest. ``rows``: its number of records. ``schema``: the DDL of its JSON values; None: raw values.

    ``offsets``: the maximum of records in a micro-batch; None: the side's default.
    """

    topic: str
    rows: int
    schema: str | None = None
    offsets: int | None = None


class Triggers(StreamingQueryListener):  # type: ignore[misc]  # PySpark has no types
    """A listener: the milliseconds of each trigger that ran a micro-batch since ``forget``."""

    def __init__(self) -> None:
        self.batches_ms: list[int] = []
        self._ended = threading.Event()

    def forget(self) -> None:
        self.batches_ms = []
        self._ended.clear()

    def until_end(self) -> list[int]:
        """Waits for the event of the query's end, which comes a moment after that end. Raises TimeoutError.

        Returns ``batches_ms``.
        """
        if not self._ended.wait(_END_S):
            raise TimeoutError("Spark's listener got no event for the end of the query")
        return self.batches_ms

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        durations = event.progress.durationMs
        if "addBatch" in durations:
            self.batches_ms.append(durations["triggerExecution"])

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._ended.set()


class SessionRuns:
    """One session (``local[2]``) for all sides. Each run has its own table, checkpoint and group."""

    def __init__(self, broker: ApacheBroker, work: Path) -> None:
        self._broker, self._work = broker, work
        log = {"spark.odradek.log.file": str(work / "spark.log")}
        self._spark = session("bench.ingest", config=connector_settings() | log)
        self._triggers = Triggers()
        self._spark.streams.addListener(self._triggers)

    def close(self) -> None:
        self._spark.stop()

    def run(self, side: str, job: Job) -> Figures:
        """Runs a job once. Raises RuntimeError unless the table has one row for each record."""
        with emptied(self._work / "table") as table:
            self._triggers.forget()
            cpu, began = self._cpu_seconds(), time.perf_counter()
            if side == CONNECTOR:
                self._connector(job, table)
            else:
                self._ours(side, job, table)
            took = time.perf_counter() - began
            used = self._cpu_seconds() - cpu
            batches_ms = self._triggers.until_end()
            size = check_rows(side, table, job.rows)
        return {
            "s": took,
            "batches_s": sum(batches_ms) / 1000,
            "cpu": used / job.rows * 1e6,
            "mb": size / 1e6,
            "batches": len(batches_ms),
            "batch_ms": median(batches_ms[len(batches_ms) // 4 :]),
        }

    def _cpu_seconds(self) -> float:
        broker = set(with_descendants(self._broker.pids))
        ours = [pid for pid in with_descendants([os.getpid()]) if pid not in broker]
        # The broker must not end during a run: it is a child of this process, and ended children count.
        return cpu_seconds(ours)

    def _connector(self, job: Job, table: Path) -> None:
        options = {"kafka.bootstrap.servers": self._broker.bootstrap, "subscribe": job.topic}
        options["startingOffsets"] = "earliest"
        if job.offsets is not None:
            options["maxOffsetsPerTrigger"] = str(job.offsets)
        frame = self._spark.readStream.format("kafka").options(**options).load().select(*COLUMNS)
        if job.schema is not None:
            frame = frame.withColumn("value", f.from_json(f.col("value").cast("string"), job.schema))
        writer = frame.writeStream.format("parquet").option("path", str(table))
        writer = writer.option("checkpointLocation", str(table.with_name("checkpoint")))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _ours(self, side: str, job: Job, table: Path) -> None:
        done = ingest(
            self._broker.bootstrap,
            group=f"bench-{uuid.uuid4().hex[:12]}",
            output=table,
            checkpoint=table.with_name("checkpoint"),
            topics=job.topic,
            table_format="delta" if side == DELTA else "parquet",
            writer=SPARK if side == SPARK else WORKERS,
            value_format="raw" if job.schema is None else "json",
            schema=job.schema,
            options={} if job.offsets is None else {"maxOffsetsPerTrigger": str(job.offsets)},
            spark=self._spark,
        )
        if done.bad:
            raise RuntimeError(f"{done.bad:,} of {done.rows:,} values could not be read")


@contextmanager
def emptied(table: Path) -> Iterator[Path]:
    """Yields the path. Then removes the table, the checkpoint beside it, and other folders with the table's name.

    All writes are synced at the end.
    """
    try:
        yield table
    finally:
        for path in table.parent.glob(f"*{table.name}*"):
            shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(table.with_name("checkpoint"), ignore_errors=True)
        os.sync()


def data_files(table: Path) -> list[Path]:
    """The Parquet files that readers of a table see."""

    def is_hidden(path: Path) -> bool:
        return any(part.startswith(("_", ".")) for part in path.relative_to(table).parts)

    return [path for path in table.rglob("*.parquet") if not is_hidden(path)]


def check_rows(side: str, table: Path, rows: int) -> int:
    """Returns the size of the table's files in bytes. Raises RuntimeError unless the files have ``rows`` rows."""
    files = data_files(table)
    if side == DELTA:
        files = [Path(uri.removeprefix("file://")) for uri in DeltaTable(str(table)).file_uris()]
    held = sum(pq.read_metadata(path).num_rows for path in files)
    if held != rows:
        raise RuntimeError(f"{side} wrote {held:,} rows of {rows:,}")
    return sum(path.stat().st_size for path in files)


def connector_settings() -> dict[str, str]:
    """``SETTINGS`` and the setting ``spark.jars`` with the connector's jars."""
    return SETTINGS | {"spark.jars": ",".join(map(str, spark_connector()))}
