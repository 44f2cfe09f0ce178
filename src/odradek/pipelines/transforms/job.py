"""Transform: topics to a topic, exactly once, through a SQL query or a Python function.

It is a streaming query: each micro-batch is one transaction with the rows, the offsets of the source's group and the
number of the micro-batch (``spark/driver/micro_batch_transactions``). Spark's checkpoint says which offsets belong to
which micro-batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.client.admin import Admin
from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.checkpoint import (
    check_readable,
    commits_without_offsets,
    newest_done,
    newest_number,
    planned_at_ms,
    planned_batch,
    query_id,
    remove_sums_without_files,
    remove_unfinished_plan,
    text_in,
)
from odradek.pipelines.commit.state import Added
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.checkpoint_mark import TABLE_MARK, check_checkpoint_folder
from odradek.pipelines.formats.target import values_of
from odradek.pipelines.group_commit import (
    COMMITTED,
    CommitState,
    commit_group,
    drop_overruled_plan,
    idle_state,
    overtaken_by,
)
from odradek.pipelines.loss_notes import LossNotes
from odradek.pipelines.option_checks import OF_A_QUERY, check_options, check_place
from odradek.pipelines.options import TransformOptions, check_values, names, said_by_query
from odradek.pipelines.queries import LIMIT, parse_trigger, run_query, spark_failures, start_spark
from odradek.pipelines.sources import Source, TopicLag, check_topics, with_short_timeouts
from odradek.pipelines.tables.own_plan import OwnPlan
from odradek.pipelines.tables.run_progress import Watch
from odradek.pipelines.topic_writer import sending_options
from odradek.pipelines.transforms.step import TransformStep, check_one_read, check_rows, step_of
from odradek.pipelines.values.arguments import about
from odradek.spark.driver.micro_batch_number import group_of_numbers
from odradek.spark.driver.micro_batch_transactions import is_unwritten
from odradek.spark.options import parse_options, parse_size
from odradek.spark.progress import progress_options
from odradek.spark.writes.write_options import parse_write_options
from odradek.text.table_paths import check_uri, is_uri, local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OURS = {"commitOffsets": "transaction", "kafka.isolation.level": "read_committed", "includeHeaders": "true"}
"""Options of the source. Records of aborted transactions are read only if the user sets another isolation level."""


@dataclass(frozen=True)
class Transformed:
    """The result of a run: ``rows`` written in ``batches`` transactions. ``seconds``: without the start of Spark.
    ``group``: whether the group's offsets are those of the written rows."""

    rows: int
    batches: int
    seconds: float
    group: CommitState = COMMITTED


@dataclass(frozen=True)
class Transform:
    """A transform to run. ``writing`` and ``first_batch``: the options of ``transactional_writer``. ``trigger`` None:
    one run to the present end of the topics."""

    source: Source
    step: TransformStep
    topic: str
    writing: Mapping[str, str]
    checkpoint: str
    trigger: str | None = None
    first_batch: int | None = None

    @classmethod
    def of(cls, options: TransformOptions) -> Transform:
        """Returns the job of the options. Raises ConfigError."""
        check_values(options)
        values = values_of(options, headers=True)
        values.check()
        step = step_of(values, options.on_bad, options.sql, options.function)
        reading = _source_options(options)
        reading |= values.source_options(reading)
        source = Source(
            options.bootstrap_servers, options.group, names(options.topics), options.subscribe_pattern, reading
        )
        writing = sending_options(
            options.to_topic,
            source.all_options(),
            options.producer_options or {},
            with_times=options.keep_timestamps,
            in_transactions=True,
        )
        check_place("checkpoint", str(options.checkpoint))
        checkpoint = str(options.checkpoint)
        with about("checkpoint"):
            check_uri("checkpoint", checkpoint, workers=False)
        return cls(source, step, options.to_topic, writing, checkpoint, options.trigger, options.first_batch)

    def check(self) -> int:
        """Checks all that needs no Spark; returns the number of unread offsets. Raises the errors of ``transform``."""
        if self.trigger is not None:
            parse_trigger(self.trigger)
        if not is_uri(self.checkpoint):
            check_checkpoint_folder(local_path(self.checkpoint))
        config = parse_write_options(self.writing).client
        with Admin(with_short_timeouts(config)) as admin:
            check_topics(admin, [self.topic])
            read = check_topics(admin, self.source.topics, self.source.pattern)
        if self.topic in read:
            raise ConfigError(f"topic {self.topic} is read and written: each run would read its own rows again")
        return self.source.check()


def _source_options(options: TransformOptions) -> dict[str, str]:
    """Returns the user's options of the source, with our defaults for options that are not set. Raises ConfigError."""
    given = dict(options.options or {})
    check_options(given, OF_A_QUERY, said_by_query(options, headers=True))
    lowered = {name.lower(): value for name, value in given.items()}
    if lowered.get("commitoffsets", "transaction").lower() != "transaction":
        raise ConfigError(
            "commitOffsets: a transform commits the group's offsets in the transactions of its rows: leave the option "
            "out"
        )
    with about("batch_size"):
        parse_size("batch_size", options.batch_size)
    ours = _OURS | {LIMIT: options.batch_size}
    return {name: value for name, value in ours.items() if name.lower() not in lowered} | given


@with_keywords(TransformOptions)
def transform(options: TransformOptions) -> Transformed:
    """Reads the topics' records that the group has not read yet, and makes rows of them with a SQL query or a function.

    The rows are written to a topic, each exactly once for consumers with read_committed.

    The options are those of ``odradek pipeline transform``; its ``--help`` explains them, and ``TransformOptions``
    describes the differences. Raises ConfigError, StorageError, UnknownTopic, GroupNotEmpty, BrokerUnreachable, and
    QueryFailed after Spark has started.
    """
    job = Transform.of(options)

    def get_spark() -> SparkSession:
        return options.spark or start_spark(options.master, options.conf)

    return run_transform(job, get_spark, options.stop, options.advance)


def run_transform(
    job: Transform,
    get_spark: Callable[[], SparkSession],
    stop: threading.Event | None = None,
    advance: Callable[[int], None] = lambda rows: None,
    watch: Watch | None = None,
) -> Transformed:
    """Does the work of ``transform``. ``watch`` gets the progress of the run.

    ``get_spark`` is called after the checks that need no Spark. It is not called if the checkpoint is a local path and
    a run to the present end has nothing to read.
    """
    job.check()
    spark = get_spark() if is_uri(job.checkpoint) else None
    started = time.monotonic()
    checkpoint = location_of(job.checkpoint, spark)
    if checkpoint.has(TABLE_MARK):
        raise ConfigError(
            f"the checkpoint {job.checkpoint} belongs to the query of a table: give the transform a folder of its own"
        )
    committed = _committed(job)
    newest_commit = newest_done(checkpoint)
    newest = newest_number(checkpoint)
    if lacks := commits_without_offsets(checkpoint, newest_commit, newest):
        raise StorageError(
            f"{lacks}. Nothing was sent. Restore the checkpoint, or use a new one that starts after the records in the "
            "topic"
        )
    check_readable(checkpoint, newest_commit, newest)
    if older := overtaken_by(checkpoint, committed, newest_commit, newest):
        raise StorageError(
            f"{older}. Nothing was sent. Restore the checkpoint, or use a new --checkpoint, which begins at the offsets"
            " of the group: each transaction has committed them with its rows"
        )
    _check_topic(job, checkpoint, newest_commit)
    group = idle_state(job.source, checkpoint) if job.trigger is None else None
    if group is None:
        _follow_reset(job, checkpoint, newest_commit, newest)
        done = _run_query(job, checkpoint, spark or get_spark(), stop, (advance, watch))
    else:
        done = Transformed(0, 0, time.monotonic() - started, group)
    if watch is not None:
        watch.on_end(done.group)
    return done


def _committed(job: Transform) -> Mapping[TopicPartition, OffsetAndMetadata]:
    """Returns the commits of the job's group. Raises OdradekError."""
    options = parse_options(job.source.all_options(), streaming=True)
    with Admin(with_short_timeouts(options.client)) as admin:
        return admin.list_group_offsets(job.source.group)


def _follow_reset(job: Transform, checkpoint: Location, done: int | None, newest: int | None) -> None:
    """Removes the plan of a micro-batch that is not in the topic, if the group was reset since: otherwise its rows
    would be written before the query follows the reset. ``done``, ``newest``: the newest micro-batches. Raises
    StorageError, OdradekError."""
    if newest is None or done == newest or job.first_batch is not None:
        return
    writing, begun_ms = parse_write_options(job.writing), planned_at_ms(checkpoint, newest)
    if not is_unwritten(writing, query_id(checkpoint), newest, begun_ms):
        return
    plan = text_in(checkpoint, f"offsets/{newest}")
    if plan is None or not drop_overruled_plan(job.source, checkpoint):
        return
    # A paused driver that has begun since the look may have compared its plan before the removal. If it has written its
    # rows, the plan stays; if not, it is fenced now.
    if not is_unwritten(writing, query_id(checkpoint), newest, begun_ms):
        checkpoint.child("offsets").create(str(newest), plan)


def _check_topic(job: Transform, checkpoint: Location, done: int | None) -> None:
    """Raises ConfigError if the micro-batches of the checkpoint are in another topic: the job's topic would begin in
    the middle. ``done``: the number of the last one."""
    if job.first_batch is not None or newest_number(checkpoint) is None:
        return
    query = query_id(checkpoint)
    with Admin(with_short_timeouts(parse_write_options(job.writing).client)) as admin:
        topics = sorted({tp.topic for tp in admin.list_group_offsets(group_of_numbers(query))})
    if topics and job.topic not in topics:
        raise ConfigError(
            f"the micro-batches of the checkpoint {job.checkpoint} are in topic {', '.join(topics)}, not in {job.topic}"
            ": repeat that topic, or begin with a new --checkpoint and a new --group. To go on in the new topic "
            f"without the rows that are in {topics[0]}, pass --first-batch {0 if done is None else done + 1}"
        )


def _run_query(
    job: Transform,
    checkpoint: Location,
    spark: SparkSession,
    stop: threading.Event | None,
    listeners: tuple[Callable[[int], None], Watch | None],
) -> Transformed:
    from odradek.spark.driver.micro_batch_transactions import TransactionalWriter

    advance, watch = listeners
    seen: list[int] = []
    own_plan = OwnPlan.of(checkpoint)
    write = TransactionalWriter(parse_write_options(job.writing), job.first_batch, own_plan.check)

    def add(batch: DataFrame, batch_id: int) -> None:
        write(batch, batch_id)
        losses.show()
        rows = write.last_rows
        seen.append(rows)
        advance(rows)
        if watch is not None:
            planned = planned_batch(checkpoint, batch_id)
            watch.on_micro_batch(Added(rows, 0), sum(item.size for item in planned.ranges), lag.after(planned.ends))

    with contextlib.ExitStack() as stack:
        stack.callback(write.close)
        stack.enter_context(spark_failures("the Spark query stopped"))
        losses = stack.enter_context(contextlib.closing(LossNotes()))
        task_options = {} if watch is None else stack.enter_context(progress_options(spark, watch.on_read))
        options = dict(job.source.options) | losses.options | task_options
        source = dataclasses.replace(job.source, options=options)
        lag = stack.enter_context(contextlib.closing(TopicLag(parse_options(source.all_options(), streaming=True))))
        trigger = None if job.trigger is None else parse_trigger(job.trigger)
        started = time.monotonic()
        rows = job.step.rows(source.stream(spark))
        check_rows(rows, write.options)
        check_one_read(rows)
        remove_unfinished_plan(checkpoint)
        remove_sums_without_files(checkpoint)
        run_query(rows, add, checkpoint.spark_uri, trigger=trigger, stop=stop)
        group = commit_group(source, checkpoint)
    return Transformed(sum(seen), len(seen), time.monotonic() - started, group)
