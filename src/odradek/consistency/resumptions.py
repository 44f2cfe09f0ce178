"""Checks of members of groups: they go on in a partition at an offset of the group that may stand at that moment."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from odradek.consistency.anomalies import LOST_COMMIT, UNKNOWN_COMMIT, Anomaly, proof
from odradek.consistency.client_history import ClientHistory
from odradek.consistency.commits import FirstEnds, decision_of
from odradek.consistency.operations import CommittedOffset, OffsetLookup, PolledRecords, Register, SetPosition
from odradek.consistency.partition_records import RecordTable
from odradek.consistency.transactions import Decisions, TransactionDecision
from odradek.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class _Resumption:
    """``offset``: where the member goes on, at most. ``poll``: the one that shows it; None if the assignment does."""

    group: str
    assigned: SetPosition
    offset: int
    poll: PolledRecords | None

    @property
    def end(self) -> float:
        return self.assigned.end if self.poll is None else self.poll.end


@dataclass(frozen=True, slots=True)
class _TimedCommit:
    """``end``: when it has certainly taken effect; infinite if it may never do so. ``until``: when it may do so last; a
    repeated request may take effect at any later moment. ``visible``: from when on each lookup shows it, or a later
    one; one that waits for open transactions does so from ``end`` on. ``waiting``: the fetch that says so."""

    commit: CommittedOffset
    start: float
    end: float
    until: float
    visible: float
    waiting: OffsetLookup | None = None


def resumption_anomalies(history: ClientHistory, decisions: Decisions, table: RecordTable) -> Iterator[Anomaly]:
    """Yields the assignments after which a member goes on below the last acknowledged commit, or behind a record that
    no commit covers. Without an acknowledged commit, a member may begin anywhere."""
    waiting: defaultdict[Register, list[OffsetLookup]] = defaultdict(list)
    for fetch in history.fetches:
        if fetch.outcome == "done" and fetch.is_stable and not fetch.is_stale:
            waiting[fetch.register].append(fetch)
    first_ends = {register: FirstEnds(own) for register, own in waiting.items()}
    committed: defaultdict[Register, list[_TimedCommit]] = defaultdict(list)
    for commit in history.commits:
        decision = decision_of(commit, decisions)
        if decision.result != "aborted":
            timed = _timed(commit, decision, first_ends.get(commit.register))
            committed[commit.register].append(timed)
    for one in _resumptions(history.positions, history.polls):
        register = (one.group, one.assigned.topic, one.assigned.partition)
        yield from _wrong(one, committed.get(register, ()), decisions, table)


def _timed(commit: CommittedOffset, decision: TransactionDecision, waiting: FirstEnds | None) -> _TimedCommit:
    until = inf if commit.attempts > 1 else decision.end
    if commit.transaction is None:
        return _TimedCommit(commit, commit.start, decision.end, until, decision.end)
    fetch = None if waiting is None else waiting.after(decision.end)
    visible = inf if fetch is None else fetch.end
    return _TimedCommit(commit, min(commit.start, decision.start), decision.end, until, visible, fetch)


def _resumptions(assigned: Iterable[SetPosition], polls: Iterable[PolledRecords]) -> Iterator[_Resumption]:
    polled: defaultdict[tuple[str, TopicPartition], list[PolledRecords]] = defaultdict(list)
    for poll in sorted(polls, key=lambda one: one.end):
        if poll.records or poll.position is not None:
            polled[poll.client, poll.where].append(poll)
    set_before: dict[tuple[str, TopicPartition], float] = {}  # when the next assignment came
    for one in sorted(assigned, key=lambda one: -one.start):
        key = (one.client, one.where)
        until, set_before[key] = set_before.get(key, inf), one.start
        if one.group is None:
            continue
        if one.offset is not None:
            yield _Resumption(one.group, one, one.offset, None)
            continue
        own = polled.get(key, [])
        at = bisect_left(own, one.start, key=lambda poll: poll.end)
        if at < len(own) and own[at].end < until:
            poll = own[at]
            offset = poll.records[0][0] if poll.records else poll.position
            if offset is not None:
                yield _Resumption(one.group, one, offset, poll)


def _wrong(
    found: _Resumption, commits: Sequence[_TimedCommit], decisions: Decisions, table: RecordTable
) -> Iterator[Anomaly]:
    is_stable = found.assigned.is_stable
    before = [one for one in commits if (one.end if is_stable else one.visible) < found.assigned.start]
    if not before:
        return
    last = max(before, key=lambda one: one.start)
    possible = [one.commit for one in commits if one.start <= found.end and one.until >= last.start]
    below = max((one for one in possible if one.offset <= found.offset), key=lambda one: one.offset, default=None)
    decision = decisions.of(last.commit.transaction) if last.commit.transaction is not None else None
    known = (last.commit, *((decision.end_call, decision.witness) if decision is not None else ()))
    if not is_stable:
        known = (*known, last.waiting)
    subject = f"{found.group} {found.assigned.where}"
    resumed = f"{found.assigned.client} goes on at offset {found.offset}"
    if below is None:
        text = f"{resumed}, so the commit of offset {last.commit.offset} is lost"
        yield Anomaly(LOST_COMMIT, subject, text, proof(*known, found.assigned, found.poll))
        return
    evidence = (*known, below, found.assigned, found.poll)
    if found.poll is None:
        if below.offset != found.offset:
            yield Anomaly(UNKNOWN_COMMIT, subject, f"{resumed}, which no commit has that may stand", proof(*evidence))
        return
    partition = table.of(found.assigned.where)
    for missing in partition.between(below.offset, found.offset, found.poll.isolation)[:1]:
        seen = partition.by_offset[missing]
        text = f"{resumed}, and no commit that may stand is behind the record at offset {missing}"
        yield Anomaly(UNKNOWN_COMMIT, subject, text, proof(*evidence, seen.send or seen.poll))
