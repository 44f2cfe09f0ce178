"""Commits and fetched offsets of each group and partition: they must be linearizable, as a register is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from odradek.consistency.anomalies import (
    DIRTY_READ,
    FETCHED_GOES_BACK,
    LOST_COMMIT,
    UNKNOWN_COMMIT,
    Anomaly,
    proof,
)
from odradek.consistency.operations import CommittedOffset, OffsetLookup, Register
from odradek.consistency.registers import RegisterOperation, smallest_contradiction
from odradek.consistency.transactions import Decisions, TransactionDecision


@dataclass(frozen=True, slots=True)
class _Repetition:
    """One more request of a commit: it takes effect at any moment from the begin of the call on, or never."""

    commit: CommittedOffset
    number: int


def commit_anomalies(
    commits: Iterable[CommittedOffset],
    fetches: Iterable[OffsetLookup],
    decisions: Decisions,
    step: Callable[[str], None] = lambda label: None,
) -> Iterator[Anomaly]:
    """Yields the contradictions of commits and fetched offsets, one for each register.

    ``step`` is called with what is checked next."""
    writes: dict[Register, list[CommittedOffset]] = {}
    reads: dict[Register, list[OffsetLookup]] = {}
    for commit in commits:
        writes.setdefault(commit.register, []).append(commit)
    for fetch in fetches:
        if fetch.outcome == "done":
            reads.setdefault(fetch.register, []).append(fetch)
    for register in sorted(reads):
        group, topic, partition = register
        own, fetched = writes.get(register, []), reads[register]
        step(f"{len(own) + len(fetched):,} commits and fetched offsets of {group} {topic}-{partition}")
        yield from _CheckedRegister(register, own, fetched, decisions).anomalies()


class FirstEnds:
    """Fetches that wait for open transactions."""

    def __init__(self, waiting: Iterable[OffsetLookup]) -> None:
        own = sorted(waiting, key=lambda one: one.start)
        self._starts = [one.start for one in own]
        self._first: list[OffsetLookup] = []  # the one that ends first of those from an index on, from the last back
        for one in reversed(own):
            self._first.append(min([one, *self._first[-1:]], key=lambda one: one.end))

    def after(self, end: float) -> OffsetLookup | None:
        """Returns the one that ends first of those that began after a moment: the offsets of a transaction whose end
        had its reply at that moment are visible then."""
        at = len(self._starts) - bisect_right(self._starts, end)
        return self._first[at - 1] if at else None


class _CheckedRegister:
    """The commits and fetches of one group and partition.

    The reply to the end of a transaction comes before its offsets are visible: a fetch that waits for open
    transactions sees them from the reply on, and another fetch at some moment after it, in Kafka, too. So fetches that
    wait are checked alone first, and then all of them with transactions whose offsets become visible later."""

    def __init__(
        self,
        register: Register,
        commits: Sequence[CommittedOffset],
        fetches: Sequence[OffsetLookup],
        decisions: Decisions,
    ) -> None:
        self._register, self._fetches, self._decisions = register, fetches, decisions
        standing = [one for one in commits if decision_of(one, decisions).result != "aborted"]
        self._commits = sorted(standing, key=lambda one: one.start)
        self._waiting = FirstEnds(one for one in fetches if one.is_stable and not one.is_stale)

    def anomalies(self) -> Iterator[Anomaly]:
        if not any(one.transaction for one in self._commits):
            yield from self._contradiction(self._fetches, are_seen_at_once=True)
            return
        waiting = [one for one in self._fetches if one.is_stable]
        found = list(self._contradiction(waiting, are_seen_at_once=True))
        yield from found or self._contradiction(self._fetches, are_seen_at_once=False)

    def _writes(self, *, are_seen_at_once: bool) -> list[RegisterOperation]:
        found = []
        for commit in self._commits:
            decision = decision_of(commit, self._decisions)
            end = decision.end
            if commit.transaction is not None and end < inf and not are_seen_at_once:
                end = inf if (first := self._waiting.after(end)) is None else first.end
            # A commit that comes between that of a transaction and its end stands: it replaces what is not visible yet.
            unseen_from = min(commit.start, decision.start)
            found.append(RegisterOperation(True, commit.offset, decision.start, end, commit, unseen_from))
            if commit.transaction is None:
                # A broker may take an earlier request that it did not answer, for example one that was halted, after
                # the call has returned: the request waits in its socket.
                found += [
                    RegisterOperation(True, commit.offset, commit.start, inf, _Repetition(commit, number))
                    for number in range(1, commit.attempts)
                ]
        return found

    def _contradiction(self, fetches: Sequence[OffsetLookup], *, are_seen_at_once: bool) -> Iterator[Anomaly]:
        writes = self._writes(are_seen_at_once=are_seen_at_once)
        smallest = smallest_contradiction([*writes, *_reads(fetches, writes)])
        if not smallest:
            return
        keys = [one.key.commit if isinstance(one.key, _Repetition) else one.key for one in smallest]
        found = list(dict.fromkeys(key for key in keys if isinstance(key, CommittedOffset | OffsetLookup)))
        if (early := self._commit_of_dirty_read(found)) is not None:
            text = f"offset {early.offset} was fetched before the call began that commits its transaction"
            evidence = proof(*found, early, self._decisions.of(early.transaction or "").first_call)
            yield Anomaly(DIRTY_READ, early.transaction or "", text, evidence)
            return
        decided = [
            self._decisions.of(one.transaction) for one in found if isinstance(one, CommittedOffset) and one.transaction
        ]
        ends = [one.end_call for one in decided]
        waited = [] if are_seen_at_once else [self._waiting.after(one.end) for one in decided]
        group, topic, partition = self._register
        name, text = _named(found, writes)
        yield Anomaly(name, f"{group} {topic}-{partition}", text, proof(*found, *ends, *waited))

    def _commit_of_dirty_read(self, found: Sequence[CommittedOffset | OffsetLookup]) -> CommittedOffset | None:
        """Returns the commit whose offset a fetch alone shows, if its transaction was not decided yet."""
        (first, *others) = found
        if others or not isinstance(first, OffsetLookup) or first.offset is None:
            return None
        alike = (one for one in self._commits if one.transaction and one.offset == first.offset)
        return next((one for one in alike if one.start <= first.end), None)


def _reads(fetches: Iterable[OffsetLookup], writes: Iterable[RegisterOperation]) -> Iterator[RegisterOperation]:
    """A stale fetch may show what stood at any moment before its end. It proves nothing if its offset stood."""
    begun: dict[int | None, float] = {}
    ended: dict[int | None, float] = {}
    for write in writes:
        begun[write.value] = min(write.start, begun.get(write.value, inf))
        ended[write.value] = min(write.end, ended.get(write.value, inf))
    for fetch in fetches:
        start = fetch.start
        if fetch.is_stale:
            if fetch.offset is None or ended.get(fetch.offset, inf) <= fetch.end:
                continue
            start = min(start, begun.get(fetch.offset, inf))
        yield RegisterOperation(False, fetch.offset, start, fetch.end, fetch)


def decision_of(commit: CommittedOffset, decisions: Decisions) -> TransactionDecision:
    """Returns between which moments a commit takes effect; to no end if it may also never do so."""
    if commit.outcome == "failed":
        return TransactionDecision("aborted", commit.start, inf)
    if commit.transaction is None:
        return TransactionDecision("committed" if commit.outcome == "done" else "unknown", commit.start, commit.end)
    decision = decisions.of(commit.transaction)
    if decision.result == "unknown" or (decision.result == "committed" and commit.outcome == "unknown"):
        return replace(decision, result="unknown", end=inf)
    return decision


def _named(found: list[CommittedOffset | OffsetLookup], writes: list[RegisterOperation]) -> tuple[str, str]:
    """The name of a contradiction, and what it says. The last fetch is the one that no order explains."""
    fetches = [one for one in found if isinstance(one, OffsetLookup)]
    commits = [one for one in found if isinstance(one, CommittedOffset)]
    last = max(fetches, key=lambda one: one.end, default=None)
    if last is None:
        return LOST_COMMIT, "no order of the commits and fetches fits to their times"
    if last.offset is not None and not any(one.value == last.offset and one.start <= last.end for one in writes):
        return UNKNOWN_COMMIT, f"offset {last.offset} was fetched, and no commit that may stand has it"
    shown = "no offset" if last.offset is None else f"offset {last.offset}"
    others = [one.offset for one in fetches if one.offset != last.offset]
    if others:
        return FETCHED_GOES_BACK, f"{shown} was fetched after offset {others[-1]}, and no commit explains it"
    newest = max((one for one in commits if one.offset != last.offset), key=lambda one: one.start, default=None)
    lost = "a later commit" if newest is None else f"the later commit of offset {newest.offset}"
    return LOST_COMMIT, f"{shown} was fetched, so {lost} is lost"
