"""Ingest reads topics into a lake table as a consumer group. The table gets each record once, even after a kill.

Spark's checkpoint says which offsets belong to which micro-batch. The table accepts each micro-batch once
(``parquet/table``, ``delta/table``). The group's offsets are committed after the micro-batch is in the table, so group
tools show the progress of the table. If ``odradek groups reset --mark`` rewinds the group, the query follows: it reads
the records from the new offsets on again and adds them to the table again. With ``onGroupReset=follow`` it follows a
rewind by any tool.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.checkpoint import (
    COMMITTED,
    CommitState,
    GroupStart,
    idle_state,
    planned_batch,
)
from odradek.pipelines.commit.state import Added
from odradek.pipelines.files.task_reports import TaskReport
from odradek.pipelines.formats.table_format import check_own_options, format_of
from odradek.pipelines.formats.target import Target
from odradek.pipelines.given_options import OF_A_QUERY, check_options, partition_terms
from odradek.pipelines.loss_notes import LossNotes
from odradek.pipelines.options import IngestOptions, PipelineOptions, check_values, names, said_by_query
from odradek.pipelines.queries import run_query, spark_failures
from odradek.pipelines.sources import Source, TopicLag
from odradek.pipelines.tables.own_plan import OwnPlan
from odradek.pipelines.tables.run_progress import PartitionTime, PartitionTimes, Watch, sum_of
from odradek.pipelines.tables.table import Table, open_table
from odradek.pipelines.values.arguments import about, wrong
from odradek.pipelines.values.formats import Framing, ValueFormat
from odradek.pipelines.values.record_values import Values, read_schema, read_writer_schemas
from odradek.spark.options import parse_options, parse_size
from odradek.spark.progress import progress_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LIMIT = "maxBytesPerTrigger"
_TRIGGER = re.compile(r"^(\d+(?:\.\d+)?)\s*(ms|s|m|h|milliseconds?|seconds?|minutes?|hours?)$", re.ASCII)
_LONGEST_TRIGGER_S = 8760 * 3600
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours"}


@dataclass(frozen=True)
class Ingested:
    """The result of a run. ``rows``: rows added to the table in ``batches`` micro-batches. ``bad``: the rows among
    them with an unreadable value. ``seconds``: the duration without the start of Spark. ``files`` and ``size``: number
    and bytes of the added files. Both are None if this run repeated a micro-batch that an earlier version of odradek
    had added to the table without these counts.
    ``slowest``: the partition that took the workers the most time; None if Spark writes. ``group``: whether the group's
    offsets are those of the table. ``start``: where a new query began; None if it has begun in an earlier run."""

    rows: int
    batches: int
    bad: int
    seconds: float
    files: int | None = 0
    size: int | None = 0
    slowest: PartitionTime | None = None
    group: CommitState = COMMITTED
    start: GroupStart | None = None


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
        check_values(options)
        topics, more = names(options.topics), options.options or {}
        check_options(more, OF_A_QUERY, said_by_query(options, headers=options.headers))
        commits = {name.lower(): value.strip().lower() for name, value in more.items()}.get("commitoffsets")
        if commits == "transaction":
            raise ConfigError(
                "commitOffsets=transaction: a table is written without Kafka transactions, and ingest commits each "
                "micro-batch to the group when the table has it. Leave the option out; `odradek pipeline transform` "
                "writes a topic in transactions"
            )
        if options.fence_commits and commits == "false":
            raise wrong("fence_commits", ": with commitOffsets=false nothing is committed; omit one of them")
        source = Source(options.bootstrap_servers, options.group, topics, options.subscribe_pattern, more)
        target = make_target(options, options.output, options.checkpoint)
        target = dataclasses.replace(target, fence_commits=options.fence_commits)
        return cls(source, target, options.trigger, options.batch_size)

    def check(self) -> int:
        """Checks all that needs no Spark; returns the number of unread offsets. Raises the errors of ``ingest``."""
        if self.trigger is not None:
            parse_trigger(self.trigger)
        with about("batch_size"):
            parse_size("batch_size", self.batch_size)
        self.target.check()
        unread = self.source.check()
        if self.target.letters_to is not None:
            self.source.check_letters(self.target.letters_to)
        return unread


@with_keywords(IngestOptions)
def ingest(options: IngestOptions) -> Ingested:
    """Reads into a table the topics' records that the group has not read yet, each record once.

    The options are those of ``odradek pipeline ingest``; its ``--help`` explains them, and ``IngestOptions`` describes
    the differences. Raises ConfigError, StorageError, UnknownTopic, GroupNotEmpty, BrokerUnreachable, and QueryFailed
    after Spark has started.
    """
    job = Ingest.of(options)
    job.check()

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
    """Does the work of ``ingest``, after ``job.check()``. ``watch`` gets the progress of the run.

    If the table or the checkpoint has a URI, ``get_spark`` is called before the table is opened. Otherwise it is called
    after all checks that need no Spark, and not at all if a run to the present end has nothing to read.
    """
    with contextlib.ExitStack() as stack:
        table, started_spark = stack.enter_context(open_table(job.target, get_spark))
        started = time.monotonic()
        table.check_checkpoint()
        group = None
        if job.trigger is None:
            group = idle_state(job.source, table.checkpoint, table.guard, output=table.location.uri)
        if group is None:
            table.follow_reset(job.source)
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

    def on_reports(reports: Sequence[TaskReport]) -> None:
        times.add(reports)
        losses.show(piece for report in reports for piece in report.lost)

    def add(batch: DataFrame, batch_id: int) -> None:
        planned = planned_batch(table.checkpoint, batch_id)
        plan = table.plan(planned, batch_id)
        if job.target.writer == "workers":
            added = table.add_ranges(batch.sparkSession, options, planned, plan, on_reports)
        else:
            own_plan.check(batch.sparkSession, batch_id)  # the rows are those of the plan in Spark's memory
            added = table.add(batch, plan, (options, planned))
        losses.show()
        seen.append(added)
        advance(added)
        if watch is not None:
            watch.on_micro_batch(added, sum(item.size for item in planned.ranges), lag.after(planned.ends))
        group.commit(planned, plan)

    with contextlib.ExitStack() as stack:
        stack.enter_context(spark_failures("the Spark query stopped"))
        losses = stack.enter_context(contextlib.closing(LossNotes()))
        task_options = {} if watch is None else stack.enter_context(progress_options(spark, watch.on_read))
        source = _with_limits(job, losses.options | task_options)
        options = parse_options(source.all_options(), streaming=True)
        group = stack.enter_context(contextlib.closing(table.group(options)))
        lag = stack.enter_context(contextlib.closing(TopicLag(options)))
        trigger = None if job.trigger is None else parse_trigger(job.trigger)
        started = time.monotonic()
        begun = table.start_of_query(source, group.lookups)
        group.knows(begun.outputs if begun is not None else ())
        stream = source.committed_by_table(group.look).stream(spark)
        table.begin(stream, options.isolation_level)
        table.bind()
        own_plan = OwnPlan.of(table.checkpoint)
        run_query(stream, add, table.checkpoint.spark_uri, trigger=trigger, stop=stop, on_poll=group.retry)
        state = table.final_state(group)
    added = sum_of(seen)
    return Ingested(
        rows=added.rows,
        batches=len(seen),
        bad=added.bad,
        seconds=time.monotonic() - started,
        files=added.files,
        size=added.size,
        slowest=times.slowest,
        group=state,
        start=begun,
    )


def _with_limits(job: Ingest, more: Mapping[str, str]) -> Source:
    """Returns the job's source with the ``more`` options, the headers if the table has them, and the micro-batch
    limit."""
    options = dict(job.source.options)
    options |= job.target.values.source_options(options)
    if job.target.needs_headers:
        options["includeHeaders"] = "true"
    from odradek.spark import compatibility  # here, since it loads PySpark

    # An older PySpark knows no limits and reads all in one micro-batch. There, only a limit that the user has set is
    # passed on, and the source refuses it.
    has_limit = compatibility.version() >= compatibility.READ_LIMITS or job.batch_size != Ingest.batch_size
    if has_limit and LIMIT.lower() not in {name.lower() for name in options}:
        options[LIMIT] = job.batch_size
    return dataclasses.replace(job.source, options=options | dict(more))


def make_target(options: PipelineOptions, output: str | Path | None, checkpoint: str | Path | None = None) -> Target:
    """Returns the target, with names parsed, schema files read, and the place in a catalogue looked up. Raises
    ConfigError, StorageError."""
    check_values(options)
    columns_of_parts = partition_terms(options.partition_by)
    chosen = format_of(options.table_format)
    check_own_options(chosen, options)
    place = chosen.place(options, output)
    values = Values(
        format=ValueFormat(options.value_format),
        schema=None if options.schema is None else read_schema(options.schema),
        framing=Framing(options.framing),
        writer_schemas=read_writer_schemas(options.writer_schemas or {}),
        flat=options.flat,
        headers=options.headers,
        keep_raw=options.keep_raw,
    )
    with about("task_size"):
        task_bytes = parse_size("task_size", options.task_size)
    return Target(
        output=str(output) if place is None else place.folder,
        place=place,
        table_format=options.table_format,
        values=values,
        partition_by=columns_of_parts,
        checkpoint=None if checkpoint is None else str(checkpoint),
        on_bad=options.on_bad,
        files_per_batch=options.files_per_batch,
        storage_options=options.storage_options or {},
        writer=options.writer,
        task_bytes=task_bytes,
        single_driver=options.single_driver,
    )


def start_spark(master: str, config: Mapping[str, str] | None = None, target: Target | None = None) -> SparkSession:
    """Returns a session for a pipeline. Under ``spark-submit`` this is the prepared session with its own master.
    ``target``: the table to write, if there is one.

    Raises ConfigError if PySpark is missing, SessionError.
    """
    import importlib.util

    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError(f"pipelines need PySpark: {command_of('spark')}")
    from odradek.spark.session import session

    # If workers write, no row passes through Java.
    quick_start = target is not None and target.writer == "workers"
    return session("odradek pipeline", master=master, config=config, quick_start=quick_start, console=False)


def parse_trigger(text: str) -> str:
    """Returns an interval in Spark's form for ``10 seconds``, ``10s``, ``500ms``, ``2m``. Raises ConfigError."""
    found = _TRIGGER.match(text.strip().lower())
    if found is None:
        raise wrong("trigger", f" {text!r}: expected an interval such as 10s, 500ms or 5m")
    amount, unit = found.groups()
    seconds = float(amount) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit if unit in _UNITS else _short_unit(unit)]
    if not 0.001 <= seconds <= _LONGEST_TRIGGER_S:
        raise wrong("trigger", f" {text!r}: expected an interval from 1ms to 8760h, such as 10s or 5m")
    return f"{round(seconds * 1000)} milliseconds"


def _short_unit(unit: str) -> str:
    return "ms" if unit.startswith("milli") else unit[0]
