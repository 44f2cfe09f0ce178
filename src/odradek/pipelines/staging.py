"""What Spark has written beside a table, to be put into it: the files, and what is in them.

A batch is staged in a folder that belongs to one run of one writer. One that was killed may leave a Java process
behind that finishes its files a moment later: those land in the folder of that run, never in another's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.errors import OdradekError
from odradek.pipelines.file_statistics import file_statistics
from odradek.pipelines.filesystems import File, HadoopPlace, LocalPlace, Place, sync_directory
from odradek.pipelines.value_reader import ERROR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_NUMBER = re.compile(r"part-(\d+)-")
_MOST_TASKS = 1_000_000
_READERS = 8
DAY_S = 86_400.0


class FilesNotSeen(OdradekError):
    """A worker wrote what the driver does not find; the message says which file, where it was written and a remedy."""


def not_seen(file: str, host: str | None, wanted: str, found: object) -> str:
    """The one line: ``wanted`` is what the worker reported of the file, ``found`` what the driver sees."""
    by = "a worker" if host is None else f"the worker on {host}"
    return (
        f"{file}: {by} wrote {wanted}, the driver finds {found or 'nothing'} there. Nothing was added and nothing is "
        "committed. Choose a place that the driver and all workers see as the same: a shared file system, or a URI as "
        "s3a://… or hdfs://…"
    )


@dataclass(frozen=True)
class StagedFile:
    """A file by its name in the staging folder; ``bad``: rows whose ``error`` says something. ``statistics``: minima,
    maxima and null counts as Delta has them, by column.
    """

    name: str
    size: int
    rows: int
    bad: int
    statistics: Mapping[str, Any] = field(default_factory=dict)


class StagedRows(Protocol):
    """Rows that can be written into a folder."""

    def write(self, place: Place, prefix: str, partition_by: Sequence[str]) -> list[StagedFile]:
        """Raises what writing them raises."""


class Staging:
    """Where one run of a writer stages its batches."""

    def __init__(self, root: Place, run: str | None = None) -> None:
        self.root = root
        self.run = run or uuid.uuid4().hex
        self._dead: frozenset[str] = frozenset()

    def batch(self, batch_id: int) -> str:
        """The name of a batch's folder below ``root``."""
        return f"{self.run}/batch-{batch_id}"

    def remove_runs(self, dead: Collection[str] | None) -> None:
        """Removes what these runs have left, and what is older than a day; None: all of it."""
        self._dead = frozenset(dead or ())
        for name in self.root.children():
            if dead is None or name in dead or (name != self.run and self.root.child(name).age_s() > DAY_S):
                self.root.child(name).remove()

    def close(self) -> None:
        """Removes what this run has left, what dead ones have left since, and the folder where that was the last."""
        for name in {self.run, *self._dead.intersection(self.root.children())}:
            self.root.child(name).remove()
        if not self.root.children():
            self.root.remove()

    def stage(self, rows: StagedRows, batch_id: int, prefix: str, partition_by: Sequence[str]) -> list[StagedFile]:
        """Writes the rows of a batch; returns the files that hold any, durable where the place is this machine's.

        Raises what ``rows.write`` raises.
        """
        return rows.write(self.root.child(self.batch(batch_id)), prefix, partition_by)


def write_counted(frame: DataFrame, place: Place, partition_by: Sequence[str] = ()) -> list[StagedFile]:
    """Has Spark write rows into a folder; returns its files. Spark counts the rows while it writes them, and the files
    that the driver finds have to hold as many. Raises FilesNotSeen.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    spark = frame.sparkSession
    counted = Observation()
    writer = frame.observe(counted, f.count(f.lit(1)).alias("rows")).write.mode("overwrite")
    writer = writer.option("timeZone", "UTC")  # of the times that name folders: else it is the session's
    with tagged_jobs(spark) as tag:
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(place.spark_uri)
    found = found_files(place)
    written, seen = int(counted.get["rows"]), sum(file.rows for file in found)
    if written != seen:
        raise FilesNotSeen(_not_seen(place, found, _tasks(spark, tag), written, seen))
    return found


def _not_seen(place: Place, found: Sequence[StagedFile], tasks: Sequence[WriteTask], written: int, seen: int) -> str:
    """The first file that is missed: its task has its number, and says how many rows it has written."""
    rows: Counter[int] = Counter()
    for file in found:
        number = _NUMBER.match(file.name.rpartition("/")[2])
        if number is not None:
            rows[int(number[1])] += file.rows
    for task in tasks:
        if task.rows != rows[task.number]:
            name = f"part-{task.number:05}-….parquet"
            return not_seen(f"{place.uri}/{name}", task.host, f"{task.rows:,} rows", rows[task.number])
    return not_seen(f"{place.uri}/part-….parquet", None, f"{written:,} rows", seen)


class WriteTask(NamedTuple):
    """A task of Spark's that has written rows, and where it ran."""

    number: int
    host: str
    rows: int


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession) -> Iterator[str]:
    """A tag that Spark's jobs of this thread have for as long as the block runs."""
    context: Any = spark.sparkContext._jsc.sc()
    tag = f"odradek-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield tag
    finally:
        context.removeJobTag(tag)


def _tasks(spark: SparkSession, tag: str) -> list[WriteTask]:
    """Which task of these jobs has written how many rows where; none where Spark does not tell."""
    from py4j.protocol import Py4JError

    context: Any = spark.sparkContext._jsc.sc()
    found: dict[tuple[int, int], WriteTask] = {}
    try:
        context.listenerBus().waitUntilEmpty()
        store = context.statusStore()
        for job in context.statusTracker().getJobIdsForTag(tag):
            stages = store.job(job).stageIds()
            for stage in (stages.apply(at) for at in range(stages.size())):
                tasks = store.taskList(stage, store.lastStageAttempt(stage).attemptId(), _MOST_TASKS)
                for task in (tasks.apply(at) for at in range(tasks.size())):
                    metrics = task.taskMetrics()
                    rows = metrics.get().outputMetrics().recordsWritten() if metrics.isDefined() else 0
                    if rows and task.status() == "SUCCESS":
                        found[stage, task.index()] = WriteTask(task.index(), task.host(), rows)
    except Py4JError:  # what is missed counts, not who has it
        return []
    return [found[key] for key in sorted(found)]


def has_other_attempts(spark: SparkSession, tag: str) -> bool:
    """Whether tasks of these jobs were tried in vain, or are still tried, beside the tries that count: those may leave
    files. True where Spark does not tell.
    """
    from py4j.protocol import Py4JError

    context: Any = spark.sparkContext._jsc.sc()
    try:
        context.listenerBus().waitUntilEmpty()
        store = context.statusStore()
        for job in context.statusTracker().getJobIdsForTag(tag):
            stages = store.job(job).stageIds()
            for stage in (store.lastStageAttempt(stages.apply(at)) for at in range(stages.size())):
                others = stage.numFailedTasks() + stage.numKilledTasks() + stage.numActiveTasks()
                if others or stage.attemptId():
                    return True
    except Py4JError:
        return True
    return False


def staged_files(place: Place) -> list[StagedFile]:
    """The files of a folder that hold rows."""
    return [file for file in found_files(place) if file.rows]


def found_files(place: Place) -> list[StagedFile]:
    """The Parquet files of a folder as the driver sees them, synced where it is a folder of this machine."""
    if isinstance(place, LocalPlace):
        found = [_look(place.path, file.name, file.size) for file in place.data_files()]
        folders = {folder for file in found for folder in (place.path / file.name).parents}
        for folder in folders - set(place.path.parent.parent.parents):
            sync_directory(folder)
        return found
    assert isinstance(place, HadoopPlace)
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(lambda file: _look_far(place, file), place.data_files()))


def _look(root: Path, name: str, size: int) -> StagedFile:
    path = root / name
    try:
        with path.open("rb+") as opened:
            os.fsync(opened.fileno())
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise FilesNotSeen(not_seen(str(path), None, "a Parquet file", str(error))) from error
    return staged_file(name, size, metadata)


def staged_file(name: str, size: int, footer: pq.FileMetaData) -> StagedFile:
    """A file by its footer."""
    bad = 0
    columns = [number for number in range(footer.num_columns) if footer.schema.column(number).path == ERROR]
    for number, at in itertools.product(range(footer.num_row_groups), columns):
        column = footer.row_group(number).column(at)
        bad += column.num_values - column.statistics.null_count
    return StagedFile(name, size, footer.num_rows, bad, file_statistics(footer))


def _look_far(place: HadoopPlace, file: File) -> StagedFile:
    rows = bad = 0
    for block in place.footer(file.name).getBlocks():
        rows += block.getRowCount()
        for column in block.getColumns():
            if column.getPath().toDotString() == ERROR:
                bad += column.getValueCount() - column.getStatistics().getNumNulls()
    return StagedFile(file.name, file.size, rows, bad)
