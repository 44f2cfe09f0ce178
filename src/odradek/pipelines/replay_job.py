"""Ranges of topics once more: into a table, each replay once, or into a topic, at least once.

What is read is looked up first (``find``) and can be shown without reading anything. Into a table a replay is one
batch, known by its ranges: the same one again adds nothing, so that a run that was killed can simply be repeated.
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
from odradek.client.model import EARLIEST, LATEST
from odradek.core.errors import ConfigError
from odradek.core.ids import NO_OFFSET, TopicPartition
from odradek.core.keyword_options import with_keywords
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.ingest_job import Target, make_target, opened, start_spark
from odradek.pipelines.options import ReplayOptions, names
from odradek.pipelines.queries import failures_told, plain_timestamps
from odradek.pipelines.ranges import (
    RangeGone,
    ReadByGroup,
    commits_of,
    legs,
    merge,
    parse_ranges,
    read_between,
    time_ms,
)
from odradek.pipelines.sources import check_topics, quick
from odradek.spark import data_loss
from odradek.spark.lookups import Lookups
from odradek.spark.offset_ranges import Range
from odradek.spark.options import ReadOptions, parse_options
from odradek.spark.progress import told
from odradek.spark.write_options import connection_options, parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REPLAYED_FROM = "odradek-replayed-from"
"""Header of a record that was replayed into a topic: where it came from, ``events-3@1027``."""
_CONNECTION = ("bootstrap.servers", "security.", "sasl.", "ssl.")
"""Settings that say which cluster, and how it is reached: one for reading and sending."""


@dataclass(frozen=True)
class Selection:
    """What to read, in one of three ways: ``offsets``; ``start`` and ``end`` (earliest, latest, an offset, a time) of
    ``topics``; or what ``read_by``, a group, read of them (or of all) between its commits at ``since`` and ``until``.
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
            raise ConfigError("say in one way what to read: offsets, from and to, or what a group read")
        if self.read_by is None and (self.since is not None or self.until is not None):
            raise ConfigError("since and until are times of a group's commits: they go with read by")
        if self.offsets is not None:
            if self.topics:
                raise ConfigError("offsets name their topics themselves: leave out topics")
            parse_ranges(self.offsets)
        elif self.read_by is None and not self.topics:
            raise ConfigError("say what to read: topics, offsets, or what a group read")
        if self.read_by == "":
            raise ConfigError("read by: a group's name cannot be empty")
        since, until = self.times()
        if since is not None and until is not None and since > until:
            raise ConfigError(f"since {self.since} lies after until {self.until}")
        start, end = _place(self.start, "from"), _place(self.end, "to")
        if start is None and end is None:
            start, end = time_ms(self.start, "from"), time_ms(self.end, "to")
        if isinstance(start, int) and isinstance(end, int) and start > end:
            raise ConfigError(f"from {self.start} lies after to {self.end}")

    def times(self) -> tuple[int | None, int | None]:
        """``since`` and ``until`` in milliseconds since 1970. Raises ConfigError."""
        since = None if self.since is None else time_ms(self.since, "since")
        return since, None if self.until is None else time_ms(self.until, "until")


@dataclass(frozen=True)
class Found:
    """The ranges of a replay. ``gone``: what is missing, where that is allowed; ``read``: of a group, by partition;
    ``ids``: of the topics, where the cluster has ids.
    """

    ranges: tuple[Range, ...]
    gone: tuple[str, ...] = ()
    read: Mapping[TopicPartition, ReadByGroup] = field(default_factory=dict)
    ids: Mapping[str, UUID] = field(default_factory=dict)

    @property
    def offsets(self) -> int:
        """How many offsets they span: as many records, or fewer where a topic is compacted or has transactions."""
        return sum(piece.size for piece in self.ranges)

    def digest(self, salt: str = "") -> str:
        """Another one for another topic of the same name. Where there are no ids it is that of the names."""
        if not self.ids:
            return self.digest_of_names(salt)
        return self.digest_of_names(json.dumps({name: str(found) for name, found in sorted(self.ids.items())}) + salt)

    def digest_of_names(self, salt: str = "") -> str:
        """By which earlier versions knew a replay."""
        text = json.dumps([[*piece.partition, piece.start, piece.end] for piece in self.ranges]) + salt
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Topic:
    """A topic to replay into. ``keep_partitions``: each record into the partition of the same number, else by its key;
    ``keep_timestamps``: with its own time, by which retention may remove it soon, else the time of sending.
    ``producer``: settings by Kafka's names (``compression.type``).
    """

    name: str
    keep_partitions: bool = False
    keep_timestamps: bool = False
    mark: bool = True
    producer: Mapping[str, str] = field(default_factory=dict)

    def options(self, reading: Mapping[str, str]) -> dict[str, str]:
        """Of ``write.format("odradek")``: those of the source that a writer takes, too, then ours. Raises ConfigError,
        for those of the source that concern readers never.
        """
        own = {"kafka.allow.auto.create.topics": "false"}  # a mistyped topic is an error, not a new topic
        for given, value in self.producer.items():
            name = given.lower().removeprefix("kafka.")
            if name.startswith(_CONNECTION):  # topic and partitions were looked up where the ranges are
                raise ConfigError(f"producer option {given}: records are sent to the cluster that is read")
            own[f"kafka.{name}"] = value
        own |= {"topic": self.name, "includetimestamp": str(self.keep_timestamps).lower()}
        chosen = connection_options(reading) | own
        parse_write_options(chosen)
        return chosen


@dataclass(frozen=True)
class Replayed:
    """``rows`` of ``offsets`` were written, ``bad`` of them unreadable; ``already``: an earlier run had done it all.
    ``by_names``: that run was of a version that noted the topics' names alone; they may have been created again since.
    """

    offsets: int
    rows: int
    bad: int
    already: bool
    seconds: float
    by_names: bool = False


def find(config: ClientConfig, chosen: Selection) -> Found:
    """Looks the ranges up. Raises ConfigError, UnknownTopic, RangeGone, BrokerUnreachable."""
    chosen.check()
    with Admin(quick(config)) as admin:
        # Before the offsets: those of a topic that is created again from here on are refused when they are read.
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
            wanted = _between_places(admin, chosen)
        held, gone = _held(admin, config, wanted)
    missing += gone
    if missing and not chosen.allow_missing:
        raise RangeGone("; ".join(missing))
    names = {piece.partition.topic for piece in held}
    return Found(tuple(held), tuple(missing), read, {name: ids[name] for name in sorted(names & ids.keys())})


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


def _place(text: str, option: str) -> str | int | None:
    """``earliest``, ``latest``, an offset as int, or None for a time. Raises ConfigError."""
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


def _between_places(admin: Admin, chosen: Selection) -> list[Range]:
    partitions = [tp for name in check_topics(admin, chosen.topics) for tp in admin.partitions(name)]
    starts = _resolved(admin, partitions, chosen.start, "from")
    ends = _resolved(admin, partitions, chosen.end, "to")
    return [Range(tp, starts[tp], ends[tp]) for tp in partitions if starts[tp] < ends[tp]]


def _resolved(admin: Admin, partitions: Sequence[TopicPartition], text: str, option: str) -> dict[TopicPartition, int]:
    place = _place(text, option)
    if isinstance(place, int):
        return dict.fromkeys(partitions, place)
    if place is not None:
        found = admin.list_offsets(dict.fromkeys(partitions, EARLIEST if place == "earliest" else LATEST))
        return {tp: found[tp].offset for tp in partitions}
    found = admin.list_offsets(dict.fromkeys(partitions, time_ms(text, option)))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    return {tp: ends[tp].offset if found[tp].offset == NO_OFFSET else found[tp].offset for tp in partitions}


def _held(admin: Admin, config: ClientConfig, wanted: Sequence[Range]) -> tuple[list[Range], list[str]]:
    """What the logs hold of the ranges, and what they do not."""
    there = {tp for name in {piece.partition.topic for piece in wanted} for tp in _partitions(admin, name)}
    asked = sorted({piece.partition for piece in wanted} & there)
    starts = admin.list_offsets(dict.fromkeys(asked, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(asked, LATEST))
    causes = Lookups(_options(config, asked)) if asked else None
    held: list[Range] = []
    gone: list[str] = []
    try:
        for tp, low, high in wanted:
            if tp not in there:
                gone.append(f"{tp} is not there: it was deleted, or never was")
                continue
            start, end = starts[tp].offset, ends[tp].offset
            if low < start:
                assert causes is not None
                gone.append(data_loss.removed(tp, low, start, causes, end=high))
            if high > end:
                gone.append(f"{tp}: offsets {max(low, end)} to {high - 1} are not there (its log ends at {end})")
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


# --- doing it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replay:
    """``options``: of ``format("odradek")``, beside those that say what is read. ``again``: also if it is done."""

    bootstrap: str
    found: Found
    into: Target | Topic
    options: Mapping[str, str] = field(default_factory=dict)
    again: bool = False

    def frame(self, spark: SparkSession, headers: bool, more: Mapping[str, str]) -> DataFrame:
        """The records of the ranges, read with ``more`` options. Several ranges of a partition are read by several
        tasks, in no order."""
        from odradek.spark.registration import register

        register(spark)
        reads = [self._leg(leg, headers, more) for leg in legs(self.found.ranges)]
        frames = [spark.read.format("odradek").options(**options).load() for options in reads]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def planned(self, headers: bool, more: Mapping[str, str]) -> tuple[ReadOptions, PlannedBatch]:
        """The same records as one batch of ranges, and the options to read them with. Raises what lookups raise."""
        options = parse_options(self._leg(legs(self.found.ranges)[0], headers, more), streaming=False)
        wanted = {piece.partition for piece in self.found.ranges}
        lookups = Lookups(options)
        try:
            lookups.ends(wanted)
            ids = lookups.topic_ids({tp.topic for tp in wanted}) | dict(self.found.ids)
            epochs = {tp: lookups.leader_epoch(tp) for tp in wanted}
        finally:
            lookups.close()
        return options, PlannedBatch(self.found.ranges, ids, epochs)

    def _leg(self, leg: Sequence[Range], headers: bool, more: Mapping[str, str]) -> dict[str, str]:
        """The options of one batch read: each partition once at most."""
        names = sorted({piece.partition.topic for piece in leg})
        starts, ends = (
            {name: {str(p.partition.partition): p[at] for p in leg if p.partition.topic == name} for name in names}
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
    """``advance`` is told how many more offsets are read, from another thread; all of ``job.found.offsets`` at the end.

    Raises ConfigError, StorageError, UnknownTopic, BadRecords, QueryFailed.
    """
    if not job.found.ranges:
        return Replayed(0, 0, 0, already=False, seconds=0.0)
    count = _Count(advance)
    if isinstance(job.into, Topic):
        done = _into_topic(job, job.into, get_spark, count)
    else:
        done = _into_table(job, job.into, get_spark, count)
    count(job.found.offsets - count.done)
    return done


class _Count:
    """Passes on what it is told, and adds it up."""

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
    with opened(into, get_spark) as (table, started_spark):
        for known_as in dict.fromkeys((query, by_names)):
            before = table.told(known_as)
            if before is not None:
                seconds, is_older = time.monotonic() - started, known_as != query
                return Replayed(job.found.offsets, before.rows, before.bad, True, seconds, is_older)
        spark = started_spark()
        started = time.monotonic()
        with failures_told("the replay stopped"), plain_timestamps(spark), told(spark, advance) as telling:
            records = job.frame(spark, into.values.headers, telling)
            table.begin(records)
            if into.writer == "workers":
                options, planned = job.planned(into.values.headers, telling)
                added = table.add_ranges(spark, options, planned, 0, query=query)
            else:
                added = table.add(records, 0, query)
        return Replayed(job.found.offsets, added.rows, added.bad, already=False, seconds=time.monotonic() - started)


def _into_topic(
    job: Replay, into: Topic, get_spark: Callable[[], SparkSession], advance: Callable[[int], None]
) -> Replayed:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    given = {"kafka.bootstrap.servers": job.bootstrap, **job.options}
    config = parse_options({"subscribe": into.name, **given}, streaming=False).client
    writing = into.options(given)
    with Admin(quick(config)) as admin:
        check_topics(admin, [into.name])
        count = len(admin.partitions(into.name))
    most = max(piece.partition.partition for piece in job.found.ranges)
    if into.keep_partitions and most >= count:
        raise ConfigError(f"topic {into.name} has {count} partitions: there is no partition {most} to keep")
    spark = get_spark()
    started = time.monotonic()
    sent = Observation()
    with told(spark, advance) as telling, failures_told("the replay stopped"):
        frame = _copies(job.frame(spark, headers=True, more=telling), into).observe(sent, f.count("*").alias("rows"))
        frame.write.format("odradek").mode("append").options(**writing).save()
        rows = int(sent.get["rows"])
    return Replayed(job.found.offsets, rows, 0, already=False, seconds=time.monotonic() - started)


def _copies(records: DataFrame, into: Topic) -> DataFrame:
    """The records as they are sent."""
    from pyspark.sql import functions as f

    place = f.concat_ws("", f.col("topic"), f.lit("-"), f.col("partition"), f.lit("@"), f.col("offset"))
    mark = f.array(f.struct(f.lit(REPLAYED_FROM).alias("key"), place.cast("binary").alias("value")))
    headers = f.col("headers")
    if into.mark:
        none = f.array().cast("array<struct<key:string,value:binary>>")
        headers = f.concat(f.coalesce(headers, none), mark)
    columns = ["key", "value", headers.alias("headers")]
    columns += ["partition"] if into.keep_partitions else []
    columns += ["timestamp"] if into.keep_timestamps else []
    return records.select(*columns)


@with_keywords(ReplayOptions)
def replay(options: ReplayOptions) -> Found | Replayed:
    """Reads ranges of topics once more, into the table ``output`` or the topic ``to_topic``.

    How the table is written is said as for ``ingest``, and has to be said in the same way for a table that is there.
    The options are those of ``odradek pipeline replay``, which its ``--help`` explains; ``ReplayOptions`` says what is
    different here. ``dry_run`` returns what would be read.

    Raises ConfigError, StorageError, UnknownTopic, RangeGone, BadRecords, QueryFailed.
    """
    into = destination(options)
    found = find_ranges(options)
    if options.dry_run or into is None:
        return found
    job = Replay(options.bootstrap_servers, found, into, options.options or {}, options.again)
    table = into if isinstance(into, Target) else None
    return run_replay(job, lambda: options.spark or start_spark(options.master, options.conf, table))


def destination(options: ReplayOptions, shown: Callable[[str], str] = str) -> Target | Topic | None:
    """The table or topic to replay into, checked; None for a dry run that names none. ``shown``: how an option is
    written where it was given. Raises ConfigError.
    """
    output, to_topic = shown("output"), shown("to_topic")
    if options.output is not None and options.to_topic is not None:
        raise ConfigError(f"say where to: either {output} (a table) or {to_topic}")
    if options.to_topic is not None:
        producer = options.producer_options or {}
        topic = Topic(options.to_topic, options.keep_partitions, options.keep_timestamps, producer=producer)
        topic.options({"kafka.bootstrap.servers": options.bootstrap_servers, **(options.options or {})})
        return topic
    if options.keep_partitions or options.keep_timestamps:
        raise ConfigError(f"{shown('keep_partitions')} and {shown('keep_timestamps')} are for {to_topic}")
    if options.producer_options:
        raise ConfigError(f"{shown('producer_options')} is for {to_topic}")
    if options.output is not None:
        target = make_target(options, options.output)
        target.check()
        return target
    if not options.dry_run:
        what = f"{output} (a table) or {to_topic}; or {shown('dry_run')} to see what would be read"
        raise ConfigError(f"say where to: {what}")
    return None


def find_ranges(options: ReplayOptions) -> Found:
    """What the options say is to be read. Raises as ``find`` does."""
    chosen = Selection(
        names(options.topics),
        options.offsets,
        options.start,
        options.end,
        options.read_by,
        options.since,
        options.until,
        options.allow_missing,
    )
    given = {"kafka.bootstrap.servers": options.bootstrap_servers, "subscribe": "any", **(options.options or {})}
    return find(parse_options(given, streaming=False).client, chosen)
