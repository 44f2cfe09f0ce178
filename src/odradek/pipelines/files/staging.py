"""Staging: files that are written beside a table before they are added to it, and their counts.

Each run of a writer stages its micro-batches in a folder of its own. A killed run can leave a Java process that
completes its files a moment later; these files are in the folder of that run, never in another run's.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from odradek.core.counts import counted
from odradek.core.errors import OdradekError
from odradek.pipelines.commit.state import NO_RUN, RunTag
from odradek.pipelines.files.statistics import file_statistics
from odradek.pipelines.filesystems.atomic_renames import PROBE
from odradek.pipelines.filesystems.hadoop_location import HadoopLocation
from odradek.pipelines.filesystems.location import FileStatus, LocalLocation, Location
from odradek.pipelines.values.reader import ERROR
from odradek.text.output_file import sync_directory
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import DataFrame, SparkSession


_NUMBER = re.compile(r"part-(\d+)-")
_MOST_TASKS = 1_000_000
_READERS = 8
DAY_S = 86_400.0


class FilesNotSeen(OdradekError):
    """The driver does not find a file that a worker wrote. The message has the file, the worker's host and a remedy."""


def not_seen(file: str, host: str | None, wanted: str, found: object) -> str:
    """Returns the message. ``wanted``: the worker's report of the file. ``found``: the file as the driver sees it."""
    by = "a worker" if host is None else f"the worker on {host}"
    return (
        f"{file}: {by} wrote {wanted}, the driver finds {found or 'nothing'} there. Nothing was added and nothing is "
        "committed. Choose a location that is the same for the driver and all workers: a shared file system, or a URI "
        "such as s3a://… or hdfs://…"
    )


@dataclass(frozen=True)
class StagedFile:
    """A file with its name in the staging folder. ``bad``: rows with a value in column ``error``. ``statistics``:
    minima, maxima and null counts in Delta's form, by column. ``partition``: as in ``FileReport``. ``footer``: that of
    the file, if the workers wrote it."""

    name: str
    size: int
    rows: int
    bad: int
    statistics: Mapping[str, object] = field(default_factory=dict)
    partition: tuple[Any, ...] = ()
    footer: pq.FileMetaData | None = field(default=None, repr=False, compare=False)


class Staging:
    """The staging folders of a table: one for each run of a writer. ``run``: the run that stages now."""

    def __init__(self, root: Location) -> None:
        self.root = root
        self.run = NO_RUN

    def batch(self, batch_id: int) -> str:
        """Returns the name of a micro-batch's folder below ``root``."""
        return f"{self.run.text}/batch-{batch_id}"

    def has_other_runs(self) -> bool:
        """Returns whether there are folders of other runs."""
        return any(name != self.run.text and not name.startswith(PROBE) for name in self.root.children())

    def remove_runs(self, can_publish: Callable[[RunTag], bool], dead: Collection[str] | None) -> None:
        """Removes the folders of runs that can publish no more, and then the root if it is empty.

        Runs of earlier versions have no number: their folders are removed if they are ``dead`` or older than a day, or
        in any case if ``dead`` is None.
        """
        names = self.root.children()
        for name in names:
            run = RunTag.parse(name)
            is_left = can_publish(run) if run is not None else not self._is_dead(name, dead)
            if not is_left:
                self.root.child(name).remove()
        if not self.root.children():
            self.root.remove()

    def _is_dead(self, name: str, dead: Collection[str] | None) -> bool:
        return dead is None or name in dead or self.root.child(name).age_s() > DAY_S


def write_counted(frame: DataFrame, location: Location, partition_by: Sequence[str] = ()) -> list[StagedFile]:
    """Writes rows with Spark into a folder; returns its files. Spark counts the rows while it writes them. Raises
    FilesNotSeen if the files that the driver finds do not have that count.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    spark = frame.sparkSession
    counted = Observation()
    writer = frame.observe(counted, f.count(f.lit(1)).alias("rows")).write.mode("overwrite")
    writer = writer.option("timeZone", "UTC")  # for timestamps in folder names; the default is the session's
    with tagged_jobs(spark) as tag:
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(location.spark_uri)
    found = found_files(location)
    written, seen = int(counted.get["rows"]), sum(file.rows for file in found)
    if written != seen:
        raise FilesNotSeen(_not_seen(location, found, _tasks(spark, tag), written, seen))
    return found


def _not_seen(
    location: Location, found: Sequence[StagedFile], tasks: Sequence[WriteTask], written: int, seen: int
) -> str:
    """Returns the message for the first missing file. The task with the file's number has reported the file's rows."""
    rows: Counter[int] = Counter()
    for file in found:
        number = _NUMBER.match(file.name.rpartition("/")[2])
        if number is not None:
            rows[int(number[1])] += file.rows
    for task in tasks:
        if task.rows != rows[task.number]:
            name = f"part-{task.number:05}-….parquet"
            return not_seen(f"{location.uri}/{name}", task.host, counted(task.rows, "row"), rows[task.number])
    return not_seen(f"{location.uri}/part-….parquet", None, counted(written, "row"), seen)


class WriteTask(NamedTuple):
    """A Spark task that has written rows, and its host."""

    number: int
    host: str
    rows: int


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession) -> Iterator[str]:
    """Tags the Spark jobs that this thread starts while the block runs. Yields the tag."""
    context: JavaObject = spark.sparkContext._jsc.sc()
    tag = f"odradek-{uuid.uuid4().hex}"
    context.addJobTag(tag)
    try:
        yield tag
    finally:
        context.removeJobTag(tag)


def _tasks(spark: SparkSession, tag: str) -> list[WriteTask]:
    """Returns the tasks with rows of the jobs with this tag; an empty list if Spark does not report them."""
    from py4j.protocol import Py4JError

    context: JavaObject = spark.sparkContext._jsc.sc()
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
    except Py4JError:  # without the tasks, the message only lacks the worker's host
        return []
    return [found[key] for key in sorted(found)]


def has_other_attempts(spark: SparkSession, tag: str) -> bool:
    """Returns whether the jobs with this tag had failed or killed task attempts, repeated a stage, or have running
    tasks. Such attempts can leave files. Returns True, too, if Spark does not report the attempts.
    """
    from py4j.protocol import Py4JError

    context: JavaObject = spark.sparkContext._jsc.sc()
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


def found_files(location: Location) -> list[StagedFile]:
    """Returns the Parquet files of a folder that the driver sees; syncs them if the folder is local."""
    if isinstance(location, LocalLocation):
        found = [_look(location.path, file.name, file.size) for file in location.data_files()]
        folders = {folder for file in found for folder in (location.path / file.name).parents}
        for folder in folders - set(location.path.parent.parent.parents):
            sync_directory(folder)
        return found
    assert isinstance(location, HadoopLocation)
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(lambda file: _look_in_hadoop(location, file), location.data_files()))


def _look(root: Path, name: str, size: int) -> StagedFile:
    path = root / name
    try:
        with path.open("rb+") as opened:
            os.fsync(opened.fileno())
        metadata = pq.read_metadata(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise FilesNotSeen(not_seen(str(path), None, "a Parquet file", one_line(error))) from error
    return staged_file(name, size, metadata)


def staged_file(name: str, size: int, footer: pq.FileMetaData) -> StagedFile:
    """Returns a file with the counts in its footer."""
    bad = 0
    columns = [number for number in range(footer.num_columns) if footer.schema.column(number).path == ERROR]
    for number, at in itertools.product(range(footer.num_row_groups), columns):
        column = footer.row_group(number).column(at)
        bad += column.num_values - column.statistics.null_count
    return StagedFile(name, size, footer.num_rows, bad, file_statistics(footer))


def _look_in_hadoop(location: HadoopLocation, file: FileStatus) -> StagedFile:
    rows = bad = 0
    for block in location.footer(file.name).getBlocks():
        rows += block.getRowCount()
        for column in block.getColumns():
            if column.getPath().toDotString() == ERROR:
                bad += column.getValueCount() - column.getStatistics().getNumNulls()
    return StagedFile(file.name, file.size, rows, bad)
