"""A stand-in for Spark that runs micro-batches in Python, so that a driver starts in a second and a run takes a tenth.

It writes the files of a checkpoint as Spark does: ``metadata``; ``offsets/<n>`` before micro-batch n, which is created
exclusively; ``commits/<n>`` after it. After a restart, it repeats the newest micro-batch without a file in ``commits``,
from the end of the one before. All else is the code of the pipelines: options, table, commit, group, planner, readers
of ranges and writers of files. Only ``--writer workers`` runs here, and no values with a schema in Spark's DDL.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from odradek.pipelines import queries
from odradek.pipelines.decoders.decoder import decoder_for
from odradek.pipelines.ingestion import adoption
from odradek.pipelines.ingestion import job as ingestion
from odradek.pipelines.queries import QueryFailed
from odradek.pipelines.replays import job as replays
from odradek.pipelines.sources import Source
from odradek.pipelines.tables import table as tables
from odradek.spark import session as session_start
from odradek.spark.options import parse_options
from odradek.spark.source import OdradekStreamReader

_KEPT = 100
"""The number of micro-batches whose files Spark keeps."""


@dataclass
class PlainTasks:
    """Tasks that run one after another in this process."""

    parts: Sequence[Any]

    def map(self, work: Callable[[Any], Any]) -> PlainTasks:
        return PlainTasks([work(part) for part in self.parts])

    def collect(self) -> list[Any]:
        return list(self.parts)


class PlainSession:
    """What the pipelines use of a Spark session, by its names."""

    def __init__(self) -> None:
        self.sparkContext = SimpleNamespace(
            parallelize=lambda tasks, count: PlainTasks(tasks), defaultParallelism=2,
            getConf=lambda: {"spark.driver.host": "127.0.0.1"},
        )  # fmt: skip
        self.conf = SimpleNamespace(get=lambda name: None, set=lambda name, value: None)


@dataclass
class PlainStream:
    """A stream, or the records of a replay. ``reader``: Spark's side of the source; None for a replay."""

    sparkSession: PlainSession  # noqa: N815  the name of PySpark
    reader: OdradekStreamReader | None = None


class PlainCheckpoint:
    """The folder of a checkpoint, with the files and rules of Spark."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        metadata = folder / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))
        self.id = json.loads(metadata.read_text())["id"]

    def newest(self, log: str) -> int:
        return max((int(one) for one in os.listdir(self._folder / log) if one.isdecimal()), default=-1)

    def offset(self, number: int) -> dict[str, Any]:
        path = self._folder / "offsets" / str(number)
        if not path.exists():
            raise QueryFailed(f"batch {number} doesn't exist")
        found: dict[str, Any] = json.loads(path.read_text().splitlines()[2])
        return found

    def plan(self, number: int, offset: Mapping[str, Any]) -> None:
        conf = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": int(time.time() * 1000), "conf": {}})
        self._create("offsets", number, f"v1\n{conf}\n{json.dumps(offset)}")

    def finish(self, number: int) -> None:
        self._create("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')
        for log in ("offsets", "commits"):
            (self._folder / log / str(number - _KEPT)).unlink(missing_ok=True)

    def _create(self, log: str, number: int, text: str) -> None:
        path = self._folder / log / str(number)
        fresh = path.with_name(f".{number}.{uuid.uuid4()}.tmp")
        fresh.write_text(text)
        try:
            os.link(fresh, path)
        except FileExistsError:
            raise QueryFailed(
                "another run has written "  # the words of ``causes`` for Spark's error
                f"micro-batch {number} to the checkpoint at the same time. Let only one run use a checkpoint"
            ) from None
        finally:
            fresh.unlink()


def run_query(
    stream: PlainStream,
    add: Callable[[PlainStream, int], None],
    checkpoint: str,
    *,
    trigger: str | None = None,
    stop: threading.Event | None = None,
    on_poll: Callable[[], None] = lambda: None,
) -> None:
    """Runs the micro-batches as Spark does with the trigger AvailableNow, or every 100 ms with any ``trigger``."""
    assert stream.reader is not None
    reader, folder = stream.reader, PlainCheckpoint(Path(checkpoint.removeprefix("file:")))
    planned, done = folder.newest("offsets"), folder.newest("commits")
    start: dict[str, Any] = reader.initialOffset()
    number = planned
    if planned >= 0 and done < planned:
        if planned > 0:
            start = folder.offset(planned - 1)
        start = _run_batch(reader, folder, stream, add, planned, start, folder.offset(planned))
    elif planned >= 0:
        start = folder.offset(planned)
    if trigger is None:
        reader.prepareForTriggerAvailableNow()
    while stop is None or not stop.is_set():
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        if end == start:
            if trigger is None:
                return
            on_poll()
            time.sleep(0.1)
            continue
        number += 1
        folder.plan(number, end)
        start = _run_batch(reader, folder, stream, add, number, start, end)


def _run_batch(
    reader: OdradekStreamReader,
    folder: PlainCheckpoint,
    stream: PlainStream,
    add: Callable[[PlainStream, int], None],
    number: int,
    start: dict[str, Any],
    end: dict[str, Any],
) -> dict[str, Any]:
    reader.partitions(start, end)
    add(stream, number)
    folder.finish(number)
    return end


def _refuse(*given: Any, **more: Any) -> None:
    raise AssertionError("this part of the pipelines starts Spark, and the stand-in does not replace it")


@contextlib.contextmanager
def _plainly(*args: Any) -> Iterator[Any]:
    yield {}


def _begin(table: tables.Table, records: PlainStream, isolation: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    table._decoder = decoder_for(table.target.values)
    table._columns = from_arrow_schema(table._decoder.schema)
    table._columns_of_table.begin(table._columns, lambda values: from_arrow_schema(decoder_for(values).schema))
    table._writer.check(SimpleNamespace(schema=table._columns))
    table._writer.begin(table._decoder.schema)
    shape = table.target.layout()
    table._id = tables.begin_table(table.location, shape, table._has_records, isolation=isolation)


def replacements() -> list[tuple[Any, str, Any]]:
    """What a process without Spark replaces: objects, names of their attributes, and values."""
    session = PlainSession()

    def stream(source: Source, spark: PlainSession) -> PlainStream:
        return PlainStream(session, OdradekStreamReader(parse_options(source.all_options(), streaming=True)))

    return [
        *((module, "start_spark", lambda *given: session) for module in (queries, ingestion, adoption, replays)),
        (session_start, "session", _refuse),
        *((module, "progress_options", _plainly) for module in (ingestion, replays)),
        *((module, "spark_failures", _plainly) for module in (ingestion, replays)),
        (ingestion, "run_query", run_query),
        (replays, "plain_timestamps", _plainly),
        (tables, "check_spark_sees", lambda spark, path: None),
        (tables.Table, "begin", _begin),
        (tables.Table, "_note_other_attempts", _plainly),
        (replays.Replay, "frame", lambda *given: PlainStream(session)),
        (Source, "stream", stream),
    ]


def use() -> None:
    """Makes the pipelines of this process run without Spark."""
    for owner, name, value in replacements():
        setattr(owner, name, value)
