"""A replay into a topic, exactly once: writes ranges of the source in one transaction after another.

A replay has its own group. Each transaction has the records of some ranges, and offsets of this group that say which
ranges are done (``replay_progress``). So after any crash the group shows where the replay continues. The group and the
transactional id have the same name. The name depends only on the selection, the target and the two ``keep`` options, so
a repeated command continues the same replay.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.producer import Producer
from odradek.client.producer.errors import ProducerFenced
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import LATEST, ConsumerGroupMetadata, LogTail, OffsetAndMetadata, TopicPartition
from odradek.pipelines.queries import spark_failures
from odradek.pipelines.ranges import merge, subtract
from odradek.pipelines.replays.input import Replay, Replayed, available
from odradek.pipelines.replays.log_checks import check_sent_logs
from odradek.pipelines.replays.progress import ReplayProgress, ReplayRefused, first_offsets, progress_of
from odradek.pipelines.replays.selection import RangeGone
from odradek.pipelines.replays.topic import (
    ORIGIN_COLUMNS,
    REPLAYED_FROM,
    FoundTopic,
    ReplayTopic,
    find_target,
    records_to_send,
    sent_records,
)
from odradek.pipelines.tables.driver_tails import DriverTails
from odradek.spark.driver.micro_batch_groups import check_members
from odradek.spark.driver.transaction_states import is_taken_over
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import Range, share_bytes
from odradek.spark.offsets.source_offset import Offsets
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.progress import progress_options
from odradek.spark.writes.write_options import WriteOptions, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Commits = Mapping[TopicPartition, OffsetAndMetadata]
_LOST = "so records of this replay may be lost there. Use 'again', which sends all of it once more, or another target"


class ReplayFenced(OdradekError):
    """Another run of the same replay has taken it over, or an administrator has fenced its transactional id."""


@dataclass(frozen=True)
class _ReplayRun:
    """One run of a replay. ``name``: the transactional id, and the group that keeps the progress."""

    job: Replay
    into: ReplayTopic
    name: str
    target: FoundTopic
    reading: ReadOptions
    writing: WriteOptions
    admin: Admin
    producer: Producer


def into_topic_once(
    job: Replay, into: ReplayTopic, get_spark: Callable[[], SparkSession], advance: Callable[[int], None]
) -> Replayed:
    """Continues after the last committed transaction of the replay. Starts Spark only if something is left.

    Raises ReplayRefused, ReplayFenced, DataLoss, ConfigError, UnknownTopic, RangeGone, QueryFailed, OdradekError.
    """
    started = time.monotonic()
    with _start_run(job, into) as run:
        commits = run.admin.list_group_offsets(run.name, require_stable=True)
        with _refused_alone(run, commits):
            former, ids = _progress(run, commits)
            progress = former.with_plan(job.found.ranges)
            # Before anything is sent: the plan has to fit into commits, also when all of it is done.
            progress.with_done(progress.planned).commits(ids)
            check_sent_logs(
                job, progress, ids, lambda: sent_records(run.admin, run.reading.client, run.target, run.name)
            )
            _check_target(run, progress)
            left, missing = _readable(run, progress, former.planned)
        earlier = sum(piece.size for piece in job.found.ranges) - _size(_within(left, job.found.ranges))
        if not left:
            seconds = time.monotonic() - started
            return Replayed(
                job.found.offsets, 0, 0, True, seconds, transactions=0, earlier=earlier, missing=tuple(missing)
            )
        advance(earlier)
        spark = get_spark()
        _check_version()
        started = time.monotonic()
        rows = transactions = 0
        with progress_options(spark, advance) as task_options:
            while left:
                some = _next_ranges(run, left)
                progress = progress.with_done(some).with_tails(_tails(run, some, ids))
                rows += _replay(run, spark, some, (progress, ids), task_options)
                transactions += 1
                left = subtract(left, some)
    seconds = time.monotonic() - started
    return Replayed(
        job.found.offsets, rows, 0, False, seconds, transactions=transactions, earlier=earlier, missing=tuple(missing)
    )


def _check_version() -> None:
    from odradek.spark import compatibility  # here, since it loads PySpark

    compatibility.require("a replay in transactions", compatibility.TRANSACTIONS)


@contextmanager
def _start_run(job: Replay, into: ReplayTopic) -> Iterator[_ReplayRun]:
    """Yields a run whose producer has fenced earlier runs and aborted their open transactions."""
    given = {"kafka.bootstrap.servers": job.bootstrap, **job.options}
    reading = parse_options({"subscribe": into.name, **given}, streaming=False)
    writing = parse_write_options(into.options(given))
    highest = max((tp.partition for tp in job.found.partitions), default=0)
    target = find_target(into, reading.client, highest)
    name = _name(job, into, target)
    own = {item.name: getattr(writing.producer, item.name) for item in dataclasses.fields(writing.producer)}
    producer = Producer(writing.client, **(own | {"transactional_id": name}))
    try:
        with Admin(writing.client) as admin:
            run = _ReplayRun(job, into, name, target, reading, writing, admin, producer)
            _init_transactions(run)
            yield run
    finally:
        producer.close(timeout=0)


def _name(job: Replay, into: ReplayTopic, target: FoundTopic) -> str:
    words = [*job.chosen.words(), into.name, str(target.topic_id), into.keep_partitions, into.keep_timestamps]
    return f"odradek-replay-{hashlib.sha256(json.dumps(words).encode()).hexdigest()[:16]}"


def _init_transactions(run: _ReplayRun) -> None:
    check_members(run.admin, run.name, "keeps the progress of this replay")
    try:
        run.producer.init_transactions()
    except KafkaError as error:
        if getattr(error.__cause__, "code", None) is ErrorCode.invalid_transaction_timeout:
            raise ConfigError(
                f"transaction.timeout.ms={run.writing.producer.transaction_timeout_ms} is above the broker's "
                "transaction.max.timeout.ms: set a smaller transaction.timeout.ms for the producer, or raise the "
                "broker's limit"
            ) from error
        raise


@contextmanager
def _refused_alone(run: _ReplayRun, commits: Commits) -> Iterator[None]:
    """Refusals compare logs and target with ``commits``, the progress. If another run has sent records since these were
    read, that is why they do not agree: then raises ReplayFenced in place of the refusal."""
    try:
        yield
    except ReplayRefused as error:
        if run.admin.list_group_offsets(run.name, require_stable=True) == commits:
            raise
        raise ReplayFenced(
            "another run of this replay has sent records since this one began, so this one has sent none. If the other "
            "run is active, leave it alone; if not, run the same command again"
        ) from error


def _progress(run: _ReplayRun, commits: Commits) -> tuple[ReplayProgress, Mapping[str, UUID]]:
    """Returns the progress of earlier runs, and the topic ids."""
    if not commits and not run.job.again:
        _check_unsent(run)
    topics = {tp.topic for tp in commits} - run.job.found.ids.keys() - {run.into.name}
    described = run.admin.describe_topics(sorted(topics), missing_ok=True) if topics else {}
    ids = dict(run.job.found.ids) | {name: one.topic_id for name, one in described.items() if one.topic_id is not None}
    progress = progress_of(commits, ids, run.name, run.into.name)
    if run.job.again and progress.planned and not progress.left:
        progress = ReplayProgress()
    return progress, ids


def _check_unsent(run: _ReplayRun) -> None:
    """Raises ReplayRefused if the target has records of this replay although its progress is gone."""
    sent = next(sent_records(run.admin, run.reading.client, run.target, run.name), None)
    if sent is not None:
        raise ReplayRefused(
            f"group {run.name}, which keeps the progress of this replay, has expired (offsets.retention.minutes after "
            f"the last transaction) or was deleted, or its offsets went with a source topic that was deleted, or the "
            f"offsets topic was put back from an older copy; and the "
            f"target has records of this replay, for example {sent.partition} at offset {sent.offset}: this run could "
            "send them twice. If a source topic was deleted and created again, none of its present records was sent: "
            "use 'again', which sends all of it once more. Otherwise replay what is missing by other ranges (the "
            f"records' headers {REPLAYED_FROM} name what is there), or use 'again'"
        )


def _check_target(run: _ReplayRun, progress: ReplayProgress) -> None:
    """Raises ReplayRefused if the target has records that came after the last transaction of the progress, which is an
    older copy then; or if the target is an older copy: it ends before that transaction, or has another batch where the
    last one was then."""
    if run.job.again or not progress.target_ends:
        return
    ends = _target_ends(run)
    for tp, end in sorted(progress.target_ends.items()):
        if ends[tp] < end:
            raise ReplayRefused(
                f"{tp} ends at {ends[tp]}, and had {end} when this replay last sent records: its broker's data was put "
                f"back from an older copy, or it was truncated, {_LOST}"
            )
    tails = {tp: one for tp, one in progress.tails.items() if one.end == progress.target_ends.get(tp)}
    replaced, _ = _target_tails(run, {tp: one.end for tp, one in tails.items()}).compare(tails)
    for tp in sorted(replaced):
        raise ReplayRefused(
            f"{tp} has another batch of records at offset {tails[tp].base} than when this replay last sent records: "
            f"its broker's data was put back from an older copy and has grown again, or it was truncated, {_LOST}"
        )
    known = {piece.partition for piece in progress.done}
    for sent in sent_records(run.admin, run.reading.client, run.target, run.name, progress.target_ends):
        origin = sent.origin_in(known) if sent.partition in progress.target_ends else None
        if origin is not None and subtract([Range(origin[0], origin[1], origin[1] + 1)], progress.done):
            raise ReplayRefused(
                f"group {run.name}, which keeps the progress of this replay, is older than the target, which has "
                f"{sent.origin} in {sent.partition} at offset {sent.offset}: the brokers' data was put back from "
                "copies of different times, or the offsets of the group were set back. This run could send records "
                "twice. Replay what is missing by other "
                f"ranges (the records' headers {REPLAYED_FROM} name what is there), or use 'again', which sends all of "
                "it once more"
            )


def _target_ends(run: _ReplayRun) -> dict[TopicPartition, int]:
    found = run.admin.list_offsets(dict.fromkeys(run.target.partitions, LATEST))
    return {tp: one.offset for tp, one in found.items()}


def _target_tails(run: _ReplayRun, ends: Offsets) -> DriverTails:
    """Returns what looks up the last batches of the target's partitions below these ends."""
    last = [Range(tp, end - 1, end) for tp, end in sorted(ends.items()) if end > 0]
    return DriverTails(run.reading, last, {run.into.name: run.target.topic_id})


def _with_target(run: _ReplayRun, progress: ReplayProgress) -> ReplayProgress:
    """Returns the progress with the present ends of the target and its last batches."""
    ends = _target_ends(run)
    tails = {tp: one for tp, one in progress.tails.items() if tp.topic != run.into.name}
    return dataclasses.replace(progress, target_ends=ends, tails=tails | _target_tails(run, ends).found())


def _readable(run: _ReplayRun, progress: ReplayProgress, former: Iterable[Range]) -> tuple[list[Range], list[str]]:
    """Returns the ranges that are left, and a line for each missing range. ``former``: the plan of earlier runs.

    If this run's selection no longer has some ranges that an earlier run planned, the logs are checked for those ranges
    again. So they are for records that came after the last run and were deleted before this one. Raises RangeGone."""
    left = progress.left
    deleted = run.job.found.deleted_since(former)
    only_planned = merge([*subtract(left, run.job.found.ranges), *deleted])
    if not only_planned:
        return left, []
    held, gone = available(run.admin, run.reading.client, only_planned, run.reading.isolation_level)
    if gone and not run.job.chosen.allow_missing:
        raise RangeGone("; ".join(gone))
    return merge([*_within(left, run.job.found.ranges), *held]), gone


def _next_ranges(run: _ReplayRun, left: Sequence[Range]) -> list[Range]:
    """Returns the ranges of the next transaction: a share of the bytes from each partition, in the order of the
    offsets."""
    firsts: dict[TopicPartition, Range] = {}
    for piece in left:
        known = firsts.get(piece.partition)
        firsts[piece.partition] = piece if known is None else known._replace(end=known.end + piece.size)
    with closing(Lookups(run.reading)) as lookups:
        sizes = lookups.bytes_per_offset(firsts.values(), run.into.batch_bytes)
    return first_offsets(left, share_bytes(firsts.values(), sizes, run.into.batch_bytes))


def _tails(run: _ReplayRun, ranges: Sequence[Range], ids: Mapping[str, UUID]) -> dict[TopicPartition, LogTail]:
    """Returns the last batches of the ranges. To be called before the records are read: if the log is put back between,
    the next run stops, although it may have the records. The other way round, it would leave records out."""
    last = {piece.partition: piece for piece in ranges}
    return DriverTails(run.reading, list(last.values()), ids).found()


def _replay(
    run: _ReplayRun,
    spark: SparkSession,
    ranges: Sequence[Range],
    state: tuple[ReplayProgress, Mapping[str, UUID]],
    task_options: Mapping[str, str],
) -> int:
    """Writes the records of the ranges and the progress in one transaction. Returns the number of records."""
    from odradek.spark.driver.transaction_attempts import TransactionTimedOut, place, write_once

    progress, ids = state
    found = dataclasses.replace(run.job.found, ranges=tuple(ranges), ids=ids)
    partitions = list(run.target.partitions)

    def add_offsets() -> None:
        noted = _with_target(run, progress)  # the records are in the target's logs, and become visible with the offsets
        run.producer.send_offsets_to_transaction(noted.commits(ids), ConsumerGroupMetadata(run.name))

    try:
        with spark_failures("the replay stopped"):
            records = dataclasses.replace(run.job, found=found).frame(
                spark, headers=True, more=run.into.source_options(run.job.options) | dict(task_options)
            )
            # The rows are sorted: records of a source partition that go to one target partition keep their order.
            placed = place(records_to_send(records, run.into, run.name), run.writing, len(partitions), ORIGIN_COLUMNS)
            return write_once(run.producer, run.writing, placed, partitions, add_offsets)
    except TransactionTimedOut as error:
        if is_taken_over(run.admin, run.name):
            raise _fenced(run) from error
        raise ReplayRefused(
            "a transaction took longer than transaction.timeout.ms="
            f"{run.writing.producer.transaction_timeout_ms}, so the broker has aborted it: set a larger timeout (the "
            "broker allows transaction.max.timeout.ms), or a smaller batch size"
        ) from error
    except ProducerFenced as error:
        raise _fenced(run) from error


def _fenced(run: _ReplayRun) -> ReplayFenced:
    return ReplayFenced(
        f"another run of this replay has taken it over, or an administrator has fenced its transactional id "
        f"{run.name}, for example by odradek transactions force-terminate. What this run has committed remains in "
        "the topic. If another run is active, leave it alone; if not, run the same command again"
    )


def _within(ranges: Sequence[Range], limits: Sequence[Range]) -> list[Range]:
    """Returns the parts of the ranges that are within the limits."""
    return subtract(ranges, subtract(ranges, limits))


def _size(ranges: Sequence[Range]) -> int:
    return sum(piece.size for piece in ranges)
