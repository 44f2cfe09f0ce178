"""Ingest reads topics into a lake table as a consumer group. The table gets each record once, even after a kill.

Spark's checkpoint says which offsets belong to which micro-batch. The table accepts each micro-batch once (``lake``,
``delta``). The group's offsets are committed after the micro-batch is in the table, so group tools show the progress of
the table. If ``odradek groups reset --mark`` rewinds the group, the query follows: it reads the records from the new
offsets on again and adds them to the table again. With ``onGroupReset=follow`` it follows a rewind by any tool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError, StorageError
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.batch_rows import RangeRows, SparkRows, check_decoder, offsets_digest_of
from odradek.pipelines.checkpoint import (
    COMMITTED,
    CommitState,
    PlannedBatch,
    commit_group,
    idle_state,
    planned_batch,
)
from odradek.pipelines.decoders import Decoder, decoder_for
from odradek.pipelines.delta import DeltaTable, check_installed
from odradek.pipelines.filesystems import LocalLocation, Location, is_uri, location_of
from odradek.pipelines.lake import Added, ParquetTable, check_spark_sees, query_id
from odradek.pipelines.options import IngestOptions, PipelineOptions, check_values, names
from odradek.pipelines.partition_folders import check_partition_columns
from odradek.pipelines.queries import run_query, spark_failures
from odradek.pipelines.run_progress import PartitionTime, PartitionTimes, Watch, sum_of
from odradek.pipelines.runs import RUNS, Run
from odradek.pipelines.sources import Source, TopicLag
from odradek.pipelines.staging import has_other_attempts, tagged_jobs
from odradek.pipelines.table_folders import folder_of, log_options
from odradek.pipelines.table_state import (
    BATCHES,
    STATE,
    TableLayout,
    begin_table,
    bind,
    check_checkpoint,
    check_not_foreign,
    check_table,
)
from odradek.pipelines.task_reports import TaskReport
from odradek.pipelines.value_formats import Framing, ValueFormat
from odradek.pipelines.value_reader import ERROR
from odradek.pipelines.values import RECORD_COLUMNS, BadRecords, Values, read_schema
from odradek.spark.options import ReadOptions, parse_options, parse_size
from odradek.spark.progress import progress_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LIMIT = "maxBytesPerTrigger"
_TRIGGER = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|milliseconds?|seconds?|minutes?|hours?)$", re.ASCII)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True)
class Target:
    """The location and the format of the table. ``on_bad``: ``keep`` puts unreadable values into ``raw``, ``fail`` ends
    the query. ``task_bytes``: the most data, as stored in a topic, that one task of the workers reads.
    """

    output: str
    table_format: str = "parquet"
    values: Values = field(default_factory=Values)
    partition_by: tuple[str, ...] = ()
    checkpoint: str | None = None
    on_bad: str = "keep"
    files_per_batch: int | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict)
    writer: str = PipelineOptions.writer
    task_bytes: int = 256 << 20

    def check(self) -> None:
        """Checks the options. Raises ConfigError."""
        if self.table_format == "delta":
            check_installed()
        if not self.output.strip():
            raise ConfigError("the output is empty: give a directory, or a URI that Spark can write to")
        self.values.check()

    def shape(self) -> TableLayout:
        values = self.values
        return TableLayout(
            table_format=self.table_format,
            value_format=str(values.format),
            schema=values.schema,
            framing=str(values.framing),
            flat=values.flat,
            headers=values.headers,
            keep_raw=values.keep_raw,
            partition_by=self.partition_by,
        )


@dataclass(frozen=True)
class Ingested:
    """The result of a run. ``rows``: rows added to the table in ``batches`` micro-batches. ``bad``: the rows among
    them with an unreadable value. ``seconds``: the duration without the start of Spark. ``files`` and ``size``: number
    and bytes of the added files. Both are None if this run repeated a micro-batch that an earlier version of odradek
    had added to the table without these counts.
    ``slowest``: the partition that took the workers the most time; None if Spark writes. ``group``: whether the group's
    offsets are those of the table."""

    rows: int
    batches: int
    bad: int
    seconds: float
    files: int | None = 0
    size: int | None = 0
    slowest: PartitionTime | None = None
    group: CommitState = COMMITTED


class Table:
    """An open table: its location, its checkpoint and its writer. Only one run at a time can open it.

    ``begin`` writes the table's own description (``table_state``), unless the table already has one.
    """

    def __init__(self, target: Target, spark: SparkSession | None) -> None:
        self.target = target
        self._decoder: Decoder | None = None
        self._columns: StructType | None = None
        self.location = location_of(target.output, spark)
        self.location.make()
        check_not_foreign(self.location, target.shape())  # before anything is written to this location
        self._locked = contextlib.ExitStack()
        with contextlib.ExitStack() as locked:
            state = self.location.child(STATE)
            run = self._run = Run(state.child(RUNS))
            run.begin()  # before ``_lock``: the error of ``begin`` names the other run
            locked.callback(run.end)
            locked.callback(_lock(self.location).close)
            staging = self.location.sibling(".", ".staging") or state.child("staging")
            self._batches = state.child(BATCHES)
            self.checkpoint: Location = state.child("checkpoint")
            if target.checkpoint is not None:
                self.checkpoint = location_of(target.checkpoint, spark)
            self._writer: ParquetTable | DeltaTable
            if target.table_format == "delta":
                options = log_options(self.location, target.storage_options)
                self._writer = DeltaTable(self.location, staging, target.partition_by, options, run.id)
            else:
                self._writer = ParquetTable(self.location, self._batches, staging, target.partition_by, run.id)
            locked.callback(self._writer.close)
            self._id = check_table(self.location, target.shape(), self._log_has_records)
            self._writer.prepare(run.dead)
            run.forget_dead()
            self._locked = locked.pop_all()

    def _log_has_records(self) -> bool:
        return isinstance(self._writer, DeltaTable) and self._writer.has_records()

    def check_checkpoint(self) -> None:
        """Raises ConfigError if the checkpoint belongs to another table."""
        check_checkpoint(self.checkpoint, self.location, self._id, has_batches=self._writer.has_batches())

    def begin(self, records: DataFrame) -> None:
        """Makes the last checks before rows are written. Then writes the table's description, if it has none.
        Raises ConfigError, StorageError.
        """
        frame = self.frame(records)
        self._writer.check(frame)
        if self.target.writer == "workers":
            zone = records.sparkSession.conf.get("spark.sql.session.timeZone") or "UTC"
            self._decoder, self._columns = decoder_for(self.target.values, zone), frame.schema
            check_decoder(self._decoder, self._columns)
            check_partition_columns(self._decoder.schema, self.target.partition_by)
            folder_of(self.location)
        self._id = begin_table(self.location, self.target.shape(), self._log_has_records)

    def bind(self) -> None:
        """Marks the checkpoint as that of this table. ``begin`` must have run before. Raises ConfigError."""
        assert self._id is not None
        bind(self.checkpoint, self.location, self._id, has_batches=self._writer.has_batches())

    def frame(self, records: DataFrame) -> DataFrame:
        """Returns the records with the table's columns. Raises ConfigError."""
        frame = self.target.values.table(records)
        missing = [name for name in self.target.partition_by if name not in frame.columns]
        if missing:
            raise ConfigError(f"partition by {missing[0]}: the table's columns are {', '.join(frame.columns)}")
        return frame

    def add(
        self, batch: DataFrame, batch_id: int, query: str | None = None, planned: PlannedBatch | None = None
    ) -> Added:
        """Adds a micro-batch to the table; Spark writes its records. ``planned`` has their ranges. Raises ConfigError,
        StorageError, BadRecords, FilesNotSeen.
        """
        frame = self.frame(batch)
        if self.target.files_per_batch is not None:
            frame = frame.coalesce(self.target.files_per_batch)
        check = _refuse_bad if self.target.on_bad == "fail" else None
        offsets_digest = None if planned is None else offsets_digest_of(planned.ranges)
        with self._note_other_attempts(batch.sparkSession):
            return self._writer.add(
                SparkRows(frame, check, offsets_digest), batch_id, query or query_id(self.checkpoint)
            )

    def add_ranges(
        self,
        spark: SparkSession,
        options: ReadOptions,
        planned: PlannedBatch,
        batch_id: int,
        *,
        query: str | None = None,
        on_reports: Callable[[Sequence[TaskReport]], None] = lambda reports: None,
    ) -> Added:
        """Adds a micro-batch to the table; Spark's workers read its ranges and write the rows. ``on_reports`` is called
        with the reports of the tasks. Raises the errors of ``add``, and RangesNotRead.
        """
        assert self._decoder is not None
        assert self._columns is not None
        rows = RangeRows(
            spark,
            options,
            self._decoder,
            self._columns,
            planned.ranges,
            planned.ids,
            planned.epochs,
            task_bytes=self.target.task_bytes,
            most=self.target.files_per_batch,
            fail_on_bad=self.target.on_bad == "fail",
            on_reports=on_reports,
        )
        with self._note_other_attempts(spark):
            return self._writer.add(rows, batch_id, query or query_id(self.checkpoint))

    @contextlib.contextmanager
    def _note_other_attempts(self, spark: SparkSession) -> Iterator[None]:
        """Marks this run if a task may still write after the run, so that later runs look for the run's leftover files.

        Such a task belongs to a failed micro-batch, or is another attempt of a task that succeeded.
        """
        had_leftovers, self._run.may_have_leftovers = self._run.may_have_leftovers, True
        with tagged_jobs(spark) as tag:
            yield
            self._run.may_have_leftovers = had_leftovers or has_other_attempts(spark, tag)

    def find_added(self, query: str) -> Added | None:
        """Returns the counts of the replay with this id; None if the table does not have it."""
        return self._writer.find_added(0, query)

    def close(self) -> None:
        self._locked.close()


@dataclass(frozen=True)
class Ingest:
    """An ingest job. ``trigger`` None: one run to the present end of the topics. ``batch_size``: the most data, as
    stored in the topics, that one micro-batch reads.
    """

    source: Source
    target: Target
    trigger: str | None = None
    batch_size: str = IngestOptions.batch_size

    @classmethod
    def of(cls, options: IngestOptions) -> Ingest:
        """Returns the job of the options. Raises ConfigError."""
        topics, more = names(options.topics), options.options or {}
        if {name.lower(): value.strip().lower() for name, value in more.items()}.get("commitoffsets") == "transaction":
            raise ConfigError(
                "commitOffsets=transaction: a table is written without Kafka transactions, and ingest commits each "
                "micro-batch to the group when the table has it. Leave the option out; `odradek pipeline transform` "
                "writes a topic in transactions"
            )
        source = Source(options.bootstrap_servers, options.group, topics, options.subscribe_pattern, more)
        target = make_target(options, options.output, options.checkpoint)
        return cls(source, target, options.trigger, options.batch_size)

    def check(self) -> int:
        """Checks all that needs no Spark; returns the number of unread offsets. Raises the errors of ``ingest``."""
        if self.trigger is not None:
            parse_trigger(self.trigger)
        parse_size("batch size", self.batch_size)
        self.target.check()
        return self.source.check()


@with_keywords(IngestOptions)
def ingest(options: IngestOptions) -> Ingested:
    """Reads into a table the topics' records that the group has not read yet, each record once.

    The options are those of ``odradek pipeline ingest``; its ``--help`` explains them, and ``IngestOptions`` describes
    the differences. Raises ConfigError, StorageError, UnknownTopic, GroupNotEmpty, BrokerUnreachable, and QueryFailed
    after Spark has started.
    """
    job = Ingest.of(options)

    def get_spark() -> SparkSession:
        return options.spark or start_spark(options.master, options.conf, job.target)

    return run_ingest(job, get_spark, options.stop, options.advance)


def run_ingest(
    job: Ingest,
    get_spark: Callable[[], SparkSession],
    stop: threading.Event | None = None,
    advance: Callable[[Added], None] = lambda added: None,
    watch: Watch | None = None,
) -> Ingested:
    """Does the work of ``ingest``. ``watch`` gets the progress of the run.

    If the table or the checkpoint has a URI, ``get_spark`` is called before the table is opened. Otherwise it is called
    after all checks that need no Spark, and not at all if a run to the present end has nothing to read.
    """
    job.check()
    with contextlib.ExitStack() as stack:
        table, started_spark = stack.enter_context(open_table(job.target, get_spark))
        started = time.monotonic()
        table.check_checkpoint()
        group = idle_state(job.source, table.checkpoint) if job.trigger is None else None
        if group is None:
            done = _run_query(job, table, started_spark(), stop, (advance, watch))
        else:
            done = Ingested(rows=0, batches=0, bad=0, seconds=time.monotonic() - started, group=group)
        if watch is not None:
            watch.on_end(done.group)
        return done


def _run_query(
    job: Ingest,
    table: Table,
    spark: SparkSession,
    stop: threading.Event | None,
    listeners: tuple[Callable[[Added], None], Watch | None],
) -> Ingested:
    advance, watch = listeners
    seen: list[Added] = []
    times = PartitionTimes()

    def add(batch: DataFrame, batch_id: int) -> None:
        planned = planned_batch(table.checkpoint, batch_id)
        if job.target.writer == "workers":
            added = table.add_ranges(batch.sparkSession, options, planned, batch_id, on_reports=times.add)
        else:
            added = table.add(batch, batch_id, planned=planned)
        seen.append(added)
        advance(added)
        if watch is not None:
            watch.on_micro_batch(added, sum(item.size for item in planned.ranges), lag.after(planned.ends))

    with contextlib.ExitStack() as stack:
        stack.enter_context(spark_failures("the Spark query stopped"))
        task_options = {} if watch is None else stack.enter_context(progress_options(spark, watch.on_read))
        source = _with_limits(job, task_options)
        options = parse_options(source.all_options(), streaming=True)
        lag = stack.enter_context(contextlib.closing(TopicLag(options)))
        trigger = None if job.trigger is None else parse_trigger(job.trigger)
        started = time.monotonic()
        stream = source.stream(spark)
        table.begin(stream)
        table.bind()
        run_query(stream, add, table.checkpoint.spark_uri, trigger=trigger, stop=stop)
        # The planner runs in another process. It has committed each micro-batch, or failed to. So check the group here.
        group = commit_group(source, table.checkpoint)
    added = sum_of(seen)
    return Ingested(
        rows=added.rows,
        batches=len(seen),
        bad=added.bad,
        seconds=time.monotonic() - started,
        files=added.files,
        size=added.size,
        slowest=times.slowest,
        group=group,
    )


def _with_limits(job: Ingest, more: Mapping[str, str]) -> Source:
    """Returns the job's source with the ``more`` options, the headers if the table has them, and the micro-batch
    limit."""
    options = dict(job.source.options)
    if job.target.values.headers:
        options["includeHeaders"] = "true"
    from odradek.spark import compatibility  # here, since it loads PySpark

    # An older PySpark knows no limits and reads all in one micro-batch. There, only a limit that the user has set is
    # passed on, and the source refuses it.
    has_limit = compatibility.version() >= compatibility.READ_LIMITS or job.batch_size != Ingest.batch_size
    if has_limit and LIMIT.lower() not in {name.lower() for name in options}:
        options[LIMIT] = job.batch_size
    return dataclasses.replace(job.source, options=options | dict(more))


@contextlib.contextmanager
def open_table(
    target: Target, get_spark: Callable[[], SparkSession]
) -> Iterator[tuple[Table, Callable[[], SparkSession]]]:
    """Yields the table and a function that returns a Spark session which sees the table; closes the table at the end.
    Starts Spark only when that function is called, or at once if the table or the checkpoint has a URI.
    """
    far = is_uri(target.output) or (target.checkpoint is not None and is_uri(target.checkpoint))
    spark = get_spark() if far else None
    table = Table(target, spark)

    def seeing() -> SparkSession:
        running = spark or get_spark()
        if isinstance(table.location, LocalLocation):
            check_spark_sees(running, table.location.path)
        return running

    try:
        yield table, seeing
    finally:
        table.close()


def make_target(options: PipelineOptions, output: str | Path, checkpoint: str | Path | None = None) -> Target:
    """Returns the target, with names parsed and schema files read. Raises ConfigError."""
    check_values(options)
    values = Values(
        format=ValueFormat(options.value_format),
        schema=None if options.schema is None else read_schema(options.schema),
        framing=Framing(options.framing),
        writer_schemas={number: read_schema(text) for number, text in (options.writer_schemas or {}).items()},
        flat=options.flat,
        headers=options.headers,
        keep_raw=options.keep_raw,
    )
    return Target(
        output=str(output),
        table_format=options.table_format,
        values=values,
        partition_by=names(options.partition_by),
        checkpoint=None if checkpoint is None else str(checkpoint),
        on_bad=options.on_bad,
        files_per_batch=options.files_per_batch,
        storage_options=options.storage_options or {},
        writer=options.writer,
        task_bytes=parse_size("task size", options.task_size),
    )


def start_spark(master: str, config: Mapping[str, str] | None = None, target: Target | None = None) -> SparkSession:
    """Returns a session for a pipeline. Under ``spark-submit`` this is the prepared session with its own master.
    ``target``: the table to write, if there is one.

    Raises ConfigError if PySpark is missing, SessionError.
    """
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("pipelines need PySpark: pip install 'odradek[spark]'")
    from odradek.spark.session import session

    # If workers write, no row passes through Java.
    quick_start = target is not None and target.writer == "workers"
    return session("odradek pipeline", master=master, config=config, quick_start=quick_start)


def parse_trigger(text: str) -> str:
    """Returns an interval in Spark's form for ``10 seconds``, ``10s``, ``500ms``, ``2m``. Raises ConfigError."""
    found = _TRIGGER.match(text.strip().lower())
    if found is None:
        raise ConfigError(f"trigger {text!r}: expected an interval such as 10s, 500ms or 5m")
    amount, unit = found.groups()
    seconds = float(amount) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit if unit in _UNITS else _short_unit(unit)]
    return f"{round(seconds * 1000)} milliseconds"


def _short_unit(unit: str) -> str:
    return "ms" if unit.startswith("milli") else unit[0]


def _refuse_bad(staged: DataFrame) -> None:
    """Raises BadRecords with the first value that could not be read."""
    if ERROR not in staged.columns:
        return
    bad = staged.where(staged[ERROR].isNotNull()).select(*RECORD_COLUMNS[:3], ERROR)
    first = bad.orderBy(*RECORD_COLUMNS[:3]).first()
    if first is not None:
        raise BadRecords(
            f"{first.topic}-{first.partition}, offset {first.offset}: its value cannot be read: {first.error}"
            " (to keep such values in the column raw, set on bad to 'keep')"
        )


def _lock(location: Location) -> Any:
    """Locks a local table for one writer on this machine. The lock ends with the process. Raises StorageError.

    There is no lock for a table with a URI, and none on Windows.
    """
    if not isinstance(location, LocalLocation):
        return contextlib.ExitStack()
    if sys.platform == "win32":
        return contextlib.ExitStack()
    import fcntl

    path = location.path / STATE / "lock"
    try:
        path.parent.mkdir(exist_ok=True)
        held = path.open("a+")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StorageError(f"another pipeline is writing to {location.uri}") from error
    except OSError as error:
        raise StorageError(f"{location.uri} cannot be used: {error.strerror}") from error
    return held
