"""Commits and fetched offsets of each group and partition: they must be linearizable, as a register is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf

from odradek.consistency.anomalies import DIRTY_READ, FETCHED_GOES_BACK, LOST_COMMIT, UNKNOWN_COMMIT, Anomaly, proof
from odradek.consistency.operations import CommittedOffset, OffsetLookup, Register
from odradek.consistency.registers import RegisterOperation, smallest_contradiction
from odradek.consistency.transactions import Decisions, TransactionDecision


@dataclass(frozen=True, slots=True)
class _Repetition:
    """One more request of a commit: it takes effect at any moment from the begin of the call on, or never."""

    commit: CommittedOffset
    number: int


def commit_anomalies(
    commits: Iterable[CommittedOffset], fetches: Iterable[OffsetLookup], decisions: Decisions
) -> Iterator[Anomaly]:
    """Yields the contradictions of commits and fetched offsets, one for each register.

    If a transaction commits to a register, only fetches that wait for open transactions count: after the reply to
    its end, other fetches may see the former offset for a while, in Kafka, too."""
    writes: dict[Register, list[CommittedOffset]] = {}
    reads: dict[Register, list[OffsetLookup]] = {}
    for commit in commits:
        writes.setdefault(commit.register, []).append(commit)
    for fetch in fetches:
        if fetch.outcome == "done":
            reads.setdefault(fetch.register, []).append(fetch)
    for register in sorted(reads):
        own = writes.get(register, [])
        counted = reads[register]
        if any(one.transaction for one in own):
            counted = [one for one in counted if one.is_stable]
        yield from _of_register(register, own, counted, decisions)


def _of_register(
    register: Register, commits: list[CommittedOffset], fetches: list[OffsetLookup], decisions: Decisions
) -> Iterator[Anomaly]:
    operations = [RegisterOperation(False, one.offset, one.start, one.end, one) for one in fetches]
    for commit in commits:
        decision = _decision_of(commit, decisions)
        if decision.result != "aborted":
            end = inf if decision.result == "unknown" else decision.end
            operations.append(RegisterOperation(True, commit.offset, decision.start, end, commit))
        if decision.result != "aborted" and commit.transaction is None:
            # A broker may take an earlier request that it did not answer, for example one that was halted, after the
            # call has returned: the request waits in its socket.
            operations += [
                RegisterOperation(True, commit.offset, commit.start, inf, _Repetition(commit, number))
                for number in range(1, commit.attempts)
            ]
    smallest = smallest_contradiction(operations)
    if not smallest:
        return
    keys = [one.key.commit if isinstance(one.key, _Repetition) else one.key for one in smallest]
    found = list(dict.fromkeys(key for key in keys if isinstance(key, CommittedOffset | OffsetLookup)))
    if (early := _commit_of_dirty_read(found, commits, decisions)) is not None:
        text = f"offset {early.offset} was fetched before the call began that commits its transaction"
        evidence = proof(*found, early, decisions.of(early.transaction or "").first_call)
        yield Anomaly(DIRTY_READ, early.transaction or "", text, evidence)
        return
    ends = [
        decisions.of(one.transaction).end_call for one in found if isinstance(one, CommittedOffset) and one.transaction
    ]
    group, topic, partition = register
    name, text = _named(found, [one for one in operations if one.is_write])
    yield Anomaly(name, f"{group} {topic}-{partition}", text, proof(*found, *ends))


def _commit_of_dirty_read(
    found: list[CommittedOffset | OffsetLookup], commits: list[CommittedOffset], decisions: Decisions
) -> CommittedOffset | None:
    """Returns the commit whose offset a fetch alone shows, if its transaction was not decided yet."""
    (first, *others) = found
    if others or not isinstance(first, OffsetLookup) or first.offset is None:
        return None
    alike = [one for one in commits if one.transaction and one.offset == first.offset and one.start <= first.end]
    return next((one for one in alike if decisions.of(one.transaction or "").result != "aborted"), None)


def _decision_of(commit: CommittedOffset, decisions: Decisions) -> TransactionDecision:
    if commit.transaction is not None:
        return decisions.of(commit.transaction)
    if commit.outcome == "done":
        return TransactionDecision("committed", commit.start, commit.end)
    return TransactionDecision("aborted" if commit.outcome == "failed" else "unknown", commit.start, inf)


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
