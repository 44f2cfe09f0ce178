"""Replay: ranges of topics read a second time, into a table (each replay once) or into a topic (at least once, or
exactly once in transactions: ``replay_transactions``).

``find`` looks up the ranges first, and the command can show them without reading records. A replay into a table is one
micro-batch that is identified by its ranges. The same replay again adds nothing, so a killed run can simply be
repeated.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.core.errors import ConfigError
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, TopicPartition
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.ingest_job import Target, make_target, open_table, start_spark
from odradek.pipelines.options import ReplayOptions, names
from odradek.pipelines.queries import plain_timestamps, spark_failures
from odradek.pipelines.ranges import (
    RangeGone,
    ReadByGroup,
    batch_reads,
    commits_of,
    merge,
    parse_ranges,
    read_between,
    time_ms,
)
from odradek.pipelines.replay_topic import ORIGIN_COLUMNS, ReplayTopic, find_target, records_to_send
from odradek.pipelines.sources import check_topics, with_short_timeouts
from odradek.spark import data_loss
from odradek.spark.lookups import Lookups
from odradek.spark.offset_ranges import Range
from odradek.spark.options import ReadOptions, parse_options, parse_size
from odradek.spark.progress import progress_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ISOLATION = "kafka.isolation.level"


@dataclass(frozen=True)
class Selection:
    """The records to read, selected in one of three ways:

    * ``offsets``;
    * ``topics``, from ``start`` to ``end`` (earliest, latest, an offset or a time);
    * ``read_by``: the records that this group has read between its commits at ``since`` and ``until``. Without
      ``topics``, of all its topics.
    """

    topics: tuple[str, ...] = ()
    offsets: str | None = None
    start: str = "earliest"
    end: str = "latest"
    read_by: str | None = None
    since: str | None = None
    until: str | None = None
    allow_missing: bool = False

    def check(self) -> None:
        """Raises ConfigError."""
        by_place = (self.start, self.end) != ("earliest", "latest")
        ways = [self.offsets is not None, self.read_by is not None, by_place]
        if sum(ways) > 1:
            raise ConfigError("choose one way to say what to read: offsets, from and to, or what a group read")
        if self.read_by is None and (self.since is not None or self.until is not None):
            raise ConfigError("since and until are times of a group's commits: they need read by")
        if self.offsets is not None:
            if self.topics:
                raise ConfigError("offsets contain the names of the topics: omit topics")
            parse_ranges(self.offsets)
        elif self.read_by is None and not self.topics:
            raise ConfigError("say what to read: topics, offsets, or what a group read")
        if self.read_by == "":
            raise ConfigError("read by: a group's name cannot be empty")
        since, until = self.times()
        if since is not None and until is not None and since > until:
            raise ConfigError(f"since {self.since} is after until {self.until}")
        start, end = _parse_target(self.start, "from"), _parse_target(self.end, "to")
        if start is None and end is None:
            start, end = time_ms(self.start, "from"), time_ms(self.end, "to")
        if isinstance(start, int) and isinstance(end, int) and start > end:
            raise ConfigError(f"from {self.start} is after to {self.end}")

    def words(self) -> list[object]:
        """Returns the selection in a form that is equal for equal selections. ``allow_missing`` is no part of it, so
        that a run can be repeated with this option."""
        ranges = None if self.offsets is None else parse_ranges(self.offsets)
        places = [_parse_target(self.start, "from"), _parse_target(self.end, "to")]
        texts = [
            time_ms(text, "place") if found is None else found
            for text, found in zip((self.start, self.end), places, strict=True)
        ]
        return [sorted(self.topics), ranges, *texts, self.read_by, *self.times()]

    def times(self) -> tuple[int | None, int | None]:
        """Returns ``since`` and ``until`` in milliseconds since 1970. Raises ConfigError."""
        since = None if self.since is None else time_ms(self.since, "since")
        return since, None if self.until is None else time_ms(self.until, "until")


@dataclass(frozen=True)
class ReplayRanges:
    """The ranges of a replay. ``gone``: what is missing, if that is allowed. ``read``: what the group has read, by
    partition. ``ids``: the topic ids, if the cluster has ids.
    """

    ranges: tuple[Range, ...]
    gone: tuple[str, ...] = ()
    read: Mapping[TopicPartition, ReadByGroup] = field(default_factory=dict)
    ids: Mapping[str, UUID] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """The number of offsets in the ranges. Compacted topics and topics with transactions have fewer records."""
        return sum(piece.size for piece in self.ranges)

    def digest(self, salt: str = "") -> str:
        """Returns an id of the ranges and topic ids. A topic created again has another one. Without topic ids it is
        the digest of the names."""
        if not self.ids:
            return self.digest_of_names(salt)
        return self.digest_of_names(json.dumps({name: str(found) for name, found in sorted(self.ids.items())}) + salt)

    def digest_of_names(self, salt: str = "") -> str:
        """Returns the id by which earlier versions identified a replay."""
        text = json.dumps([[*piece.partition, piece.start, piece.end] for piece in self.ranges]) + salt
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Replayed:
    """The result of a replay: ``rows`` of ``offsets`` were written, ``bad`` of them unreadable. ``already``: an earlier
    run had already done this replay. ``by_names``: that run's version identified topics only by name; the topics may
    have been created again since. For a topic, exactly once: the number of ``transactions`` of this run, and of the
    ``offsets``, those that ``earlier`` runs have done.
    """

    offsets: int
    rows: int
    bad: int
    already: bool
    seconds: float
    by_names: bool = False
    transactions: int | None = None
    earlier: int | None = None


def find(config: ClientConfig, chosen: Selection, isolation_level: str = "read_uncommitted") -> ReplayRanges:
    """Looks up the ranges. For read_committed they end before the first record of an open transaction. Raises
    ConfigError, UnknownTopic, RangeGone, BrokerUnreachable."""
    chosen.check()
    with Admin(with_short_timeouts(config)) as admin:
        # The ids are looked up before the offsets: if a topic is created again after this, reading its ranges fails.
        ids = {name: topic.topic_id for name, topic in admin.describe_topics().items() if topic.topic_id}
        read: dict[TopicPartition, ReadByGroup] = {}
        missing: list[str] = []
        if chosen.read_by is not None:
            read, missing = _read_by(admin, config, chosen)
            wanted = merge(piece for found in read.values() for piece in found.ranges)
        elif chosen.offsets is not None:
            wanted = parse_ranges(chosen.offsets)
            check_topics(admin, sorted({piece.partition.topic for piece in wanted}))
        else:
            wanted = _between_places(admin, chosen, isolation_level)
        held, gone = available(admin, config, wanted, isolation_level)
    missing += gone
    if missing and not chosen.allow_missing:
        raise RangeGone("; ".join(missing))
    names = {piece.partition.topic for piece in held}
    return ReplayRanges(tuple(held), tuple(missing), read, {name: ids[name] for name in sorted(names & ids.keys())})


def _read_by(
    admin: Admin, config: ClientConfig, chosen: Selection
) -> tuple[dict[TopicPartition, ReadByGroup], list[str]]:
    from odradek.history import read_offset_history

    assert chosen.read_by is not None
    described = admin.describe_topics()
    check_topics(admin, chosen.topics)
    ids = {name: topic.topic_id.bytes if topic.topic_id else None for name, topic in described.items()}
    commits = commits_of(read_offset_history(config, group=chosen.read_by), ids)
    wanted = {tp: found for tp, found in commits.items() if not chosen.topics or tp.topic in chosen.topics}
    if not wanted:
        of = f" for {', '.join(chosen.topics)}" if chosen.topics else ""
        raise RangeGone(f"__consumer_offsets holds no commit of group {chosen.read_by}{of}")
    since, until = chosen.times()
    read: dict[TopicPartition, ReadByGroup] = {}
    missing: list[str] = []
    for tp, found in sorted(wanted.items()):
        try:
            one = read_between(tp, found, since, until)
        except RangeGone as error:
            missing.append(str(error))
            one = read_between(tp, found, None, until)
        if one is not None:
            read[tp] = one
    return read, missing


def _parse_target(text: str, option: str) -> str | int | None:
    """Returns ``earliest``, ``latest``, an offset as int, or None for a time. Raises ConfigError."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    if word.isascii() and word.isdigit() and len(word) < 19:
        return int(word)
    try:
        time_ms(text, option)
    except ConfigError:
        example = "for example 2026-01-31T12:00:00"
        raise ConfigError(f"{option} {text!r} is neither earliest, latest, an offset nor a time, {example}") from None
    return None


def _between_places(admin: Admin, chosen: Selection, isolation_level: str) -> list[Range]:
    partitions = [tp for name in check_topics(admin, chosen.topics) for tp in admin.partitions(name)]
    starts = _resolve(admin, partitions, (chosen.start, "from"), isolation_level)
    ends = _resolve(admin, partitions, (chosen.end, "to"), isolation_level)
    return [Range(tp, starts[tp], ends[tp]) for tp in partitions if starts[tp] < ends[tp]]


def _resolve(
    admin: Admin, partitions: Sequence[TopicPartition], target: tuple[str, str], level: str
) -> dict[TopicPartition, int]:
    """``target``: the text, and the name of its option."""
    limit = _parse_target(*target)
    if isinstance(limit, int):
        return dict.fromkeys(partitions, limit)
    if limit is not None:
        wanted = dict.fromkeys(partitions, EARLIEST if limit == "earliest" else LATEST)
        found = admin.list_offsets(wanted, isolation_level=level)
        return {tp: found[tp].offset for tp in partitions}
    found = admin.list_offsets(dict.fromkeys(partitions, time_ms(*target)), isolation_level=level)
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation_level=level)
    return {tp: ends[tp].offset if found[tp].offset == NO_OFFSET else found[tp].offset for tp in partitions}


def available(
    admin: Admin, config: ClientConfig, wanted: Sequence[Range], isolation_level: str
) -> tuple[list[Range], list[str]]:
    """Returns the parts of the ranges that the logs still have, and a line for each missing part."""
    there = {tp for name in {piece.partition.topic for piece in wanted} for tp in _partitions(admin, name)}
    asked = sorted({piece.partition for piece in wanted} & there)
    starts = admin.list_offsets(dict.fromkeys(asked, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(asked, LATEST), isolation_level=isolation_level)
    what = "the log ends" if isolation_level == "read_uncommitted" else "its committed records end"
    causes = Lookups(_options(config, asked)) if asked else None
    held: list[Range] = []
    gone: list[str] = []
    try:
        for tp, low, high in wanted:
            if tp not in there:
                gone.append(f"{tp} does not exist: it was deleted, or it never existed")
                continue
            start, end = starts[tp].offset, ends[tp].offset
            if low < start:
                assert causes is not None
                gone.append(data_loss.removed(tp, low, start, causes, end=high))
            if high > end:
                gone.append(f"{tp}: offsets {max(low, end)} to {high - 1} do not exist ({what} at {end})")
            held.append(Range(tp, max(low, start), min(high, end)))
    finally:
        if causes is not None:
            causes.close()
    return merge(held), gone


def _partitions(admin: Admin, topic: str) -> Sequence[TopicPartition]:
    return admin.partitions(topic) if topic in admin.describe_topics([topic], missing_ok=True) else ()


def _options(config: ClientConfig, asked: Sequence[TopicPartition]) -> ReadOptions:
    assigned = {name: [tp.partition for tp in asked if tp.topic == name] for name in {tp.topic for tp in asked}}
    given = {"kafka.bootstrap.servers": config.bootstrap_servers, "assign": json.dumps(assigned)}
    return dataclasses.replace(parse_options(given, streaming=False), client=config)


# --- the replay -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """A replay to run. ``options``: for ``format("odradek")``, without those that say what is read. ``again``: run it
    even if the destination already has it. ``chosen``: where the ranges come from; it identifies a replay into a topic.
    """

    bootstrap: str
    found: ReplayRanges
    into: Target | ReplayTopic
    options: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    chosen: Selection = field(default_factory=Selection)

    def frame(self, spark: SparkSession, headers: bool, more: Mapping[str, str]) -> DataFrame:
        """Returns the records of the ranges, read with the ``more`` options. Several tasks read several ranges of a
        partition, in no order."""
        from odradek.spark.registration import register

        register(spark)
        reads = [self._read_options(ranges, headers, more) for ranges in batch_reads(self.found.ranges)]
        frames = [spark.read.format("odradek").options(**options).load() for options in reads]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def planned(self, headers: bool, more: Mapping[str, str]) -> tuple[ReadOptions, PlannedBatch]:
        """Returns the read options, and the ranges as one batch. Raises what lookups raise."""
        options = parse_options(self._read_options(batch_reads(self.found.ranges)[0], headers, more), streaming=False)
        wanted = {piece.partition for piece in self.found.ranges}
        lookups = Lookups(options)
        try:
            lookups.ends(wanted)
            ids = lookups.topic_ids({tp.topic for tp in wanted}) | dict(self.found.ids)
            epochs = {tp: lookups.leader_epoch(tp) for tp in wanted}
        finally:
            lookups.close()
        return options, PlannedBatch(self.found.ranges, ids, epochs)

    def _read_options(self, ranges: Sequence[Range], headers: bool, more: Mapping[str, str]) -> dict[str, str]:
        """Returns the options of one batch read with at most one range of each partition."""
        names = sorted({piece.partition.topic for piece in ranges})
        starts, ends = (
            {name: {str(p.partition.partition): p[at] for p in ranges if p.partition.topic == name} for name in names}
            for at in (1, 2)
        )
        assigned = {name: [int(number) for number in starts[name]] for name in names}
        return {
            "kafka.bootstrap.servers": self.bootstrap,
            **self.options,
            **more,
            "assign": json.dumps(assigned),
            "startingOffsets": json.dumps(starts),
            "endingOffsets": json.dumps(ends),
            "includeHeaders": str(headers).lower(),
            "topicIds": json.dumps({name: str(found) for name, found in self.found.ids.items()}),
        }


def run_replay(
    job: Replay, get_spark: Callable[[], SparkSession], advance: Callable[[int], None] = lambda offsets: None
) -> Replayed:
    """Runs a replay. ``advance`` is called from another thread with the number of offsets read since its last call; at
    the end the sum is ``job.found.offsets``.

    Raises ConfigError, StorageError, UnknownTopic, BadRecords, QueryFailed; exactly once: ReplayRefused, WriterFenced.
    """
    if not job.found.ranges:
        return Replayed(0, 0, 0, already=False, seconds=0.0)
    count = _Count(advance)
    if isinstance(job.into, ReplayTopic) and job.into.exactly_once:
        from odradek.pipelines.replay_transactions import into_topic_once

        done = into_topic_once(job, job.into, get_spark, count)
    elif isinstance(job.into, ReplayTopic):
        done = _into_topic(job, job.into, get_spark, count)
    else:
        done = _into_table(job, job.into, get_spark, count)
    count(job.found.offsets - count.done)
    return done


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
    query, by_names = (f"replay-{digest(salt)}" for digest in (job.found.digest, job.found.digest_of_names))
    started = time.monotonic()
    with open_table(into, get_spark) as (table, started_spark):
        for known_as in dict.fromkeys((query, by_names)):
            before = table.find_added(known_as)
            if before is not None:
                seconds, is_older = time.monotonic() - started, known_as != query
                return Replayed(job.found.offsets, before.rows, before.bad, True, seconds, is_older)
        spark = started_spark()
        started = time.monotonic()
        progress = progress_options(spark, advance)
        with spark_failures("the replay stopped"), plain_timestamps(spark), progress as task_options:
            records = job.frame(spark, into.values.headers, task_options)
            table.begin(records)
            if into.writer == "workers":
                options, planned = job.planned(into.values.headers, task_options)
                added = table.add_ranges(spark, options, planned, 0, query=query)
            else:
                added = table.add(records, 0, query)
        return Replayed(job.found.offsets, added.rows, added.bad, already=False, seconds=time.monotonic() - started)


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
        records = records_to_send(job.frame(spark, headers=True, more=task_options), into)
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

    Raises ConfigError, StorageError, UnknownTopic, RangeGone, BadRecords, QueryFailed.
    """
    into = destination(options)
    found = find_ranges(options)
    if options.dry_run or into is None:
        return found
    table = into if isinstance(into, Target) else None
    return run_replay(
        replay_of(options, found, into), lambda: options.spark or start_spark(options.master, options.conf, table)
    )


def replay_of(options: ReplayOptions, found: ReplayRanges, into: Target | ReplayTopic) -> Replay:
    """Returns the replay to run."""
    return Replay(options.bootstrap_servers, found, into, reading(options), options.again, _selection(options))


def reading(options: ReplayOptions) -> dict[str, str]:
    """Returns the options of the source. A replay exactly once reads committed records unless the options say more."""
    given = dict(options.options or {})
    if options.exactly_once and _ISOLATION not in {name.lower() for name in given}:
        given[_ISOLATION] = "read_committed"
    return given


def destination(options: ReplayOptions, shown: Callable[[str], str] = str) -> Target | ReplayTopic | None:
    """Returns the checked table or topic to replay into; None for a dry run without one. ``shown``: returns an option's
    name in the form that the caller uses. Raises ConfigError.
    """
    output, to_topic = shown("output"), shown("to_topic")
    if options.output is not None and options.to_topic is not None:
        raise ConfigError(f"choose the destination: either {output} (a table) or {to_topic}")
    if options.batch_size != ReplayOptions.batch_size and not options.exactly_once:
        raise ConfigError(f"{shown('batch_size')} is for {shown('exactly_once')}")
    if options.to_topic is not None:
        topic = ReplayTopic(
            options.to_topic,
            options.keep_partitions,
            options.keep_timestamps,
            producer=options.producer_options or {},
            exactly_once=options.exactly_once,
            batch_bytes=parse_size("batch size", options.batch_size),
        )
        topic.options({"kafka.bootstrap.servers": options.bootstrap_servers, **reading(options)})
        return topic
    if options.keep_partitions or options.keep_timestamps:
        raise ConfigError(f"{shown('keep_partitions')} and {shown('keep_timestamps')} are for {to_topic}")
    if options.exactly_once:
        raise ConfigError(f"{shown('exactly_once')} is for {to_topic}: a table has each record of a replay once")
    if options.producer_options:
        raise ConfigError(f"{shown('producer_options')} is for {to_topic}")
    if options.output is not None:
        target = make_target(options, options.output)
        target.check()
        return target
    if not options.dry_run:
        what = f"{output} (a table) or {to_topic}; or {shown('dry_run')} to only show the ranges"
        raise ConfigError(f"choose the destination: {what}")
    return None


def find_ranges(options: ReplayOptions) -> ReplayRanges:
    """Returns the ranges that the options select. Raises what ``find`` raises."""
    given = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": "any", **reading(options)}
    parsed = parse_options(given, streaming=False)
    return find(parsed.client, _selection(options), parsed.isolation_level)


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
