"""The input of a replay: the selection, the ranges that were looked up for it, and the reads of their records."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import GroupIdNotFound
from odradek.core.counts import span
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, TopicPartition
from odradek.pipelines.checkpoint import PlannedBatch
from odradek.pipelines.ranges import merge, subtract
from odradek.pipelines.replays.selection import (
    RangeGone,
    ReadByGroup,
    batch_reads,
    commits_of,
    parse_ranges,
    read_between,
    time_ms,
)
from odradek.pipelines.sources import check_topics, with_short_timeouts
from odradek.pipelines.values.arguments import ArgumentError
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.options import ReadOptions, parse_options
from odradek.text.similar_names import nearest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odradek.pipelines.formats.target import Target
    from odradek.pipelines.replays.topic import ReplayTopic


@dataclass(frozen=True)
class Selection:
    """The records to read, selected in one of three ways:

    * ``offsets``;
    * ``topics``, from ``start`` to ``end`` (earliest, latest, an offset or a time);
    * ``read_by``: the records that this group has read between its commits at ``since`` and ``until``. Without
    ``topics``, all topics of the group are read.
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
        """Checks the selection. Raises ConfigError."""
        by_place = (self.start, self.end) != ("earliest", "latest")
        ways = [self.offsets is not None, self.read_by is not None, by_place]
        if sum(ways) > 1:
            raise ArgumentError(
                lambda shown: (
                    f"choose one way to say what to read: {shown('offsets')}, {shown('start')} and "
                    f"{shown('end')}, or {shown('read_by')}"
                )
            )
        if self.read_by is None and (self.since is not None or self.until is not None):
            raise ArgumentError(
                lambda shown: (
                    f"{shown('since')} and {shown('until')} are times of a group's commits: name the group, too, "
                    f"with {shown('read_by')}"
                )
            )
        if self.offsets is not None:
            if self.topics:
                raise ArgumentError(
                    lambda shown: f"{shown('offsets')} contains the names of the topics: omit {shown('topics')}"
                )
            parse_ranges(self.offsets)
        elif self.read_by is None and not self.topics:
            raise ArgumentError(
                lambda shown: f"say what to read: give {shown('topics')}, {shown('offsets')} or {shown('read_by')}"
            )
        if self.read_by == "":
            raise ArgumentError(lambda shown: f"{shown('read_by')}: a group's name cannot be empty: give one")
        since, until = self.times()
        if since is not None and until is not None and since > until:
            raise ArgumentError(
                lambda shown: f"{shown('since')} {self.since} is after {shown('until')} {self.until}: exchange them"
            )
        start, end = _parse_target(self.start, "start"), _parse_target(self.end, "end")
        if start is None and end is None:
            start, end = time_ms(self.start, "start"), time_ms(self.end, "end")
        if isinstance(start, int) and isinstance(end, int) and start > end:
            raise ArgumentError(
                lambda shown: f"{shown('start')} {self.start} is after {shown('end')} {self.end}: exchange them"
            )

    def words(self) -> list[object]:
        """Returns the selection in a form that is equal for equal selections. ``allow_missing`` is no part of it, so
        that a run can be repeated with this option."""
        ranges = None if self.offsets is None else parse_ranges(self.offsets)
        places = [_parse_target(self.start, "start"), _parse_target(self.end, "end")]
        texts = [
            time_ms(text, "place") if found is None else found
            for text, found in zip((self.start, self.end), places, strict=True)
        ]
        return [sorted(self.topics), ranges, *texts, self.read_by, *self.times()]

    def digest(self, salt: str = "") -> str:
        """Returns the id of a replay into a table that selects these records."""
        return hashlib.sha256((json.dumps(["options", *self.words()]) + salt).encode()).hexdigest()

    def times(self) -> tuple[int | None, int | None]:
        """Returns ``since`` and ``until`` in milliseconds since 1970. Raises ConfigError."""
        since = None if self.since is None else time_ms(self.since, "since")
        return since, None if self.until is None else time_ms(self.until, "until")


@dataclass(frozen=True)
class ReplayRanges:
    """The ranges of a replay. ``gone``: a line for each missing range, if the options allow missing ranges. ``read``:
    the ranges that the group has read, by partition. ``ids``: the topic ids, if the cluster has ids. ``there``: if the
    selection begins at the log start or at a time, the part of each partition that the log has, from the log start to
    the end of the selection; what an earlier run had not read below it was deleted since. ``removed``: what the
    selection names and the logs have no more, if earlier runs of the replay may have read it.
    """

    ranges: tuple[Range, ...]
    gone: tuple[str, ...] = ()
    read: Mapping[TopicPartition, ReadByGroup] = field(default_factory=dict)
    ids: Mapping[str, UUID] = field(default_factory=dict)
    there: tuple[Range, ...] = ()
    removed: tuple[Range, ...] = ()

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions of the replay, also those of which no record is left."""
        return {piece.partition for piece in (*self.ranges, *self.there, *self.removed)}

    @property
    def offsets(self) -> int:
        """The number of offsets in the ranges. Compacted topics and topics with transactions have fewer records."""
        return sum(piece.size for piece in self.ranges)

    @property
    def has_deleted(self) -> bool:
        """Whether a log has lost its first records, so that an earlier run may have not read some of them."""
        return bool(self.removed) or any(piece.start > 0 for piece in self.there)

    def deleted_since(self, read: Iterable[tuple[TopicPartition, int, int]]) -> list[Range]:
        """Returns the offsets that were deleted before the replay has read them. ``read``: the ranges that earlier runs
        have read or planned."""
        done = merge(Range(*piece) for piece in read)
        lasts = {piece.partition: piece.end for piece in done}
        ends = {tp: min(start, end) for tp, start, end in self.there}
        came = [Range(tp, at, ends[tp]) for tp, at in lasts.items() if at < ends.get(tp, 0)]
        return merge([*came, *subtract(self.removed, done)])

    def digest(self, salt: str = "") -> str:
        """Returns an id of the ranges and topic ids. A topic created again has another id, so the digest differs.
        Without topic ids, the digest is ``digest_of_names``."""
        if not self.ids:
            return self.digest_of_names(salt)
        names = sorted({piece.partition.topic for piece in self.ranges} & self.ids.keys())
        return self.digest_of_names(json.dumps({name: str(self.ids[name]) for name in names}) + salt)

    def digest_of_names(self, salt: str = "") -> str:
        """Returns the id by which earlier versions identified a replay."""
        text = json.dumps([[*piece.partition, piece.start, piece.end] for piece in self.ranges]) + salt
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Replayed:
    """The result of a replay. ``offsets``: the size of its ranges. ``rows``: the written rows. ``bad``: the rows among
    them with an unreadable value. ``already``: whether an earlier run had already done this replay. ``by_names``:
    whether that run's version identified topics only by name, so the topics may have been created again since then.
    ``transactions``: the number of transactions of this run; None unless the replay writes into a topic exactly once.
    ``earlier``: how many of the ``offsets`` were already done by earlier runs; None if that is not known, or if a table
    got all of them now. ``missing``: a line for each
    missing range, if the options allow missing ranges.
    """

    offsets: int
    rows: int
    bad: int
    already: bool
    seconds: float
    by_names: bool = False
    transactions: int | None = None
    earlier: int | None = None
    missing: tuple[str, ...] = ()


def find(
    config: ClientConfig,
    chosen: Selection,
    isolation_level: str = "read_uncommitted",
    *,
    is_continued: bool = False,
) -> ReplayRanges:
    """Looks up the ranges. With read_committed, they end before the first record of an open transaction.
    ``is_continued``: whether earlier runs may have read what the logs have no more: then it is no error here.

    Raises ConfigError, UnknownTopic, RangeGone, BrokerUnreachable."""
    chosen.check()
    with Admin(with_short_timeouts(config)) as admin:
        # The ids are looked up before the offsets: if a topic is created again after this, reading its ranges fails.
        ids = {name: topic.topic_id for name, topic in admin.describe_topics().items() if topic.topic_id}
        read: dict[TopicPartition, ReadByGroup] = {}
        missing: list[str] = []
        there: tuple[Range, ...] = ()
        if chosen.read_by is not None:
            read, missing = _read_by(admin, config, chosen)
            wanted = merge(piece for found in read.values() for piece in found.ranges)
        elif chosen.offsets is not None:
            wanted = parse_ranges(chosen.offsets)
            check_topics(admin, sorted({piece.partition.topic for piece in wanted}))
        else:
            wanted, there = _between_targets(admin, chosen, isolation_level)
        removed = _removed(admin, wanted) if is_continued else []
        held, gone = available(admin, config, subtract(wanted, removed), isolation_level)
    missing += gone
    if missing and not chosen.allow_missing:
        raise RangeGone("; ".join(missing))
    names = {piece.partition.topic for piece in (*held, *there, *removed)}
    known = {name: ids[name] for name in sorted(names & ids.keys())}
    return ReplayRanges(tuple(held), tuple(missing), read, known, there, tuple(removed))


def _read_by(
    admin: Admin, config: ClientConfig, chosen: Selection
) -> tuple[dict[TopicPartition, ReadByGroup], list[str]]:
    from odradek.history import read_offset_history
    from odradek.history.records.unreadable import UnreadableRecords

    assert chosen.read_by is not None
    described = admin.describe_topics()
    check_topics(admin, chosen.topics)
    ids = {name: topic.topic_id.bytes if topic.topic_id else None for name, topic in described.items()}
    history = read_offset_history(config, group=chosen.read_by)
    unreadable = UnreadableRecords()
    for batch in history.to_batches():
        unreadable.add(batch)
    commits = commits_of(history, ids)
    wanted = {tp: found for tp, found in commits.items() if not chosen.topics or tp.topic in chosen.topics}
    if not commits and not unreadable.count:
        _check_group(admin, chosen.read_by)
    if not wanted:
        of = f" for {', '.join(chosen.topics)}" if chosen.topics else ""
        why = f": {unreadable}" if unreadable.count else ""
        raise RangeGone(f"__consumer_offsets holds no commit of group {chosen.read_by}{of}{why}")
    since, until = chosen.times()
    read: dict[TopicPartition, ReadByGroup] = {}
    missing = [str(unreadable)] if unreadable.count else []
    for tp, found in sorted(wanted.items()):
        try:
            one = read_between(tp, found, since, until)
        except RangeGone as error:
            missing.append(str(error))
            one = read_between(tp, found, None, until)
        if one is not None:
            read[tp] = one
    return read, missing


def _check_group(admin: Admin, group: str) -> None:
    """Raises GroupIdNotFound with a similar name, or with how to list the groups."""
    known = [row.group_id for row in admin.list_groups()]
    if group not in known:
        near = nearest(group, known) or ": odradek groups list shows the groups"
        raise GroupIdNotFound(f"group {group} not found{near}", group)


def _parse_target(text: str, option: str) -> str | int | None:
    """Returns ``earliest``, ``latest``, an offset as int, or None for a time. Raises ConfigError."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return word
    if word.isascii() and word.isdigit() and len(word) < 19:
        return int(word)
    try:
        time_ms(text, option)
    except ArgumentError:
        example = "for example 2026-01-31T12:00:00 (UTC; +01:00 behind it names another zone)"
        raise ArgumentError(
            lambda shown: f"{shown(option)} {text!r} is neither earliest, latest, an offset nor a time, {example}"
        ) from None
    return None


def is_time(text: str, option: str) -> bool:
    """Returns whether ``start`` or ``end`` is a time, and not an offset or a word. Raises ConfigError."""
    return _parse_target(text, option) is None


def _between_targets(admin: Admin, chosen: Selection, isolation_level: str) -> tuple[list[Range], tuple[Range, ...]]:
    """Returns the ranges between the two places, and what ``ReplayRanges.there`` says."""
    partitions = [tp for name in check_topics(admin, chosen.topics) for tp in admin.partitions(name)]
    starts = _resolve(admin, partitions, (chosen.start, "start"), isolation_level)
    ends = _resolve(admin, partitions, (chosen.end, "end"), isolation_level)
    there: tuple[Range, ...] = ()
    place = _parse_target(chosen.start, "start")
    if place in ("earliest", None):
        firsts = starts if place else _resolve(admin, partitions, ("earliest", "start"), isolation_level)
        there = tuple(Range(tp, firsts[tp], ends[tp]) for tp in partitions)
    return [Range(tp, starts[tp], ends[tp]) for tp in partitions if starts[tp] < ends[tp]], there


def _resolve(
    admin: Admin, partitions: Sequence[TopicPartition], target: tuple[str, str], level: str
) -> dict[TopicPartition, int]:
    """Returns the offset of a target in each partition. ``target``: the text, and the name of its argument."""
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
                gone.append(data_loss.removed_message(tp, low, start, causes, end=high))
            if high > end:
                beyond = max(low, end)
                verb = "does" if high - beyond == 1 else "do"
                gone.append(f"{tp}: {span(beyond, high)} {verb} not exist ({what} at {end})")
            held.append(Range(tp, max(low, start), min(high, end)))
    finally:
        if causes is not None:
            causes.close()
    return merge(held), gone


def _removed(admin: Admin, wanted: Sequence[Range]) -> list[Range]:
    """Returns the parts of the ranges below the starts of their logs."""
    there = {tp for name in {piece.partition.topic for piece in wanted} for tp in _partitions(admin, name)}
    starts = admin.list_offsets(dict.fromkeys({piece.partition for piece in wanted} & there, EARLIEST))
    return merge(Range(tp, low, min(high, starts[tp].offset)) for tp, low, high in wanted if tp in starts)


def _partitions(admin: Admin, topic: str) -> Sequence[TopicPartition]:
    return admin.partitions(topic) if topic in admin.describe_topics([topic], missing_ok=True) else ()


def _options(config: ClientConfig, asked: Sequence[TopicPartition]) -> ReadOptions:
    assigned = {name: [tp.partition for tp in asked if tp.topic == name] for name in {tp.topic for tp in asked}}
    given = {"kafka.bootstrap.servers": config.bootstrap_servers, "assign": json.dumps(assigned)}
    return dataclasses.replace(parse_options(given, streaming=False), client=config)


@dataclass(frozen=True)
class Replay:
    """A replay to run. ``options``: for ``format("odradek")``, without those that select the records. ``again``: run it
    even if the destination already has it. ``chosen``: the selection from which the ranges come; it identifies a replay
    into a topic.
    """

    bootstrap: str
    found: ReplayRanges
    into: Target | ReplayTopic
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    again: bool = False
    chosen: Selection = field(default_factory=Selection)

    def frame(self, spark: SparkSession, headers: bool, more: Mapping[str, str]) -> DataFrame:
        """Returns the records of the ranges, read with the ``more`` options. If a partition has several ranges,
        several tasks read them, in no particular order."""
        from odradek.spark.registration import register

        register(spark)
        reads = [self._read_options(ranges, headers, more) for ranges in batch_reads(self.found.ranges)]
        frames = [spark.read.format("odradek").options(**options).load() for options in reads]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def planned(self, headers: bool, more: Mapping[str, str]) -> tuple[ReadOptions, PlannedBatch]:
        """Returns the read options, and the ranges as one micro-batch. Raises the errors of lookups."""
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
        """Returns the options of a batch query that reads at most one range of each partition."""
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
