"""What became of each transaction of a history, by the calls that ended it and by what readers saw of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal, TypeAlias

from odradek.consistency.operations import (
    CommittedOffset,
    OffsetLookup,
    PolledRecords,
    Register,
    SentRecord,
    TransactionEnd,
)

Witness: TypeAlias = PolledRecords | OffsetLookup


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """``result``: unknown if either may be. ``start`` and ``end``: between them, a commit becomes visible.
    ``end_call``: the call that decided; ``witness``: a poll with read_committed that saw a record, or a fetch that saw
    an offset, and that may have seen the commit; the first poll, if none may. ``first_call``: the commit call that
    began first."""

    result: Literal["committed", "aborted", "unknown"]
    start: float
    end: float
    end_call: TransactionEnd | None = None
    witness: Witness | None = None
    first_call: TransactionEnd | None = None


class Decisions:
    """The decision of each transaction. One that no call has ended is aborted."""

    def __init__(
        self,
        ends: Iterable[TransactionEnd],
        polls: Iterable[PolledRecords],
        sends: Mapping[str, SentRecord],
        commits: Iterable[CommittedOffset] = (),
        fetches: Iterable[OffsetLookup] = (),
    ) -> None:
        calls: dict[str, list[TransactionEnd]] = {}
        for call in ends:
            calls.setdefault(call.transaction, []).append(call)
        witnesses = _witnesses(polls, sends)
        self._commits = _sole_commits(commits)
        lookups: dict[str, list[OffsetLookup]] = {}
        for fetch in fetches:
            if (commit := self.commit_of(fetch)) is not None and commit.transaction is not None:
                lookups.setdefault(commit.transaction, []).append(fetch)
        names = calls.keys() | witnesses.keys()
        self._decided = {
            name: _decision(calls.get(name, ()), witnesses.get(name, ()), lookups.get(name, ())) for name in names
        }

    def of(self, transaction: str) -> TransactionDecision:
        return self._decided.get(transaction) or TransactionDecision("aborted", inf, inf)

    def commit_of(self, fetch: OffsetLookup) -> CommittedOffset | None:
        """Returns the only commit that has the offset of a fetch; None if there is no such commit, or several."""
        if fetch.outcome != "done" or fetch.offset is None:
            return None
        return self._commits.get((fetch.register, fetch.offset))


def _witnesses(polls: Iterable[PolledRecords], sends: Mapping[str, SentRecord]) -> dict[str, list[PolledRecords]]:
    """The polls with read_committed that saw a record of each transaction, the one that ended first first."""
    found: dict[str, list[PolledRecords]] = {}
    for poll in sorted(polls, key=lambda one: one.end):
        if poll.isolation == "read_uncommitted":
            continue
        for _, value in poll.records:
            send = sends.get(value) if value is not None else None
            if send is not None and send.transaction is not None:
                own = found.setdefault(send.transaction, [])
                if not own or own[-1] is not poll:
                    own.append(poll)
    return found


def _sole_commits(commits: Iterable[CommittedOffset]) -> dict[tuple[Register, int], CommittedOffset]:
    """The commits whose offset no other commit of the group and partition has. One that failed has no effect."""
    found: dict[tuple[Register, int], list[CommittedOffset]] = {}
    for commit in commits:
        if commit.outcome != "failed":
            found.setdefault((commit.register, commit.offset), []).append(commit)
    return {key: alike[0] for key, alike in found.items() if len(alike) == 1}


def _decision(
    calls: Sequence[TransactionEnd], polls: Sequence[PolledRecords], lookups: Sequence[OffsetLookup]
) -> TransactionDecision:
    """A call with an answer decides: no coordinator acknowledges an abort of a transaction whose commit stands. Only a
    poll or a fetch that ended after a commit call began may have seen a commit of unknown outcome."""
    anyone = next(iter(polls), None)
    commits = [call for call in calls if call.decision == "commit" and call.outcome != "failed"]
    done = next((call for call in calls if call.outcome == "done"), None)
    if not commits or (done is not None and done.decision == "abort"):
        last = done or max(calls, key=lambda call: call.start, default=None)
        return TransactionDecision("aborted", inf, inf, last, anyone)
    first = min(commits, key=lambda call: call.start)
    seen: list[Witness] = [*polls, *lookups]
    witness = min((one for one in seen if one.end >= first.start), key=lambda one: one.end, default=None)
    if done is not None:
        return TransactionDecision("committed", first.start, done.end, done, witness or anyone, first)
    if witness is not None:
        return TransactionDecision("committed", first.start, witness.end, first, witness, first)
    return TransactionDecision("unknown", first.start, inf, first, None, first)
