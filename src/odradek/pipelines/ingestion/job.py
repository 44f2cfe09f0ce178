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
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.checkpoint import planned_batch
from odradek.pipelines.commit.state import Added
from odradek.pipelines.files.task_reports import TaskReport
from odradek.pipelines.formats.target import Target
from odradek.pipelines.group_commit import COMMITTED, CommitState, GroupStart, idle_state
from odradek.pipelines.loss_notes import LossNotes
from odradek.pipelines.option_checks import OF_A_QUERY, check_options
from odradek.pipelines.options import IngestOptions, check_values, names, said_by_query
from odradek.pipelines.queries import LIMIT, parse_trigger, run_query, spark_failures, start_spark
from odradek.pipelines.sources import Source, TopicLag
from odradek.pipelines.tables.own_plan import OwnPlan
from odradek.pipelines.tables.run_progress import PartitionTime, PartitionTimes, Watch, sum_of
from odradek.pipelines.tables.table import Table, open_table
from odradek.pipelines.values.arguments import about, wrong
from odradek.spark.options import parse_options, parse_size
from odradek.spark.progress import progress_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        target = Target.of(options, options.output, options.checkpoint)
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
        return options.spark or start_spark(options.master, options.conf, job.target.writer)

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
        table.check_columns()
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
