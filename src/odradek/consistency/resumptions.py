"""Checks of members of groups: they go on in a partition at an offset of the group that may stand at that moment."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from odradek.consistency.anomalies import LOST_COMMIT, UNKNOWN_COMMIT, Anomaly, proof
from odradek.consistency.commits import decision_of
from odradek.consistency.operations import CommittedOffset, PolledRecords, Register, SetPosition
from odradek.consistency.partition_records import RecordTable
from odradek.consistency.transactions import Decisions
from odradek.core.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class _Resumption:
    """``offset``: where the member goes on. ``poll``: the poll that shows it; None if the assignment says it."""

    group: str
    assigned: SetPosition
    offset: int
    poll: PolledRecords | None

    @property
    def end(self) -> float:
        return self.assigned.end if self.poll is None else self.poll.end


@dataclass(frozen=True, slots=True)
class _TimedCommit:
    """``end``: infinite if it may take effect at any time after its start, or never."""

    commit: CommittedOffset
    start: float
    end: float


def resumption_anomalies(
    assigned: Iterable[SetPosition],
    polls: Iterable[PolledRecords],
    commits: Iterable[CommittedOffset],
    decisions: Decisions,
    table: RecordTable,
) -> Iterator[Anomaly]:
    """Yields the assignments after which a member goes on below the last acknowledged commit, or behind a record that
    no commit covers. Without an acknowledged commit, a member may begin anywhere."""
    committed: defaultdict[Register, list[_TimedCommit]] = defaultdict(list)
    for commit in commits:
        decision = decision_of(commit, decisions)
        if decision.result != "aborted":
            is_open = commit.attempts > 1 or commit.transaction is not None
            timed = _TimedCommit(commit, min(commit.start, decision.start), inf if is_open else decision.end)
            committed[commit.register].append(timed)
    for one in _resumptions(assigned, polls):
        register = (one.group, one.assigned.topic, one.assigned.partition)
        yield from _wrong(one, committed.get(register, ()), table)


def _resumptions(assigned: Iterable[SetPosition], polls: Iterable[PolledRecords]) -> Iterator[_Resumption]:
    polled: defaultdict[tuple[str, TopicPartition], list[PolledRecords]] = defaultdict(list)
    for poll in sorted(polls, key=lambda one: one.end):
        if poll.records:
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
            yield _Resumption(one.group, one, own[at].records[0][0], own[at])


def _wrong(found: _Resumption, commits: Sequence[_TimedCommit], table: RecordTable) -> Iterator[Anomaly]:
    before = [one for one in commits if one.end < found.assigned.start]
    if not before:
        return
    last = max(before, key=lambda one: one.start)
    possible = [one.commit for one in commits if one.start <= found.end and one.end >= last.start]
    below = max((one for one in possible if one.offset <= found.offset), key=lambda one: one.offset, default=None)
    subject = f"{found.group} {found.assigned.where}"
    resumed = f"{found.assigned.client} goes on at offset {found.offset}"
    if below is None:
        text = f"{resumed}, so the commit of offset {last.commit.offset} is lost"
        yield Anomaly(LOST_COMMIT, subject, text, proof(last.commit, found.assigned, found.poll))
        return
    evidence = (last.commit, below, found.assigned, found.poll)
    if found.poll is None:
        if below.offset != found.offset:
            yield Anomaly(UNKNOWN_COMMIT, subject, f"{resumed}, which no commit has that may stand", proof(*evidence))
        return
    partition = table.of(found.assigned.where)
    for missing in partition.between(below.offset, found.offset, found.poll.isolation)[:1]:
        seen = partition.by_offset[missing]
        text = f"{resumed}, and no commit that may stand is behind the record at offset {missing}"
        yield Anomaly(UNKNOWN_COMMIT, subject, text, proof(*evidence, seen.send or seen.poll))
