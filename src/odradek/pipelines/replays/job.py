"""Replay reads ranges of topics a second time, into a table or into a topic.

A table gets each replay once. A topic gets each record at least once, or exactly once in transactions
(``replay_transactions``). The command can show the ranges without reading records. A replay is identified by its
options as they are given. The table notes the ranges that its runs have added, so a later run with the same options
adds only what they have not added, and a killed run can simply be repeated.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.core.counts import span
from odradek.core.errors import ConfigError
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.commit.state import BatchPlan, covers_of, ends_of, overlap, topic_of
from odradek.pipelines.formats.table_format import format_of
from odradek.pipelines.formats.target import Target
from odradek.pipelines.option_checks import OF_A_REPLAY, check_options
from odradek.pipelines.options import PipelineOptions, ReplayOptions, check_values, names
from odradek.pipelines.queries import plain_timestamps, spark_failures, start_spark
from odradek.pipelines.ranges import subtract
from odradek.pipelines.replays.input import Replay, Replayed, ReplayRanges, Selection, find
from odradek.pipelines.replays.log_checks import check_deleted, check_replayed_logs
from odradek.pipelines.replays.topic import ORIGIN_COLUMNS, ReplayTopic, find_target, records_to_send
from odradek.pipelines.replays.transactions import into_topic_once
from odradek.pipelines.sources import check_letters
from odradek.pipelines.tables.table import Table, open_table
from odradek.pipelines.values.arguments import about
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.options import ReadOptions, parse_options, parse_size
from odradek.spark.progress import progress_options
from odradek.text.table_paths import is_uri, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("odradek.pipelines")
_ISOLATION = "kafka.isolation.level"
_OF_A_TABLE = tuple(
    one.name
    for one in dataclasses.fields(PipelineOptions)
    if one.name not in ("bootstrap_servers", "options", "master", "conf", "spark")
)
"""The options that have an effect on tables only."""


def run_replay(
    job: Replay, get_spark: Callable[[], SparkSession], advance: Callable[[int], None] = lambda offsets: None
) -> Replayed:
    """Runs a replay. ``advance`` is called with the number of offsets read since its last call, also from another
    thread. At the end the sum of these numbers is ``job.found.offsets``.

    Raises ConfigError, StorageError, UnknownTopic, BadRecords, QueryFailed. If a topic gets each record exactly
    once, also ReplayRefused, ReplayFenced.
    """
    count = _Count(advance)
    is_continued = _may_continue(job.into) and (isinstance(job.into, ReplayTopic) or not job.again)
    if not job.found.ranges and not (is_continued and job.found.has_deleted):
        return Replayed(0, 0, 0, already=False, seconds=0.0, missing=job.found.gone)
    if isinstance(job.into, ReplayTopic) and job.into.exactly_once:
        done = into_topic_once(job, job.into, get_spark, count)
    elif isinstance(job.into, ReplayTopic):
        done = _into_topic(job, job.into, get_spark, count)
    else:
        done = _into_table(job, job.into, get_spark, count)
    count(job.found.offsets - count.done)
    return dataclasses.replace(done, missing=tuple(dict.fromkeys(job.found.gone + done.missing)))


class _Count:
    """Passes counts on to a function and adds them up."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self.done = 0

    def __call__(self, more: int) -> None:
        if more > 0:
            self.done += more
            self._advance(more)


def _into_table(
    job: Replay, into: Target, get_spark: Callable[[], SparkSession], advance: Callable[[int], None]
) -> Replayed:
    into.check()
    salt = uuid.uuid4().hex if job.again else ""
    query = f"replay-{job.chosen.digest(salt)}"
    started = time.monotonic()
    with open_table(into, get_spark) as (table, started_spark):
        table.check_columns()
        for digest in (job.found.digest, job.found.digest_of_names):  # the names by which earlier versions noted it
            plan = dataclasses.replace(_plan(job, f"replay-{digest()}"), ranges=())
            before = None if job.again else table.find_added(plan)
            if before is not None:
                seconds, by_names = time.monotonic() - started, digest() != job.found.digest()
                return Replayed(job.found.offsets, before.rows, before.bad, True, seconds, by_names)
        left, missing = _left(job, table, query)
        earlier = job.found.offsets - left.offsets
        if not left.ranges:
            held, seconds = table.find_added(_looked_up(job, query)), time.monotonic() - started
            if held is None:  # the logs have nothing of the selection, and no run has read any of it
                return Replayed(job.found.offsets, 0, 0, False, seconds, missing=missing)
            return Replayed(job.found.offsets, held.rows, held.bad, True, seconds, missing=missing)
        rest = dataclasses.replace(job, found=left)
        spark = started_spark()
        started = time.monotonic()
        progress = progress_options(spark, advance)
        with spark_failures("the replay stopped"), plain_timestamps(spark), progress as task_options:
            task_options = dict(task_options) | into.values.source_options(job.options)
            records = rest.frame(spark, into.needs_headers, task_options)
            table.begin(records, _isolation_of(rest))
            if into.writer == "workers":
                options, planned = rest.planned(into.needs_headers, task_options)
                added = table.add_ranges(spark, options, planned, _plan(rest, query))
            else:
                added = table.add(records, _plan(rest, query))
        seconds = time.monotonic() - started
        return Replayed(
            job.found.offsets,
            added.rows,
            added.bad,
            already=False,
            seconds=seconds,
            earlier=earlier or None,
            missing=missing,
        )


def _isolation_of(job: Replay) -> str:
    """Returns the level with which the replay reads."""
    given = {name.lower(): value.strip().lower() for name, value in job.options.items()}
    return given.get(_ISOLATION, "read_uncommitted")


def _left(job: Replay, table: Table, query: str) -> tuple[ReplayRanges, tuple[str, ...]]:
    """Returns the ranges that earlier runs of the replay have not added, and a line for each range that was deleted
    since. Logs a warning if replays with other options have added some of them. Raises DataLoss, RangeGone, and the
    errors of lookups and of the table."""
    plan = _looked_up(job, query)
    own, every = table.find_replayed(plan)
    done = [] if own is None else own.done_in(plan.topics)
    check_replayed_logs(job, table, query, done)
    missing = check_deleted(job, done)
    left = subtract(job.found.ranges, [Range(*piece) for piece in done])
    again = [] if every is None or job.again else overlap(left, every.done_in(plan.topics))
    if again:
        tp, start, end = again[0]
        log.warning(
            "a replay with other options has added %s of these offsets to %s, for example %s of %s: the table gets "
            "their rows once more",
            f"{sum(high - low for _, low, high in again):,}",
            table.location.uri,
            span(start, end),
            tp,
        )
    return dataclasses.replace(job.found, ranges=tuple(left)), missing


def _plan(job: Replay, query: str) -> BatchPlan:
    """Returns a replay as the one micro-batch of a query."""
    pieces = tuple((tp, start, end) for tp, start, end in job.found.ranges)
    topics = {name: topic_of(str(found)) for name, found in job.found.ids.items()}
    offsets = dict.fromkeys((tp for tp, _, _ in pieces), 0)
    return BatchPlan(query, 0, covers_of(pieces), ends_of({}), offsets=offsets, topics=topics, ranges=pieces)


def _looked_up(job: Replay, query: str) -> BatchPlan:
    """Returns the micro-batch of a replay with all of its partitions: also those of which the logs have nothing now."""
    return dataclasses.replace(_plan(job, query), offsets=dict.fromkeys(job.found.partitions, 0))


def _into_topic(
    job: Replay, into: ReplayTopic, get_spark: Callable[[], SparkSession], advance: Callable[[int], None]
) -> Replayed:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    given = {"kafka.bootstrap.servers": job.bootstrap, **job.options}
    config = parse_options({"subscribe": into.name, **given}, streaming=False).client
    writing = into.options(given)
    find_target(into, config, max(piece.partition.partition for piece in job.found.ranges))
    spark = get_spark()
    started = time.monotonic()
    sent = Observation()
    with progress_options(spark, advance) as task_options, spark_failures("the replay stopped"):
        more = into.source_options(job.options) | dict(task_options)
        records = records_to_send(job.frame(spark, headers=True, more=more), into)
        frame = records.drop(*ORIGIN_COLUMNS).observe(sent, f.count("*").alias("rows"))
        frame.write.format("odradek").mode("append").options(**writing).save()
        rows = int(sent.get["rows"])
    return Replayed(job.found.offsets, rows, 0, already=False, seconds=time.monotonic() - started)


@with_keywords(ReplayOptions)
def replay(options: ReplayOptions) -> ReplayRanges | Replayed:
    """Reads ranges of topics a second time, into the table ``output`` or the topic ``to_topic``.

    The options of the table are those of ``ingest``. For an existing table they must be the same as before. The other
    options are those of ``odradek pipeline replay``; its ``--help`` explains them, and ``ReplayOptions`` describes the
    differences. ``dry_run`` returns the ranges and reads no records.

    Raises ConfigError, StorageError, UnknownTopic, RangeGone, BadRecords, BrokerUnreachable, QueryFailed. With
    ``exactly_once`` also ReplayRefused, ReplayFenced.
    """
    into = destination(options)
    found = find_ranges(options, into)
    if options.dry_run or into is None:
        return found
    writer = into.writer if isinstance(into, Target) else ""
    return run_replay(
        replay_of(options, found, into), lambda: options.spark or start_spark(options.master, options.conf, writer)
    )


def replay_of(options: ReplayOptions, found: ReplayRanges, into: Target | ReplayTopic) -> Replay:
    """Returns the replay to run. Raises ConfigError if a topic to send to is read, too, and UnknownTopic."""
    if isinstance(into, ReplayTopic) and into.name in {tp.topic for tp in found.partitions}:
        raise ConfigError(
            f"topic {into.name} is read and written: a further run would read the copies of this one. Send to another "
            "topic"
        )
    if isinstance(into, Target) and into.letters_to is not None:
        is_read = into.letters_to in {tp.topic for tp in found.partitions}
        check_letters(into.letters_to, _parsed(options).client, is_read=is_read)
    return Replay(options.bootstrap_servers, found, into, read_options(options), options.again, _selection(options))


def read_options(options: ReplayOptions) -> dict[str, str]:
    """Returns the options of the source. With ``exactly_once``, only committed records are read by default."""
    given = dict(options.options or {})
    said = {"kafka.bootstrap.servers": options.bootstrap_servers, "includeheaders": str(options.headers).lower()}
    check_options(given, OF_A_REPLAY, said)
    if options.exactly_once and _ISOLATION not in {name.lower() for name in given}:
        given[_ISOLATION] = "read_committed"
    return given


def destination(options: ReplayOptions, shown: Callable[[str], str] = str) -> Target | ReplayTopic | None:
    """Returns the checked table or topic to replay into; None for a dry run without one. ``shown``: returns an option's
    name in the form that the caller uses. Raises ConfigError.
    """
    check_values(options)
    output, to_topic = shown("output"), shown("to_topic")
    is_table = options.output is not None or format_of(options.table_format).is_in_catalog
    if is_table and options.to_topic is not None:
        raise ConfigError(f"choose the destination: either {output} (a table) or {to_topic}")
    if options.batch_size != ReplayOptions.batch_size and not options.exactly_once:
        raise ConfigError(f"{shown('batch_size')} is for {shown('exactly_once')}")
    if options.to_topic is not None:
        for name in _OF_A_TABLE:
            if (getattr(options, name) or None) != (getattr(PipelineOptions, name) or None):
                raise ConfigError(f"{shown(name)} is for {output}: a topic gets the records as they are")
        with about("batch_size"):
            batch_bytes = parse_size("batch_size", options.batch_size)
        topic = ReplayTopic(
            options.to_topic,
            options.keep_partitions,
            options.keep_timestamps,
            producer=options.producer_options or {},
            exactly_once=options.exactly_once,
            batch_bytes=batch_bytes,
        )
        topic.options({"kafka.bootstrap.servers": options.bootstrap_servers, **read_options(options)})
        return topic
    if options.keep_partitions or options.keep_timestamps:
        raise ConfigError(f"{shown('keep_partitions')} and {shown('keep_timestamps')} are for {to_topic}")
    if options.exactly_once:
        raise ConfigError(f"{shown('exactly_once')} is for {to_topic}: a table has each record of a replay once")
    if options.producer_options:
        raise ConfigError(f"{shown('producer_options')} is for {to_topic}")
    if is_table:
        target = Target.of(options, options.output)
        target.check()
        return target
    if not options.dry_run:
        what = f"{output} (a table) or {to_topic}; or {shown('dry_run')} to only show the ranges"
        raise ConfigError(f"choose the destination: {what}")
    return None


def _parsed(options: ReplayOptions) -> ReadOptions:
    given = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": "any", **read_options(options)}
    return parse_options(given, streaming=False)


def find_ranges(options: ReplayOptions, into: Target | ReplayTopic | None) -> ReplayRanges:
    """Returns the ranges that the options select. Raises the errors of ``find``."""
    parsed = _parsed(options)
    is_continued = _may_continue(into) and not (options.again or options.dry_run)
    return find(parsed.client, _selection(options), parsed.isolation_level, is_continued=is_continued)


def _may_continue(into: Target | ReplayTopic | None) -> bool:
    """Returns whether earlier runs may have noted here what they have replayed."""
    if isinstance(into, Target):
        return is_uri(into.output) or Path(local_path(into.output)).exists()
    return into is not None and into.exactly_once


def _selection(options: ReplayOptions) -> Selection:
    return Selection(
        names(options.topics),
        options.offsets,
        options.start,
        options.end,
        options.read_by,
        options.since,
        options.until,
        options.allow_missing,
    )
