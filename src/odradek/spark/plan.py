"""Which offsets a micro-batch reads, what is committed, and what a reset of the group means. Pure: no I/O, no clock.

Rules
-----
* The checkpoint is the query's truth. Spark keeps a *source offset* per batch, JSON that is opaque to it:
  ``{"flights": {"0": 500}, "$odradek": {"from": {…}, "followed": {…}, "ids": {…}, "epochs": {…}}}``. The topics hold,
  by name, the next offset to read after the batch. ``from`` names the partitions of which the batch does not start
  where the one before ended: all of a query's first batch, new ones, those that a reset or a loss moved. So a retry
  reads the same range, whatever the group or the log looks like by then. ``$`` occurs in no topic name.
* ``ids`` are the topics' ids: an offset means nothing in another topic of the same name, however long that is. Brokers
  before 2.8 have none, nor do checkpoints of Spark's own source: there only a shorter log shows.
* ``epochs`` are, per partition, the epoch of the leader whose log was seen to reach the position when the batch was
  planned (KIP-320; no record needs to be read for it, and the last record's own is at most that). Once another epoch
  reigns, its leader is asked where the kept one's records end in its log: below the position, the log was truncated,
  and may have grown again since. A checkpoint without them knows a truncated log by its length only.
* Spark asks for the next batch only when all up to ``start`` is done. So ``start`` is what is committed. The driver
  does the same when a batch is reported as finished and no next one is asked for yet (``batch_commits.py``).
* Our commits carry a mark, ``odradek-spark:1:<offset>``, in their metadata. A commit without it (or whose mark names
  another offset) was made by somebody else. If it differs from the position the query has, it is a reset for
  ``onGroupReset=follow``; for ``asked``, the default, only if it asks for that (``lag/reset_mark``). Another is
  overwritten, with a warning: who made it, and why, cannot be known, and the checkpoint is right.
* A followed reset is acknowledged first: committed again with ``odradek-spark:1:<offset>:<id>``, and the batch that
  reads from it remembers the id in ``followed``. This is what the group's commit then tells at the next start:

  | the group's commit       | and the checkpoint | means                                          | done         |
  |--------------------------|--------------------|------------------------------------------------|--------------|
  | none                     |                    | never committed, expired or deleted            | commit       |
  | ours, plain              | at that offset     | all is well                                    | nothing      |
  | ours, plain              | elsewhere          | killed after a batch, before its commit        | commit       |
  | ours, with an id         | has followed it    | killed likewise; that reset is done with       | commit       |
  | ours, with an id         | has not            | killed before the batch was planned            | follow it    |
  | another's                | at that offset     | nothing to move                                | commit       |
  | another's, that counts   | elsewhere          | a reset, always a new one                      | follow it    |
  | another's, that does not | elsewhere          | a consumer's, a mirror's, a person's           | commit       |
  | another query's, any     |                    | it came before this one, or runs beside it     | commit       |

  An id, not the offset, tells resets apart: rewinding to the same offset twice rewinds twice.
* A query has an id, which the checkpoint keeps from its first batch on (``query``); the marks end in it:
  ``odradek-spark:1:<offset>:<reset id or nothing>:<query>``. Who finds the mark of another query takes over from it:
  in a first batch as from anybody who had committed before, later with a warning. Where both run, each overwrites what
  the other commits, and goes on where its checkpoint says. Marks and checkpoints without an id are taken for one's own.
* What this cannot see: Kafka has no commit that depends on the one before. A reset that somebody else makes between
  our look at the group (OffsetFetch) and our commit (OffsetCommit, sent at once after it) is overwritten and never
  followed. That takes one round trip, some milliseconds per commit; before a reset is acknowledged, which planning a
  batch comes before, the group is looked at again. Reset the group once more then, or while the query is down.
* A commit carries the epoch that is kept with its offset, so that consumers who go on from it see the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import NO_EPOCH, OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import asks_for_reset
from odradek.spark import data_loss
from odradek.spark.commit_marks import mark_commit, mark_of, other_query
from odradek.spark.data_loss import NOBODY_KNOWS, Causes, DataLoss, loss_message
from odradek.spark.offset_ranges import LogRange, Range, share
from odradek.spark.options import EARLIEST, LATEST, OnGroupReset, Position, Start
from odradek.spark.source_offset import Offsets, SourceOffset, TopicIds

Commits = Mapping[TopicPartition, OffsetAndMetadata]


class GroupReset(OdradekError):
    """The group's offsets were moved by somebody else, and ``onGroupReset=fail`` says to stop then."""


class NoCommittedOffset(OdradekError):
    """Nothing usable is committed for a partition, and ``kafka.auto.offset.reset=none`` forbids to choose."""


# --- the group's commits --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settlement:
    """What the group's commits mean for a query that has done all up to some source offset.

    ``commits`` are to be written; ``resets`` are to be followed by the next batch: partition → (offset, reset id).
    ``others``: the queries whose commits are to be overwritten; ``unasked``: others' commits that are, by offset.
    """

    commits: Commits
    resets: Mapping[TopicPartition, tuple[int, str]]
    others: Mapping[TopicPartition, str] = field(default_factory=dict)
    unasked: Offsets = field(default_factory=dict)


def settle(done: SourceOffset, committed: Commits, on_reset: OnGroupReset, new_id: str) -> Settlement:
    """Compares the group with the checkpoint; the table above is this function. Raises GroupReset."""
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    resets: dict[TopicPartition, tuple[int, str]] = {}
    others: dict[TopicPartition, str] = {}
    unasked: dict[TopicPartition, int] = {}
    for partition, position in done.positions.items():
        commit = committed.get(partition)
        mark = None if commit is None else mark_of(commit)
        other = other_query(commit, done.query)
        # What another query acknowledges when it begins is no reset for this one.
        if commit is None or mark == "" or other or (mark is not None and mark == done.followed.get(partition)):
            moved = False
        else:
            moved = commit.offset != position
        if moved and commit is not None and _counts(commit, mark, done.ids.get(partition.topic), on_reset):
            resets[partition] = (commit.offset, mark or new_id)
        elif commit is None or commit.offset != position or mark != "" or other:
            epoch = done.epochs.get(partition, NO_EPOCH)
            commits[partition] = mark_commit(position, leader_epoch=epoch, query=done.query)
            if other:
                others[partition] = other
            elif moved and commit is not None and on_reset is OnGroupReset.ASKED:
                unasked[partition] = commit.offset
    if resets and on_reset is OnGroupReset.FAIL:
        raise GroupReset(_reset_message(done.positions, {tp: offset for tp, (offset, _) in resets.items()}))
    return Settlement(commits, resets, others, unasked)


def _counts(commit: OffsetAndMetadata, mark: str | None, topic_id: UUID | None, on_reset: OnGroupReset) -> bool:
    """Whether a commit that moved the group is a reset. One with our mark was acknowledged as one before."""
    if on_reset is OnGroupReset.ASKED:
        return mark is not None or asks_for_reset(commit, topic_id)
    return on_reset is not OnGroupReset.IGNORE


def _reset_message(positions: Offsets, targets: Offsets) -> str:
    moves = ", ".join(f"{tp} from {positions[tp]} to {targets[tp]}" for tp in sorted(targets))
    return (
        f"the group's committed offsets were reset by somebody else: {moves}. Run once with onGroupReset=follow to "
        "read from there, or with onGroupReset=ignore to go on from the checkpoint"
    )


def overwritten(group: str, targets: Offsets, positions: Offsets) -> str:
    moves = ", ".join(f"{tp} at {targets[tp]} (now {positions[tp]})" for tp in sorted(targets))
    return (
        f"group {group} held commits that neither this query nor `odradek groups reset` made; the checkpoint counts, "
        f"so they are overwritten: {moves}. To have the query go on from such an offset, reset the group with `odradek "
        "groups reset`, or set onGroupReset=follow to follow the commits of every tool"
    )


def two_queries(group: str, query: str, other: str, partitions: Iterable[TopicPartition]) -> str:
    return (
        f"group {group} held commits of another query ({other}), which this one ({query}) has overwritten: "
        f"{_names(partitions)}. If both run, the last commit stands. One query per group: give each a kafka.group.id "
        "of its own, or commitOffsets=false on one"
    )


def adopt(
    begin: Offsets, committed: Commits, new_id: str, query: str = ""
) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, str]]:
    """For partitions that a query starts to read: commits to acknowledge, and the reset ids to remember.

    What others committed before the query came is no reset, so it is written again as ours, at where the query starts.
    """
    acknowledge: dict[TopicPartition, OffsetAndMetadata] = {}
    followed: dict[TopicPartition, str] = {}
    for partition, offset in begin.items():
        commit = committed.get(partition)
        if commit is None:
            continue
        mark = mark_of(commit)
        if mark is None or other_query(commit, query):
            reset_id = mark or new_id
            acknowledge[partition] = mark_commit(offset, reset_id, commit, query=query)
            followed[partition] = reset_id
        elif mark:
            followed[partition] = mark
    return acknowledge, followed


# --- where to start and end -----------------------------------------------------------------------------------------


def starting_offsets(
    position: Position,
    log: Mapping[TopicPartition, LogRange],
    *,
    committed: Commits | None = None,
    reaches: Offsets | None = None,
    found: Offsets | None = None,
    auto_offset_reset: str = "earliest",
    latest_if_none: bool = False,
) -> dict[TopicPartition, int]:
    """Where a first batch, or a batch read, starts in each partition of ``log``.

    ``reaches`` are, as in ``TopicStates``, of the commits' epochs; ``found`` are the offsets of the wanted times, −1
    where no record is that young. Raises ConfigError, NoCommittedOffset.
    """
    if position.kind is Start.EARLIEST:
        return {tp: held.start for tp, held in log.items()}
    if position.kind is Start.LATEST:
        return {tp: held.end for tp, held in log.items()}
    if position.kind is Start.COMMITTED:
        reaches = reaches or {}
        given = {
            tp: taken_back(commit.offset, reaches.get(tp), log[tp])
            for tp, commit in (committed or {}).items()
            if tp in log
        }
        return {
            tp: usable_offset(tp, given.get(tp), held, auto_offset_reset, reaches.get(tp)) for tp, held in log.items()
        }
    if position.kind is Start.OFFSETS:
        _check_complete("startingOffsets", position.offsets, log)
        return {tp: _named(position.offsets[tp], held) for tp, held in log.items()}
    return _by_time("startingOffsetsByTimestamp", position, log, found or {}, latest_if_none)


def ending_offsets(
    position: Position, log: Mapping[TopicPartition, LogRange], *, found: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Where a batch read ends, exclusive. No record as young as a wanted time means the log's end."""
    if position.kind is Start.OFFSETS:
        _check_complete("endingOffsets", position.offsets, log)
        return {tp: _named(position.offsets[tp], held) for tp, held in log.items()}
    if position.kind is Start.TIMESTAMP:
        return _by_time("endingOffsetsByTimestamp", position, log, found or {}, True)
    return {tp: held.end for tp, held in log.items()}


def wanted_times(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The times, in ms, to look up before ``starting_offsets`` or ``ending_offsets`` can be asked."""
    if position.kind is not Start.TIMESTAMP:
        return {}
    if position.timestamp_ms is not None:
        return dict.fromkeys(partitions, position.timestamp_ms)
    return {tp: position.timestamps_ms[tp] for tp in partitions if tp in position.timestamps_ms}


def usable_offset(
    partition: TopicPartition, offset: int | None, held: LogRange, auto_offset_reset: str, reach: int | None = None
) -> int:
    """A committed offset if the log holds it, else what ``auto.offset.reset`` says, as in Kafka's consumer.

    Up to ``reach``, where it is told, the log holds all, though not all can be read yet.
    """
    if offset is not None and held.start <= offset <= max(held.end, reach or 0):
        return offset
    if auto_offset_reset == "none":
        what = f"has offset {offset} committed, outside of its log"
        if offset is None:
            what = "has no committed offset: none yet, or it expired (offsets.retention.minutes) or was deleted"
        raise NoCommittedOffset(
            f"{partition} {what}; its log reaches from {held.start} to {held.end}, and kafka.auto.offset.reset is none"
        )
    return held.end if auto_offset_reset == "latest" else held.start


# What Kafka says where a limit is off; everything from here on is too far to help.
_NO_LIMIT_MS = 10 * 365 * 86_400_000


def disorder_ms(settings: Mapping[str, str | None]) -> int | None:
    """How much older than an earlier record one of a topic with these settings can be; None: any."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return 0
    # Before Kafka 3.6 one limit served both directions.
    both = settings.get("message.timestamp.difference.max.ms")
    before = settings.get("message.timestamp.before.max.ms", both)
    after = settings.get("message.timestamp.after.max.ms", both)
    if before is None or after is None:
        return None
    total = int(before) + int(after)
    return total if total < _NO_LIMIT_MS else None


def _named(offset: int, held: LogRange) -> int:
    return {EARLIEST: held.start, LATEST: held.end}.get(offset, offset)


def _check_complete(name: str, given: Mapping[TopicPartition, int], log: Mapping[TopicPartition, LogRange]) -> None:
    if given.keys() != log.keys():
        raise ConfigError(
            f"{name} must name every partition that is read, -1 for latest and -2 for earliest; "
            f"named: {_names(given)}; read: {_names(log)}"
        )


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "none"


def _by_time(
    name: str, position: Position, log: Mapping[TopicPartition, LogRange], found: Offsets, latest_if_none: bool
) -> dict[TopicPartition, int]:
    if position.timestamp_ms is None:
        _check_complete(name, position.timestamps_ms, log)
    missing = [tp for tp in log if found.get(tp, -1) < 0]
    if missing and not latest_if_none:
        raise ConfigError(
            f"{_names(missing)}: no record is as young as the starting time; "
            "startingOffsetsByTimestampStrategy=latest would start at the end"
        )
    return {tp: held.end if tp in missing else found[tp] for tp, held in log.items()}


def lost_of_committed(
    committed: Commits,
    log: Mapping[TopicPartition, LogRange],
    causes: Causes = NOBODY_KNOWS,
    reaches: Offsets | None = None,
) -> list[str]:
    """What a log does not hold any more of what a group has not read, or has; ``reaches`` as in ``TopicStates``, of
    the commits' epochs."""
    lost: list[str] = []
    for partition, held in sorted(log.items()):
        offset = committed[partition].offset if partition in committed else held.start
        reach = (reaches or {}).get(partition)
        if offset < held.start:
            lost.append(data_loss.removed(partition, offset, held.start, causes))
        elif reach is not None:
            if reach < offset:
                lost.append(data_loss.parted(partition, offset, reach, held))
        elif offset > held.end:
            lost.append(data_loss.truncated(partition, offset, held.end, same_topic=False))
    return lost


def taken_back(offset: int, reach: int | None, held: LogRange) -> int:
    """Where to go on from an offset whose log parts, at ``reach``, from what it was read or committed under.

    That may lie beyond what can be read yet: all below it is there, and what was read of it comes no second time.
    """
    return offset if reach is None or offset <= reach else max(reach, held.start)


# --- the next batch -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """A planned batch: its source offset, the commits that acknowledge what it follows, and what it passes over."""

    end: SourceOffset
    acknowledge: Commits
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """``begin``: where partitions that the start does not have begin. ``committed``: the group's commits, where resets
    are watched for. ``resets``: to be followed, their offsets usable. ``origin_epochs``: those under which the offsets
    of ``begin`` and ``resets`` were committed. ``new_id``: for a reset that has none. ``query``: the id of a query that
    has none yet.
    """

    begin: Offsets = field(default_factory=dict)
    committed: Commits = field(default_factory=dict)
    resets: Mapping[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    origin_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    new_id: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class TopicStates:
    """``ids``: the topics' ids now. ``reaches``: where, in a leader's log of another epoch, what was written up to the
    kept epoch ends. ``causes``: why records are gone.
    """

    ids: TopicIds = field(default_factory=dict)
    reaches: Offsets = field(default_factory=dict)
    causes: Causes = NOBODY_KNOWS


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """``upto``: where to stop at the latest (partitions it lacks wait for another run). ``max_records``: of all
    partitions together; ``max_per_partition``: of each.
    """

    upto: Offsets | None = None
    max_records: int | None = None
    max_per_partition: Offsets = field(default_factory=dict)


NO_OFFSETS, NO_STATES, NO_LIMITS = GroupOffsets(), TopicStates(), BatchLimits()


def plan_batch(
    start: SourceOffset,
    log: Mapping[TopicPartition, LogRange],
    group: GroupOffsets = NO_OFFSETS,
    topics: TopicStates = NO_STATES,
    limits: BatchLimits = NO_LIMITS,
    *,
    fail_on_data_loss: bool = True,
) -> Batch | None:
    """The batch after ``start``, or None where there is nothing to do. Raises DataLoss."""
    waiting = told_by_deposed(start, log, topics.ids)
    resets = {tp: reset for tp, reset in group.resets.items() if tp not in waiting}
    log = {**log, **{tp: _as_read(start, tp, log[tp]) for tp in waiting}}
    kept, origins, lost = _keep(start, log, resets, topics)
    if lost and fail_on_data_loss:
        raise DataLoss(loss_message(lost))
    for partition, (offset, _) in resets.items():
        if partition in log:
            kept[partition] = origins[partition] = offset
    upto = limits.upto
    fresh = {
        tp: offset for tp, offset in group.begin.items() if tp not in start.positions and (upto is None or tp in upto)
    }
    kept.update(fresh)
    origins.update(fresh)
    ends = _ends(kept, log, limits)
    if not start.is_initial and not resets and not origins and ends == dict(start.positions):
        return None
    query = start.query or group.query
    acknowledge, followed = adopt(fresh, group.committed, group.new_id, query)
    for partition, (offset, reset_id) in resets.items():
        commit = group.committed.get(partition)
        followed[partition] = reset_id
        if commit is None or mark_of(commit) != reset_id or commit.offset != offset or other_query(commit, query):
            acknowledge[partition] = mark_commit(offset, reset_id, commit, query=query)
    known = {topic: topics.ids.get(topic) or start.ids.get(topic) for topic in {tp.topic for tp in ends}}
    epochs = _epochs(ends, log, {**start.epochs, **group.origin_epochs})
    kept_ids = {topic: found for topic, found in known.items() if found}
    end = SourceOffset(ends, origins, followed, kept_ids, epochs, query)
    return Batch(end, acknowledge, tuple(lost))


def told_by_deposed(start: SourceOffset, log: Mapping[TopicPartition, LogRange], ids: TopicIds) -> set[TopicPartition]:
    """Partitions whose log was told by a leader that was followed by the one whose epoch is kept, the topic being the
    same: what it says of the log's end is no news, so they wait for who reigns."""
    there = start.positions.keys() & log.keys()
    same = {tp for tp in there if (known := start.ids.get(tp.topic)) is not None and known == ids.get(tp.topic)}
    return {tp for tp in same if 0 <= log[tp].leader_epoch < start.epochs.get(tp, NO_EPOCH)}


def _as_read(start: SourceOffset, partition: TopicPartition, held: LogRange) -> LogRange:
    """The log as the query knows it: nothing has come, nothing is gone."""
    position = start.positions[partition]
    return LogRange(min(held.start, position), position, start.epochs[partition])


def _epochs(ends: Offsets, log: Mapping[TopicPartition, LogRange], known: Mapping[TopicPartition, int]) -> Offsets:
    """The epochs to keep beside positions.

    Under the leader that reigns now its log reaches all of them that can be read, not only those at its end. One beyond
    is there by what that leader said of the epoch known so far, so the same is to be asked again.
    """
    epochs = {tp: log[tp].leader_epoch if end <= log[tp].end else known.get(tp, NO_EPOCH) for tp, end in ends.items()}
    return {tp: epoch for tp, epoch in epochs.items() if epoch >= 0}


def _keep(
    start: SourceOffset,
    log: Mapping[TopicPartition, LogRange],
    resets: Mapping[TopicPartition, tuple[int, str]],
    topics: TopicStates,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], list[str]]:
    """Where the partitions of ``start`` go on, those of them that do not go on where they ended, and what is lost."""
    ids, causes = topics.ids, topics.causes
    kept: dict[TopicPartition, int] = {}
    origins: dict[TopicPartition, int] = {}
    lost: list[str] = []
    for partition, position in start.positions.items():
        held = log.get(partition)
        if held is None:
            lost.append(data_loss.missing(partition, position, causes))
        elif partition in resets:
            continue  # whatever happened at the old position, the query leaves it
        elif start.is_of_another_topic(partition.topic, ids):
            lost.append(
                f"{partition}: it was read up to offset {position}, but its topic was deleted and created again "
                f"({start.ids[partition.topic]}, now {ids[partition.topic]})"
            )
            kept[partition] = origins[partition] = held.start
        elif position < held.start:
            lost.append(data_loss.removed(partition, position, held.start, causes))
            kept[partition] = origins[partition] = held.start
        elif (reach := topics.reaches.get(partition)) is not None:
            if reach < position:
                lost.append(data_loss.parted(partition, position, reach, held))
                kept[partition] = origins[partition] = taken_back(position, reach, held)
            else:  # all of it is there, though a leader elected a moment ago may not know yet how far one can read
                kept[partition] = position
        elif position > held.end:
            same_topic = start.ids.get(partition.topic) is not None and ids.get(partition.topic) is not None
            lost.append(data_loss.truncated(partition, position, held.end, same_topic=same_topic))
            kept[partition] = origins[partition] = held.start
        else:
            kept[partition] = position
    return kept, origins, lost


def lost_of_named(
    begin: Offsets, end: Offsets, log: Mapping[TopicPartition, LogRange], causes: Causes = NOBODY_KNOWS
) -> list[str]:
    """What a batch read names and does not find."""
    lost: list[str] = []
    for partition, held in sorted(log.items()):
        low, high = begin[partition], end[partition]
        if low < held.start and low < high:
            lost.append(data_loss.removed(partition, low, held.start, causes, end=high))
        if high > held.end:
            lost.append(f"{partition}: offset {high - 1} is not there yet (its log ends at {held.end})")
    return lost


def _ends(begin: Offsets, log: Mapping[TopicPartition, LogRange], limits: BatchLimits) -> dict[TopicPartition, int]:
    available: dict[TopicPartition, int] = {}
    for partition, offset in begin.items():
        stop = log[partition].end
        if limits.upto is not None:
            stop = min(stop, limits.upto.get(partition, offset))
        size = max(0, stop - offset)
        available[partition] = min(size, limits.max_per_partition.get(partition, size))
    shares = share(available, limits.max_records)
    return {tp: offset + shares[tp] for tp, offset in begin.items()}


def has_enough(start: SourceOffset, batch: Batch, log: Mapping[TopicPartition, LogRange], least: int) -> bool:
    """Whether at least ``least`` records wait beyond ``start`` (``minOffsetsPerTrigger``). A reset never waits."""
    if batch.end.origins:
        return True
    return sum(max(0, log[tp].end - start.positions[tp]) for tp in start.positions if tp in log) >= least


# --- ranges ---------------------------------------------------------------------------------------------------------


def ranges(start: SourceOffset, end: SourceOffset) -> list[Range]:
    """What the batch from ``start`` to ``end`` reads, empty ranges left out."""
    found: list[Range] = []
    for partition, stop in sorted(end.positions.items()):
        begin = end.origins.get(partition, start.positions.get(partition))
        if begin is not None and begin < stop:
            found.append(Range(partition, begin, stop))
    return found
