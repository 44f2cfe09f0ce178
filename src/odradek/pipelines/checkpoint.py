"""Reads a query's offsets from its checkpoint, and commits them to its group if the query could not.

If the query was killed after a micro-batch and before the commit, the checkpoint is ahead of the group.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from odradek.core.errors import OdradekError, StorageError
from odradek.core.ids import NO_EPOCH, OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import asks_for_reset
from odradek.pipelines.commit.damaged_files import DamagedFile, fault_of, remedied_by
from odradek.pipelines.commit.state import BatchPlan, check_follows, check_link, covers_of, ends_of, topic_of
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.sources import Source
from odradek.spark.offsets.commit_marks import is_of_query, is_of_table, mark_commit, mark_of, other_output, with_output
from odradek.spark.offsets.group_look import GroupLook
from odradek.spark.offsets.initial_offsets import UnknownStart, without_start
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.offsets.plan import CommitDecision, GroupReset, ranges
from odradek.spark.offsets.source_offset import INITIAL, Offsets, SourceOffset, TopicIds
from odradek.spark.options import parse_options
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line

NO_BATCH = -1
_OFFSET_LINES = 3
_VERSION = re.compile(r"v\d+", re.ASCII)
_NEXT_RUN = "The next run commits it"
RESTORE = (
    "Restore the checkpoint. For a table, a new one can begin at the table's offsets instead: `odradek pipeline adopt` "
    "shows how"
)
_SUM = re.compile(r"\.(\d+|metadata)\.crc")


@dataclass(frozen=True)
class CommitState:
    """Whether a group's offsets are those of the query's last finished micro-batch; None: unknown. ``why``: the reason
    if they are not, or if that is unknown. ``remedy``: what the user can do, or what the next run does."""

    is_committed: bool | None
    why: str = ""
    remedy: str = ""


COMMITTED = CommitState(is_committed=True)
UNFINISHED = "no micro-batch is finished yet"


@dataclass(frozen=True)
class LatestBatch:
    """The newest micro-batch in Spark's checkpoint, done or not. ``batch``: its number; -1 if there is none yet.

    ``end``: the offsets after the micro-batch. If the micro-batch is not done, a restarted query runs it first,
    whatever the group's offsets are by then.
    """

    batch: int = NO_BATCH
    end: SourceOffset = INITIAL


def newest_batch(checkpoint: Location) -> LatestBatch:
    """Returns the newest micro-batch in Spark's offset log (one file per micro-batch). Raises StorageError."""
    number = newest_number(checkpoint)
    return LatestBatch() if number is None else LatestBatch(number, _offset_at(checkpoint, number))


@dataclass(frozen=True)
class PlannedBatch:
    """The ranges of a micro-batch and the ids of its topics. ``epochs``: for each partition, the epoch of the
    leader that had all records below the end, if known. ``ends``: the query's offset in each of its partitions after
    the micro-batch. ``begin`` and ``end``: its start and its end in the checkpoint."""

    ranges: tuple[Range, ...]
    ids: TopicIds
    epochs: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    begin: SourceOffset = INITIAL
    end: SourceOffset = INITIAL


def planned_batch(checkpoint: Location, batch_id: int) -> PlannedBatch:
    """Returns a micro-batch from the plan that Spark wrote before the micro-batch began. Raises StorageError."""
    start = INITIAL if batch_id == 0 else _offset_at(checkpoint, batch_id - 1)
    end = _offset_at(checkpoint, batch_id)
    _check_starts(start, end, f"{checkpoint.uri}/offsets/{batch_id}")
    check_follows(start.offsets, end.offsets, end.origins, batch_id, checkpoint.uri)
    if end != start:  # Spark repeats an offset for a micro-batch without records
        check_link(end.after, start.digest, batch_id, checkpoint.uri)
    return PlannedBatch(tuple(ranges(start, end)), end.ids, end.epochs, end.positions, start, end)


def _check_starts(start: SourceOffset, end: SourceOffset, name: str) -> None:
    """Raises StorageError if a partition of the micro-batch has an end and no start."""
    try:
        unknown = without_start(start, end)
    except UnknownStart:
        unknown = set(end.positions)
    if unknown:
        named = ", ".join(map(str, sorted(unknown)))
        raise StorageError(f"{name} has no start offset of {named}: another source has planned it. {RESTORE}")


def newest_number(checkpoint: Location) -> int | None:
    """Returns the number of the newest micro-batch that Spark has planned, done or not; None if there is none yet."""
    return max(_numbers(checkpoint, "offsets"), default=None)


def newest_done(checkpoint: Location) -> int | None:
    """Returns the number of the newest micro-batch that Spark has noted as done; None if there is none yet."""
    return max(_numbers(checkpoint, "commits"), default=None)


def query_id(checkpoint: Location) -> str:
    """Returns the id that Spark gave the query of this checkpoint. Each query numbers its micro-batches from 0.

    Raises StorageError.
    """
    text = text_in(checkpoint, "metadata")
    if text is None:
        raise StorageError(f"{checkpoint.uri}/metadata is missing: it has the id of the query. {RESTORE}")
    try:
        return str(parse_json(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedFile(f"{checkpoint.uri}/metadata", fault_of(text, error), RESTORE) from error


def text_in(checkpoint: Location, name: str) -> str | None:
    """Returns the text of a file of a checkpoint; None if there is no such file. Raises StorageError."""
    with remedied_by(RESTORE):
        return checkpoint.read_text(name)


def remove_unfinished_plan(checkpoint: Location) -> None:
    """Removes the hidden files of a run that was killed while it planned the first micro-batch: Spark begins a query
    only if its folder of offsets is empty. Raises StorageError."""
    log = checkpoint.child("offsets")
    names = log.children()
    if all(name.startswith(".") for name in names):
        for name in names:
            log.delete(name)


def remove_sums_without_files(checkpoint: Location) -> None:
    """Removes Hadoop's checksums of files that are not there: with such a checksum Spark cannot write the file again.
    Raises StorageError."""
    for log in (checkpoint, checkpoint.child("offsets"), checkpoint.child("commits")):
        names = set(log.children())
        for name in names:
            if (sum_of := _SUM.fullmatch(name)) and sum_of[1] not in names:
                log.delete(name)


def check_readable(checkpoint: Location, done: int | None, newest: int | None) -> None:
    """Checks the files that Spark reads when a query begins: its errors name neither the file nor what helps. ``done``,
    ``newest``: as for ``commits_without_offsets``. Raises StorageError."""
    if newest is not None:
        query_id(checkpoint)
        for number in range(max(0, newest - 1), newest + 1):
            _offset_at(checkpoint, number)
    text = None if done is None else text_in(checkpoint, f"commits/{done}")
    if text is None:
        return
    name, (version, _, content) = f"{checkpoint.uri}/commits/{done}", text.partition("\n")
    if text.strip():
        _check_version(version, name)
    _check_object(content, name)


def _check_object(text: str, name: str) -> None:
    """Checks a part of a file of Spark's logs that is a JSON object. Raises StorageError."""
    try:
        if not isinstance(parse_json(text), dict):
            raise TypeError
    except (ValueError, TypeError) as error:
        raise DamagedFile(name, fault_of(text, error), RESTORE) from error


def _check_version(line: str, name: str) -> None:
    """Checks the first line of a file of Spark's logs. Raises StorageError."""
    if _VERSION.fullmatch(line.strip()) is None:
        raise DamagedFile(name, "its first line is no version of Spark's log", RESTORE)


def commits_without_offsets(checkpoint: Location, done: int | None, newest: int | None) -> str:
    """Returns what is wrong if a later micro-batch is done than the newest one with offsets; otherwise an empty text.
    Spark would repeat the newest one, plan the next one, which is noted as done, and fail after it, in every run.

    ``done``, ``newest``: of ``newest_done`` and, called after it, ``newest_number``: another run may go on meanwhile.
    """
    if done is None or (newest is not None and done <= newest):
        return ""
    of = "there are no offsets" if newest is None else f"its newest offsets are those of micro-batch {newest}"
    return (
        f"{checkpoint.uri} has micro-batch {done} as done, and {of}: a part of it was lost, or an older copy was put "
        "back while a run was writing"
    )


def plan_of(checkpoint: Location, planned: PlannedBatch, query: str, batch_id: int) -> BatchPlan:
    """Returns a micro-batch for the table's commit. Raises StorageError."""
    before = None
    if batch_id > 0 and (batch_id == 1 or text_in(checkpoint, f"offsets/{batch_id - 2}") is not None):
        before = covers_of(planned_batch(checkpoint, batch_id - 1).ranges)
    known = planned.begin.offsets
    return BatchPlan(
        query,
        batch_id,
        covers_of(planned.ranges),
        ends_of(planned.end.offsets),
        None if batch_id == 0 else ends_of(known),
        before,
        planned.end.offsets,
        {tp: at for tp, at in planned.end.origins.items() if tp not in known},
        {topic: topic_of(str(topic_id)) for topic, topic_id in planned.ids.items() if topic_id is not None},
        unlinked=_unlinked(planned) if batch_id > 0 else {},
    )


def _unlinked(planned: PlannedBatch) -> Offsets:
    """Returns the partitions that a micro-batch begins elsewhere than at the end of the one before it, and where, if an
    earlier version has planned it. A reset that it follows has its own evidence: the id."""
    begin, end = planned.begin, planned.end
    if end.after:
        return {}
    known = begin.offsets
    return {
        tp: at
        for tp, at in end.origins.items()
        if tp not in known or (at != known[tp] and end.followed.get(tp) == begin.followed.get(tp))
    }


def _offset_at(checkpoint: Location, batch_id: int) -> SourceOffset:
    text = text_in(checkpoint, f"offsets/{batch_id}")
    if text is None:
        raise StorageError(
            f"{checkpoint.uri}/offsets/{batch_id} is missing: it has the offsets of the micro-batch. {RESTORE}"
        )
    return _offset_of(text, f"{checkpoint.uri}/offsets/{batch_id}")


def commit_group(source: Source, checkpoint: Location) -> CommitState:
    """Commits the end of the query's last finished micro-batch to the group, as the query itself does before the next
    micro-batch.

    If the query commits its offsets in transactions, this function only compares the offsets. If another client has
    reset the group meanwhile, the next run follows that reset. If the cluster refuses the commit or does not reply, the
    returned state says so: the output is complete, and the next run commits. If the offsets of transactions cannot be
    read, the state is unknown. Raises StorageError.
    """
    options = parse_options(source.all_options(), streaming=True)
    if not (options.commit_offsets or options.offsets_in_transaction) or options.group_id is None:
        return CommitState(False, "commitOffsets is false")
    done = _numbers(checkpoint, "commits")
    text = text_in(checkpoint, f"offsets/{max(done)}") if done else None
    if text is None:
        return CommitState(False, UNFINISHED, _NEXT_RUN)
    end = _offset_of(text, f"{checkpoint.uri}/offsets/{max(done)}")
    with contextlib.closing(Lookups(options)) as lookups:
        try:
            if options.offsets_in_transaction:
                return _state_of(lookups, end)
            existing = lookups.existing_ends(end, lookups.ends(lookups.partitions()))
            decision = lookups.commit_decision(end, lookups.committed(end.positions))
            return _commit(lookups, decision, existing, end.query)
        except (OdradekError, OSError) as error:
            if options.offsets_in_transaction:
                said = one_line(error)
                why = f"its offsets cannot be read: {said}. Each transaction commits its records and their offsets"
                return CommitState(None, why, "Remove the cause, and compare with 'odradek groups describe'")
            lookups.note_refusal(error)
            return refused_state(lookups)


Guard = Callable[[Callable[[], CommitState], Lookups | None], CommitState]
"""Calls the commit of the group's offsets, if the table allows it. The lookups send it; None: there is nothing to
send."""


def idle_state(
    source: Source, checkpoint: Location, guard: Guard = lambda commit, lookups: commit(), *, output: str = ""
) -> CommitState | None:
    """Returns the group's state if the query would plan no micro-batch: its newest micro-batch is done, the topics have
    no new records, and there is no reset to follow. If so, it first commits the offsets as the query would, or only
    compares them if the query commits in transactions. Returns None if the query may have something to do, or if a
    lookup fails: then the query itself reports the reason. ``guard``: calls the commit. ``output``: the name of the
    table that has the records, for the commit's mark.
    """
    planned, done = _numbers(checkpoint, "offsets"), _numbers(checkpoint, "commits")
    if not planned or max(planned) not in done:
        return None
    options = parse_options(source.all_options(), streaming=True)
    try:
        end = _offset_at(checkpoint, max(planned))
        with contextlib.closing(Lookups(options)) as lookups:
            ends = lookups.ends(lookups.partitions())
            end = end.with_present(ends)
            if not lookups.has_nothing_new(end, ends):
                return None
            if options.offsets_in_transaction:
                state, resets = _state_of(lookups, end), lookups.commit_decision(end, lookups.committed(ends)).resets
                return None if resets else state
            if not options.commit_offsets:
                return CommitState(False, "commitOffsets is false")
            existing = lookups.existing_ends(end, ends)
            committed = lookups.committed(ends)
            decision = lookups.commit_decision(end, committed)
            if decision.resets:
                return None
            if output:
                decision = _named(lookups, decision, end, committed, output)
            sender = lookups if decision.commits else None
            return guard(lambda: _commit(lookups, decision, existing, end.query), sender)
    except (OdradekError, OSError):
        return None


def drop_overruled_plan(source: Source, checkpoint: Location) -> bool:
    """Removes the plan of a micro-batch that is not in the table, if the group was reset since: the query would repeat
    the plan before it follows the reset, and a plan that fails would fail for ever. Returns whether it was removed.

    A lookup that fails changes nothing: the query itself reports the reason. Raises StorageError.
    """
    number = newest_number(checkpoint)
    if number is None:
        return False
    start, end = INITIAL if number == 0 else _offset_at(checkpoint, number - 1), _offset_at(checkpoint, number)
    options = parse_options(source.all_options(), streaming=True)
    try:
        with contextlib.closing(Lookups(options)) as lookups:
            ends = lookups.ends(lookups.partitions())
            committed = lookups.committed(ends)
            resets = lookups.commit_decision(start.with_present(ends), committed).resets
            ids = lookups.topic_ids({tp.topic for tp in end.origins})
    except (OdradekError, OSError):
        return False
    is_reset = not {reset_id for _, reset_id in resets.values()} <= set(end.followed.values())
    if number == 0:  # the first plan begins at the group's commits
        began = {tp: one for tp, one in committed.items() if end.origins.get(tp, one.offset) != one.offset}
        is_reset = any(asks_for_reset(one, ids.get(tp.topic)) for tp, one in began.items())
    if not is_reset:
        return False
    checkpoint.child("offsets").delete(str(number))
    return True


def overtaken_by(
    checkpoint: Location, committed: Mapping[TopicPartition, OffsetAndMetadata], done: int | None, newest: int | None
) -> str:
    """Returns what shows that a checkpoint is an older copy: its query has committed offsets to the group, in the
    transactions of its micro-batches, that the checkpoint does not have. Otherwise returns an empty text.
    ``committed``: the group's commits, looked up before the numbers ``done`` and ``newest``. Raises StorageError."""
    if newest is None:
        return ""
    planned = planned_batch(checkpoint, newest)
    starts = planned.end.offsets if done == newest else planned.begin.offsets
    for tp, end in sorted(planned.end.offsets.items()):
        one = committed.get(tp)
        if one is None or not is_of_query(one, planned.end.query) or one.offset in (end, starts.get(tp, end)):
            continue
        if mark_of(one):  # the query acknowledges a reset before it writes the plan, without a transaction
            continue
        if one.offset > starts.get(tp, 0):
            return (
                f"the checkpoint {checkpoint.uri} is older than its output: its query has committed offset "
                f"{one.offset} of {tp} to the group, and the checkpoint ends at {end}"
            )
    return ""


def planned_at_ms(checkpoint: Location, batch_id: int) -> int | None:
    """Returns the time at which Spark has planned a micro-batch; None if the checkpoint does not say it. Raises
    StorageError."""
    _, settings, *_ = [*(text_in(checkpoint, f"offsets/{batch_id}") or "").splitlines(), "", ""]
    try:
        return int(parse_json(settings)["batchTimestampMs"])
    except (ValueError, KeyError, TypeError):
        return None


def commit_end(lookups: Lookups, end: SourceOffset, output: str, look: str = "") -> CommitState:
    """Commits the end of a micro-batch that the table ``output`` has. A failure is in the returned state. ``look``: the
    file in which the planner of the next micro-batch finds what was seen. Raises nothing."""
    try:
        ends = lookups.ends(lookups.partitions())
        existing = lookups.existing_ends(end, ends)
        committed = lookups.committed(end.positions)
        decision = lookups.commit_decision(end, committed)
        decision = _named(lookups, decision, end, committed, output)
        state = _commit(lookups, decision, existing, end.query)
        if look and state == COMMITTED and ends.keys() == end.positions.keys():
            epochs = {tp: lookups.leader_epoch(tp) for tp in ends}
            ids = lookups.topic_ids({tp.topic for tp in ends})
            GroupLook(end, ends, epochs, ids, {**committed, **decision.commits}).write(look)
        return state
    except GroupReset as error:  # the planner ends the query with this error
        return CommitState(False, str(error), "The next run reports it, too")
    except (OdradekError, OSError) as error:
        lookups.note_refusal(error)
        return refused_state(lookups)


def _named(
    lookups: Lookups,
    decision: CommitDecision,
    end: SourceOffset,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    output: str,
) -> CommitDecision:
    """Returns the decision with commits that name the table ``output``, also where the group has the same offset by
    another table. Logs a warning about that table."""
    theirs = {tp: other for tp, one in committed.items() if (other := other_output(one, output))}
    lookups.warn_of_outputs(theirs)
    again = {
        tp: mark_commit(end.positions[tp], leader_epoch=end.epochs.get(tp, NO_EPOCH), query=end.query)
        for tp in theirs.keys() & end.positions.keys() - decision.resets.keys()
    }
    commits = again | dict(decision.commits)
    return replace(decision, commits={tp: with_output(commit, output) for tp, commit in commits.items()})


@dataclass(frozen=True)
class GroupStart:
    """Where a query without micro-batches begins. ``offsets``: the group's offsets; partitions without one begin as the
    options say. ``outputs``: other tables whose pipelines have committed them. ``ours``, ``at_end``: as in
    ``BatchPlan``, of the partitions that the checkpoint does not have; ``ours`` also of those that are not read now,
    because they may be later. ``partitions``: all that are read now."""

    offsets: Mapping[TopicPartition, int]
    outputs: tuple[str, ...] = ()
    ours: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_end: tuple[TopicPartition, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()


def group_start(
    source: Source,
    output: str,
    known: Offsets,
    *,
    planned: Offsets | None = None,
    lookups: Lookups | None = None,
) -> GroupStart:
    """Returns where a query of the table ``output`` begins the partitions that its checkpoint does not have. ``known``:
    the partitions of the checkpoint; none if it has no micro-batch. ``planned``: where its first micro-batch begins, if
    a run has planned it and not finished it: that run may have had other options. ``lookups``: those of the source, if
    there are some. Raises the errors of lookups."""
    with contextlib.ExitStack() as stack:
        if lookups is None:
            options = parse_options(source.all_options(), streaming=True)
            lookups = stack.enter_context(contextlib.closing(Lookups(options)))
        partitions = lookups.partitions()
        unread = [tp for tp in partitions if tp not in known]
        found = lookups.admin.list_group_offsets(lookups.group_id) if unread else {}
        held = {tp: one for tp, one in sorted(found.items()) if one.offset >= 0 and tp not in known}
        at_end: list[TopicPartition] = []
        if planned is not None:
            at_end = _begun_at_end(lookups, {tp: planned[tp] for tp in unread if tp not in held and tp in planned})
        elif lookups.options.auto_offset_reset == "latest" and not known:
            at_end = [tp for tp in unread if tp not in held]
    topics = {tp.topic for tp in known}
    ours = {tp: one.offset for tp, one in held.items() if is_of_table(one, output, is_read=tp.topic in topics)}
    committed = {tp: one for tp, one in held.items() if tp in unread}
    outputs = {other_output(commit, output) for commit in committed.values()} - {""}
    begins = {tp: one.offset for tp, one in committed.items()}
    return GroupStart(begins, tuple(sorted(outputs)), ours, tuple(at_end), tuple(partitions))


def _begun_at_end(lookups: Lookups, begun: Offsets) -> list[TopicPartition]:
    """Returns the partitions that begin behind their log start. ``begun``: where they begin."""
    starts = lookups.starts(begun)
    return [tp for tp, at in begun.items() if at > starts[tp]]


def _commit(lookups: Lookups, decision: CommitDecision, existing: Offsets, query: str) -> CommitState:
    """Commits the offsets of ``decision``. Returns the state of the group after the commit."""
    if not lookups.commit_existing(decision, existing, query):
        return refused_state(lookups)
    for tp, commit in decision.commits.items():
        if commit.offset > existing.get(tp, -1):
            why = f"the log of {tp} no longer has the records that were read, up to offset {commit.offset}"
            return CommitState(False, why, "The next run names the missing records")
    return _reset_state(decision) or COMMITTED


def _state_of(lookups: Lookups, end: SourceOffset) -> CommitState:
    """Returns whether the group has the offsets that the transactions of the query have committed."""
    committed = lookups.committed(end.positions)
    decision = lookups.commit_decision(end, committed)
    if state := _reset_state(decision):
        return state
    if decision.commits:
        moved = ", ".join(
            f"{tp} has {committed[tp].offset if tp in committed else 'no offset'}" for tp in sorted(decision.commits)
        )
        return CommitState(
            False, f"another client has changed it: {moved}", "The transaction of the next micro-batch commits it"
        )
    return COMMITTED


def _reset_state(decision: CommitDecision) -> CommitState | None:
    if not decision.resets:
        return None
    moves = ", ".join(f"{tp} to {offset}" for tp, (offset, _) in sorted(decision.resets.items()))
    return CommitState(False, f"another client has reset it meanwhile: {moves}", "The next run reads from there")


def refused_state(lookups: Lookups) -> CommitState:
    """Returns the state after a commit that ``lookups`` has noted as refused."""
    why, remedy = lookups.refusal or ("", "")
    return CommitState(False, why, f"{remedy}: the output is complete, and the next run commits")


def _numbers(checkpoint: Location, log: str) -> list[int]:
    """Returns the numbers of the micro-batches in one of Spark's logs (``offsets`` or ``commits``)."""
    return [int(name) for name in checkpoint.child(log).children() if name.isdecimal()]


def _offset_of(text: str, name: str) -> SourceOffset:
    """Reads a file of Spark's offset log: a version, the query's metadata, then one line for each source. Our source is
    the only one."""
    lines = text.splitlines()
    if len(lines) < _OFFSET_LINES:
        fault = "it is empty" if not text.strip() else "it has no line with the offsets of the source"
        raise DamagedFile(name, fault, RESTORE)
    version, settings, offsets = lines[:_OFFSET_LINES]
    _check_version(version, name)
    if settings.strip():
        _check_object(settings, name)
    try:
        return SourceOffset.from_json(parse_json(offsets))
    except ValueError as error:
        raise DamagedFile(name, fault_of(offsets, error), RESTORE) from error
    except OdradekError as error:
        raise StorageError(f"{name} is not an offset of this query: {one_line(error)}. {RESTORE}") from error
