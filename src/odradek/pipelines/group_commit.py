"""Commits the offsets of a query's checkpoint to its group, if the query could not.

If the query was killed after a micro-batch and before the commit, the checkpoint is ahead of the group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from odradek.core.errors import OdradekError
from odradek.core.ids import NO_EPOCH, OffsetAndMetadata, TopicPartition
from odradek.lag.reset_mark import asks_for_reset
from odradek.pipelines.checkpoint import (
    newest_done,
    newest_number,
    numbers,
    offset_at,
    offset_of,
    planned_batch,
    text_in,
)
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.sources import Source
from odradek.spark.offsets.commit_marks import is_of_query, is_of_table, mark_commit, mark_of, other_output, with_output
from odradek.spark.offsets.group_look import GroupLook
from odradek.spark.offsets.lookups import Lookups
from odradek.spark.offsets.plan import CommitDecision, GroupReset
from odradek.spark.offsets.source_offset import INITIAL, Offsets, SourceOffset
from odradek.spark.options import parse_options
from odradek.text.printable import one_line

_NEXT_RUN = "The next run commits it"


@dataclass(frozen=True)
class CommitState:
    """Whether a group's offsets are those of the query's last finished micro-batch; None: unknown. ``why``: the reason
    if they are not, or if that is unknown. ``remedy``: what the user can do, or what the next run does."""

    is_committed: bool | None
    why: str = ""
    remedy: str = ""


COMMITTED = CommitState(is_committed=True)
UNFINISHED = "no micro-batch is finished yet"


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
    done = newest_done(checkpoint)
    text = None if done is None else text_in(checkpoint, f"offsets/{done}")
    if text is None:
        return CommitState(False, UNFINISHED, _NEXT_RUN)
    end = offset_of(text, f"{checkpoint.uri}/offsets/{done}")
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
    planned = newest_number(checkpoint)
    if planned is None or planned not in numbers(checkpoint, "commits"):
        return None
    options = parse_options(source.all_options(), streaming=True)
    try:
        end = offset_at(checkpoint, planned)
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
    start, end = INITIAL if number == 0 else offset_at(checkpoint, number - 1), offset_at(checkpoint, number)
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
