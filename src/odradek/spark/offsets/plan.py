"""The plan of a micro-batch: its offsets, the query's commits, and resets of the group. Pure: no I/O, no clock.

Rules
-----
* The checkpoint decides what the query has read. Spark stores a *source offset* per micro-batch, JSON that is opaque to
  it: ``{"flights": {"0": 500}, "$odradek": {"from": {…}, "followed": {…}, "ids": {…}, "epochs": {…}}}``. The topics, by
  name, have the next offset to read after the micro-batch. ``from`` has the start offset of each partition
  that does not start at the end of the previous micro-batch: all partitions in a query's first micro-batch, new
  partitions, and partitions that a reset or a loss moved. So a retry reads the same range, even if the group or the log
  has changed. ``$`` occurs in no topic name.
* ``ids`` are the topic ids: an offset has no meaning in another topic of the same name, whatever its length. Brokers
  before 2.8 and checkpoints of Spark's own source have no ids; without them only a shorter log shows a new topic.
* ``epochs`` are, per partition, the epoch of the leader whose log reached the position when the micro-batch was planned
  (KIP-320). The planner reads no record for it: the epoch of the last record is not higher. If the current leader has
  a later epoch, the planner requests the end offset of the stored epoch. An end offset below the position
  means that the log was truncated, even if the log has grown again. Without a stored epoch, only a shorter log shows
  truncation.
* ``absent`` are the positions of partitions that were missing when a micro-batch was planned (``failOnDataLoss=false``,
  or a changed subscription). If such a partition is read again, it continues there, by the same rules for losses and
  resets as any position. The group's commit does not decide: it may be older, or have expired.
* When Spark requests the micro-batch that begins at a source offset, all records up to this source offset are done. So
  the planner then commits the source offset. If Spark does not request the next micro-batch at once, the driver commits
  the finished one (``micro_batch_commits.py``).
* ``after`` is the digest of the offsets after which the micro-batch was planned. If another copy of the checkpoint is
  put back while a query runs, the folder gets a micro-batch that follows another one; a pipeline finds that.
* Our commits have a mark, ``odradek-spark:1:<offset>``, in their metadata. A commit without a mark, or with the mark of
  another offset, comes from another client. If its offset differs from the query's position, it is a reset with
  ``onGroupReset=follow`` or ``fail``. With ``asked``, the default, it is a reset only if its metadata asks for one
  (``lag/reset_mark``). With ``ignore``, it is no reset. The query overwrites any other commit, because the checkpoint
  decides. With ``asked`` it also warns, because the author and the purpose of the commit are unknown.
* The query acknowledges a reset before it follows the reset: it commits the reset's offset again with the mark
  ``odradek-spark:1:<offset>:<id>``. The micro-batch that reads from this offset stores the id in ``followed``. So the
  group's commit means:

  | the group's commit        | and the checkpoint | means                                         | action       |
  |---------------------------|--------------------|-----------------------------------------------|--------------|
  | none                      |                    | never committed, expired or deleted           | commit       |
  | ours, without an id       | at that offset     | the group is up to date                       | none         |
  | ours, without an id       | at another offset  | killed after a micro-batch, before its commit | commit       |
  | ours, with a reset's id   | has followed it    | the reset is done                             | commit       |
  | ours, with a reset's id   | has not followed   | killed before the micro-batch was planned     | follow it    |
  | another client's          | at that offset     | no move                                       | commit       |
  | another client's, a reset | at another offset  | always a new reset                            | follow it    |
  | another client's, no reset| at another offset  | a consumer's, a mirror's or a person's        | commit       |
  | another query's           |                    | an earlier query, or one that runs now        | commit       |

  A reset is known by its id, not by its offset: if two resets have the same offset, the query follows both.
* A query has an id. The checkpoint has it from the first micro-batch on (``query``), and the marks end with it:
  ``odradek-spark:1:<offset>:<reset id or nothing>:<query>``. A query that finds another query's mark takes over the
  group. In the query's first micro-batch, the other query's commit counts as any earlier commit; later the query warns.
  If both queries run, each overwrites the other's commits and continues from its own checkpoint. A mark or checkpoint
  without a query's id counts as the query's own.
* Limit: Kafka has no conditional commit. If another client resets the group between the planner's OffsetFetch and the
  OffsetCommit sent at once after it, the reset is overwritten and never followed. This window is one round trip, some
  milliseconds per commit. Planning takes longer, so the planner fetches the group's offsets again before it
  acknowledges a reset. An overwritten reset has to be repeated, or made while the query does not run.
* With ``commitOffsets=transaction`` the planner commits only acknowledgements, which do not change the group's offsets.
  Where the table says "commit", the driver adds the end of a micro-batch to the micro-batch's transaction
  (``micro_batch_groups.py``). It does not overwrite a reset that the query has yet to follow. The limit above does
  not apply to the driver, which fetches the group's offsets again inside the transaction.
* A commit has the leader epoch that the checkpoint has for the same offset, for consumers that continue from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, NO_EPOCH, OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import asks_for_reset
from odradek.spark.offsets import data_loss
from odradek.spark.offsets.commit_marks import mark_commit, mark_of, other_query
from odradek.spark.offsets.data_loss import UNKNOWN_CAUSES, Causes, DataLoss, loss_message
from odradek.spark.offsets.offset_ranges import LogRange, Range, share
from odradek.spark.offsets.source_offset import Offsets, SourceOffset, TopicIds
from odradek.spark.options import OnGroupReset, Position, Start

Commits = Mapping[TopicPartition, OffsetAndMetadata]


class GroupReset(OdradekError):
    """Another client moved the group's offsets, and ``onGroupReset=fail`` ends the query."""


class NoCommittedOffset(OdradekError):
    """A partition has no usable committed offset, and ``kafka.auto.offset.reset=none`` allows no other start."""


# --- the group's commits --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitDecision:
    """What a query does about the group's commits, after it has read up to a source offset.

    ``commits``: the commits to write. ``resets``: what the next micro-batch follows, partition → (offset, reset id).
    ``others``: the other query whose commit in a partition is overwritten. ``overwritten``: with
    ``onGroupReset=asked``, the offsets of overwritten commits that no query has made.
    """

    commits: Commits
    resets: Mapping[TopicPartition, tuple[int, str]]
    others: Mapping[TopicPartition, str] = field(default_factory=dict)
    overwritten: Offsets = field(default_factory=dict)


def decide_commits(done: SourceOffset, committed: Commits, on_reset: OnGroupReset, new_id: str) -> CommitDecision:
    """Compares the group with the checkpoint by the table in the module's docstring. Raises GroupReset."""
    commits: dict[TopicPartition, OffsetAndMetadata] = {}
    resets: dict[TopicPartition, tuple[int, str]] = {}
    others: dict[TopicPartition, str] = {}
    overwritten: dict[TopicPartition, int] = {}
    for partition, position in done.positions.items():
        commit = committed.get(partition)
        mark = None if commit is None else mark_of(commit)
        other = other_query(commit, done.query)
        # Another query's mark is never a reset for this query, even if the mark has a reset id: the other query's first
        # micro-batch writes such a mark.
        if commit is None or mark == "" or other or (mark is not None and mark == done.followed.get(partition)):
            moved = False
        else:
            moved = commit.offset != position
        if moved and commit is not None and _is_reset(commit, mark, done.ids.get(partition.topic), on_reset):
            resets[partition] = (commit.offset, mark or new_id)
        elif commit is None or commit.offset != position or mark != "" or other:
            epoch = done.epochs.get(partition, NO_EPOCH)
            commits[partition] = mark_commit(position, leader_epoch=epoch, query=done.query)
            if other:
                others[partition] = other
            elif moved and commit is not None and on_reset is OnGroupReset.ASKED:
                overwritten[partition] = commit.offset
    if resets and on_reset is OnGroupReset.FAIL:
        raise GroupReset(_reset_message(done.positions, {tp: offset for tp, (offset, _) in resets.items()}))
    return CommitDecision(commits, resets, others, overwritten)


def existing_commits(decision: CommitDecision, existing: Offsets) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the commits whose offset is not above the log's end in ``existing``.

    A log may have been truncated, or its topic deleted or created again.
    """
    return {tp: commit for tp, commit in decision.commits.items() if commit.offset <= existing.get(tp, -1)}


def uncommitted(decision: CommitDecision, committed: Commits, existing: Offsets) -> list[TopicPartition]:
    """Returns the partitions whose committed offset is not the micro-batch's end. Leaves out partitions whose commit
    another client or query has made."""
    moved = decision.overwritten.keys() | decision.others.keys()
    commits = existing_commits(decision, existing)
    return [
        tp
        for tp, commit in commits.items()
        if tp not in moved and (tp not in committed or committed[tp].offset != commit.offset)
    ]


def _is_reset(commit: OffsetAndMetadata, mark: str | None, topic_id: UUID | None, on_reset: OnGroupReset) -> bool:
    """Returns whether a commit that moved the group is a reset. A commit with our mark and an id acknowledges one."""
    if on_reset is OnGroupReset.ASKED:
        return mark is not None or asks_for_reset(commit, topic_id)
    return on_reset is not OnGroupReset.IGNORE


def _reset_message(positions: Offsets, targets: Offsets) -> str:
    moves = ", ".join(f"{tp} from {positions[tp]} to {targets[tp]}" for tp in sorted(targets))
    return (
        f"the group's committed offsets were reset by another client: {moves}. Run once with onGroupReset=follow to "
        "read from there, or with onGroupReset=ignore to continue from the checkpoint"
    )


def overwritten_message(group: str, targets: Offsets, positions: Offsets) -> str:
    moves = ", ".join(f"{tp} at {targets[tp]} (now {positions[tp]})" for tp in sorted(targets))
    return (
        "to read from a commit of another tool, add --mark to `odradek groups reset`, or set onGroupReset=follow: such "
        f"commits of group {group} are overwritten, because the checkpoint decides: {moves}"
    )


def two_tables_message(group: str, other: str, partition: TopicPartition) -> str:
    return (
        f"group {group}: the pipeline of the table {other} has committed the offset of {partition}. If that is another "
        "table, or a copy of this one, both overwrite each other's commits: give each table a group of its own. If it "
        "is a former name of this table, nothing is to be done"
    )


def two_queries_message(group: str, query: str, other: str, partitions: Iterable[TopicPartition]) -> str:
    return (
        f"group {group} had commits of another query ({other}), which this query ({query}) has overwritten: "
        f"{_names(partitions)}. If both run, they overwrite each other. Use one group per query: give each its own "
        "kafka.group.id, or set commitOffsets=false on one"
    )


def no_transaction_message(group: str, partitions: Iterable[TopicPartition]) -> str:
    return (
        f"the last micro-batch is finished, and group {group} does not have its offsets: {_names(partitions)}. If they "
        "were deleted, the next micro-batch commits its own. Otherwise no transaction has committed them: "
        "commitOffsets=transaction needs foreachBatch(odradek.spark.transactional_writer(…)) as the query's sink; with "
        "another sink set commitOffsets=true"
    )


def acknowledge_start(
    begin: Offsets, committed: Commits, new_id: str, query: str = ""
) -> tuple[dict[TopicPartition, OffsetAndMetadata], dict[TopicPartition, str]]:
    """Returns commits that acknowledge the group's offsets of new partitions, and the reset ids for the checkpoint.

    Commits that other clients made before the query started are no resets. So the query commits its start offset with
    its own mark.
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


# --- start and end of a read ------------------------------------------------------------------------------------------


def starting_offsets(
    position: Position,
    log: Mapping[TopicPartition, LogRange],
    *,
    committed: Commits | None = None,
    epoch_ends: Offsets | None = None,
    found: Offsets | None = None,
    auto_offset_reset: str = "earliest",
    latest_if_none: bool = False,
) -> dict[TopicPartition, int]:
    """Returns the start offset of a first micro-batch, or a batch read, in each partition of ``log``.

    ``epoch_ends``: as in ``TopicStates``, for the epochs of the commits. ``found``: the offsets for ``wanted_times``,
    −1 where no record is that recent. Raises ConfigError, NoCommittedOffset.
    """
    if position.kind is Start.EARLIEST:
        return {tp: bounds.start for tp, bounds in log.items()}
    if position.kind is Start.LATEST:
        return {tp: bounds.end for tp, bounds in log.items()}
    if position.kind in (Start.COMMITTED, Start.ZOOKEEPER):
        epoch_ends = epoch_ends or {}
        given = {
            tp: resume_offset(commit.offset, epoch_ends.get(tp), log[tp])
            for tp, commit in (committed or {}).items()
            if tp in log
        }
        return {
            tp: usable_offset(tp, given.get(tp), bounds, auto_offset_reset, epoch_ends.get(tp))
            for tp, bounds in log.items()
        }
    if position.kind is Start.OFFSETS:
        _check_complete("startingOffsets", position.offsets, log)
        return {tp: _resolve(position.offsets[tp], bounds) for tp, bounds in log.items()}
    return _by_time("startingOffsetsByTimestamp", position, log, found or {}, latest_if_none)


def ending_offsets(
    position: Position, log: Mapping[TopicPartition, LogRange], *, found: Offsets | None = None
) -> dict[TopicPartition, int]:
    """Returns the end offsets of a batch read, exclusive. If no record is as recent as a wanted time: the log end."""
    if position.kind is Start.OFFSETS:
        _check_complete("endingOffsets", position.offsets, log)
        return {tp: _resolve(position.offsets[tp], bounds) for tp, bounds in log.items()}
    if position.kind is Start.TIMESTAMP:
        return _by_time("endingOffsetsByTimestamp", position, log, found or {}, True)
    return {tp: bounds.end for tp, bounds in log.items()}


def wanted_times(position: Position, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Returns the times, in ms, whose offsets ``starting_offsets`` or ``ending_offsets`` takes as ``found``."""
    if position.kind is not Start.TIMESTAMP:
        return {}
    if position.timestamp_ms is not None:
        return dict.fromkeys(partitions, position.timestamp_ms)
    return {tp: position.timestamps_ms[tp] for tp in partitions if tp in position.timestamps_ms}


def usable_offset(
    partition: TopicPartition,
    offset: int | None,
    bounds: LogRange,
    auto_offset_reset: str,
    epoch_end: int | None = None,
) -> int:
    """Returns a committed offset if it is in the log, else the start by ``auto.offset.reset``, as in Kafka's consumer.

    ``epoch_end``, if known, is in the log too, even if not all records below it can be read yet.
    """
    if offset is not None and bounds.start <= offset <= max(bounds.end, epoch_end or 0):
        return offset
    if auto_offset_reset == "none":
        what = f"has the committed offset {offset}, which is outside of its log"
        if offset is None:
            what = "has no committed offset: none yet, or it expired (offsets.retention.minutes) or was deleted"
        there = f"its log has offsets {bounds.start} to {bounds.end}"
        raise NoCommittedOffset(f"{partition} {what}; {there}, and kafka.auto.offset.reset is none")
    return bounds.end if auto_offset_reset == "latest" else bounds.start


def _resolve(offset: int, bounds: LogRange) -> int:
    return {EARLIEST: bounds.start, LATEST: bounds.end}.get(offset, offset)


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
            f"{_names(missing)}: no record is as recent as the starting time; "
            "startingOffsetsByTimestampStrategy=latest starts at the end instead"
        )
    return {tp: bounds.end if tp in missing else found[tp] for tp, bounds in log.items()}


def losses_of_committed(
    committed: Commits,
    log: Mapping[TopicPartition, LogRange],
    causes: Causes = UNKNOWN_CAUSES,
    epoch_ends: Offsets | None = None,
    group: str = "",
) -> list[str]:
    """Returns the losses at a group's committed offsets: unread records that are deleted, or a truncated log.
    ``epoch_ends``: as in ``TopicStates``, for the epochs of the commits."""
    lost: list[str] = []
    for partition, bounds in sorted(log.items()):
        offset = committed[partition].offset if partition in committed else bounds.start
        epoch_end = (epoch_ends or {}).get(partition)
        if offset < bounds.start:
            lost.append(data_loss.removed_message(partition, offset, bounds.start, causes))
        elif epoch_end is not None:
            if epoch_end < offset:
                lost.append(data_loss.diverged_message(partition, offset, epoch_end, bounds))
        elif offset > bounds.end:
            lost.append(data_loss.committed_beyond_message(partition, offset, bounds.end, group))
    return lost


def resume_offset(offset: int, epoch_end: int | None, bounds: LogRange) -> int:
    """Returns the offset at which reading continues. The log diverges at ``epoch_end`` if it is below ``offset``.

    The result may be above the offsets that can be read yet: the records below it exist and were read, so they must not
    be read again.
    """
    return offset if epoch_end is None or offset <= epoch_end else max(epoch_end, bounds.start)


# --- the next micro-batch ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A planned micro-batch: its source offset, the commits that acknowledge resets, and messages about lost
    records."""

    end: SourceOffset
    acknowledge: Commits
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The group's offsets for a plan.

    * ``begin``: the start offsets of partitions that ``start`` does not have.
    * ``committed``: the group's commits; empty if the query ignores resets.
    * ``resets``: the resets to follow, with usable offsets.
    * ``origin_epochs``: the leader epochs of the commits that decide ``begin`` and ``resets``.
    * ``new_id``: the id for a reset without one. ``query``: the id for a query without one.
    """

    begin: Offsets = field(default_factory=dict)
    committed: Commits = field(default_factory=dict)
    resets: Mapping[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    origin_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    new_id: str = ""
    query: str = ""


@dataclass(frozen=True, slots=True)
class TopicStates:
    """The topics' state for a plan. ``ids``: the current topic ids. ``causes``: looks up the causes of a loss.

    ``epoch_ends``: the end offset of the stored epoch in the log of a leader with a later epoch.
    """

    ids: TopicIds = field(default_factory=dict)
    epoch_ends: Offsets = field(default_factory=dict)
    causes: Causes = UNKNOWN_CAUSES


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of a micro-batch. ``max_records``: for all partitions together; ``max_per_partition``: for each.

    ``upto``: the highest end offset of each partition; other partitions wait for another run.
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
) -> MicroBatch | None:
    """Returns the micro-batch after ``start``, or None if there is nothing to do. Raises DataLoss.

    ``start``: the result of ``SourceOffset.with_present``.
    """
    waiting = with_former_leader(start, log, topics.ids)
    resets, upto = {tp: reset for tp, reset in group.resets.items() if tp not in waiting}, limits.upto
    # What retention removes beyond the end of this run is for the next run. A run that followed it would not end.
    passed = {tp for tp in log if upto is not None and upto.get(tp, 0) <= start.positions.get(tp, -1) < log[tp].start}
    log = {**log, **{tp: _log_as_read(start, tp, log[tp]) for tp in waiting | (passed - resets.keys())}}
    kept, origins, lost = _next_offsets(start, log, resets, topics)
    if lost and fail_on_data_loss:
        raise DataLoss(loss_message(lost))
    for partition, (offset, _) in resets.items():
        if partition in log:
            kept[partition] = origins[partition] = offset
    origins.update({tp: kept[tp] for tp in start.absent if tp in kept})
    fresh = {
        tp: offset for tp, offset in group.begin.items() if tp not in start.positions and (upto is None or tp in upto)
    }
    kept.update(fresh)
    origins.update(fresh)
    ends = _ends(kept, log, limits)
    if not start.is_initial and not resets and not origins and ends == dict(start.positions):
        return None
    query = start.query or group.query
    acknowledge, followed = acknowledge_start(fresh, group.committed, group.new_id, query)
    for partition, (offset, reset_id) in resets.items():
        commit = group.committed.get(partition)
        followed[partition] = reset_id
        if commit is None or mark_of(commit) != reset_id or commit.offset != offset or other_query(commit, query):
            acknowledge[partition] = mark_commit(offset, reset_id, commit, query=query)
    absent = start.absent_after(ends, topics.ids)
    known = {topic: topics.ids.get(topic) or start.ids.get(topic) for topic in {tp.topic for tp in (*ends, *absent)}}
    epochs = {tp: epoch for tp, epoch in start.epochs.items() if tp in absent}
    epochs |= _epochs(ends, log, {**start.epochs, **group.origin_epochs})
    kept_ids = {topic: found for topic, found in known.items() if found}
    end = SourceOffset(ends, origins, followed, kept_ids, epochs, absent, query, after=start.digest)
    return MicroBatch(end, acknowledge, tuple(lost))


def with_former_leader(
    start: SourceOffset, log: Mapping[TopicPartition, LogRange], ids: TopicIds
) -> set[TopicPartition]:
    """Returns partitions whose log end offset is from a former leader: its epoch is older than the stored one.

    The topic is the same. Such a log end offset is out of date, so these partitions wait for the current leader.
    """
    there = start.positions.keys() & log.keys()
    same = {tp for tp in there if (known := start.ids.get(tp.topic)) is not None and known == ids.get(tp.topic)}
    return {tp for tp in same if 0 <= log[tp].leader_epoch < start.epochs.get(tp, NO_EPOCH)}


def _log_as_read(start: SourceOffset, partition: TopicPartition, bounds: LogRange) -> LogRange:
    """Returns the log as the query has read it: without new records and without losses."""
    position = start.positions[partition]
    return LogRange(min(bounds.start, position), position, start.epochs.get(partition, NO_EPOCH))


def _epochs(ends: Offsets, log: Mapping[TopicPartition, LogRange], known: Mapping[TopicPartition, int]) -> Offsets:
    """Returns the leader epochs to store with the positions.

    For a position up to the log end, that is the epoch of the current leader. A position above the log end keeps the
    known epoch, because the leader has confirmed that this epoch reaches the position. The next plan asks again.
    """
    epochs = {tp: log[tp].leader_epoch if end <= log[tp].end else known.get(tp, NO_EPOCH) for tp, end in ends.items()}
    return {tp: epoch for tp, epoch in epochs.items() if epoch >= 0}


def _next_offsets(
    start: SourceOffset,
    log: Mapping[TopicPartition, LogRange],
    resets: Mapping[TopicPartition, tuple[int, str]],
    topics: TopicStates,
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int], list[str]]:
    """Returns the next offsets of the partitions of ``start``, those offsets that a loss moved, and the losses.

    Partitions in ``resets`` are left out."""
    ids, causes = topics.ids, topics.causes
    kept: dict[TopicPartition, int] = {}
    origins: dict[TopicPartition, int] = {}
    lost: list[str] = []
    for partition, position in start.positions.items():
        bounds = log.get(partition)
        if bounds is None:
            lost.append(data_loss.missing_message(partition, position, causes))
        elif partition in resets:
            continue  # the query leaves the old position, so a loss there does not matter
        elif start.is_of_another_topic(partition.topic, ids):
            lost.append(
                f"{partition}: it was read up to offset {position}, but its topic was deleted and created again "
                f"({start.ids[partition.topic]}, now {ids[partition.topic]})"
            )
            kept[partition] = origins[partition] = bounds.start
        elif position < bounds.start:
            lost.append(data_loss.removed_message(partition, position, bounds.start, causes))
            kept[partition] = origins[partition] = bounds.start
        elif (epoch_end := topics.epoch_ends.get(partition)) is not None:
            if epoch_end < position:
                lost.append(data_loss.diverged_message(partition, position, epoch_end, bounds))
                kept[partition] = origins[partition] = resume_offset(position, epoch_end, bounds)
            else:  # the records exist, but a new leader may not know its high watermark yet
                kept[partition] = position
        elif position > bounds.end:
            same_topic = start.ids.get(partition.topic) is not None and ids.get(partition.topic) is not None
            what = data_loss.truncated_message(partition, position, bounds.end, same_topic=same_topic)
            lost.append(what + data_loss.read_again_message(bounds.start))
            kept[partition] = origins[partition] = bounds.start
        else:
            kept[partition] = position
    return kept, origins, lost


def losses_of_named(
    begin: Offsets, end: Offsets, log: Mapping[TopicPartition, LogRange], causes: Causes = UNKNOWN_CAUSES
) -> list[str]:
    """Returns the losses of a batch read: named offsets that are deleted or do not exist yet."""
    lost: list[str] = []
    for partition, bounds in sorted(log.items()):
        low, high = begin[partition], end[partition]
        if low < bounds.start and low < high:
            lost.append(data_loss.removed_message(partition, low, bounds.start, causes, end=high))
        if low > bounds.end or high > bounds.end:
            lost.append(f"{partition}: offset {max(low, high - 1)} does not exist yet (its log ends at {bounds.end})")
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


def has_enough(start: SourceOffset, batch: MicroBatch, log: Mapping[TopicPartition, LogRange], least: int) -> bool:
    """Returns whether ``least`` records wait after ``start`` (``minOffsetsPerTrigger``). Returns True, too, for a
    micro-batch with a reset, a loss or a new partition."""
    if batch.end.origins:
        return True
    return sum(max(0, log[tp].end - start.positions[tp]) for tp in start.positions if tp in log) >= least


# --- ranges ---------------------------------------------------------------------------------------------------------


def ranges(start: SourceOffset, end: SourceOffset) -> list[Range]:
    """Returns the ranges of the micro-batch from ``start`` to ``end``, without empty ones."""
    found: list[Range] = []
    for partition, stop in sorted(end.positions.items()):
        begin = end.origins.get(partition, start.positions.get(partition))
        if begin is not None and begin < stop:
            found.append(Range(partition, begin, stop))
    return found
