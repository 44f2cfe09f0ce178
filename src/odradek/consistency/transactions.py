"""What became of each transaction of a history, by the calls that ended it and by what readers saw of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from odradek.consistency.operations import PolledRecords, SentRecord, TransactionEnd


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """``result``: unknown if either may be. ``start`` and ``end``: between them, a commit becomes visible.
    ``end_call``: the call that decided; ``witness``: a poll with read_committed that saw a record, and that may have
    seen the commit; the first one, if none may. ``first_call``: the commit call that began first."""

    result: Literal["committed", "aborted", "unknown"]
    start: float
    end: float
    end_call: TransactionEnd | None = None
    witness: PolledRecords | None = None
    first_call: TransactionEnd | None = None


class Decisions:
    """The decision of each transaction. One that no call has ended is aborted."""

    def __init__(
        self, ends: Iterable[TransactionEnd], polls: Iterable[PolledRecords], sends: Mapping[str, SentRecord]
    ) -> None:
        calls: dict[str, list[TransactionEnd]] = {}
        for call in ends:
            calls.setdefault(call.transaction, []).append(call)
        witnesses = _witnesses(polls, sends)
        names = calls.keys() | witnesses.keys()
        self._decided = {name: _decision(calls.get(name, ()), witnesses.get(name, ())) for name in names}

    def of(self, transaction: str) -> TransactionDecision:
        return self._decided.get(transaction) or TransactionDecision("aborted", inf, inf)


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


def _decision(calls: Sequence[TransactionEnd], witnesses: Sequence[PolledRecords]) -> TransactionDecision:
    """A call with an answer decides: no coordinator acknowledges an abort of a transaction whose commit stands. Only a
    poll that ended after a commit call began may have seen a commit of unknown outcome."""
    anyone = next(iter(witnesses), None)
    commits = [call for call in calls if call.decision == "commit" and call.outcome != "failed"]
    done = next((call for call in calls if call.outcome == "done"), None)
    if not commits or (done is not None and done.decision == "abort"):
        last = done or max(calls, key=lambda call: call.start, default=None)
        return TransactionDecision("aborted", inf, inf, last, anyone)
    first = min(commits, key=lambda call: call.start)
    witness = next((one for one in witnesses if one.end >= first.start), None)
    if done is not None:
        return TransactionDecision("committed", first.start, done.end, done, witness or anyone, first)
    if witness is not None:
        return TransactionDecision("committed", first.start, witness.end, first, witness, first)
    return TransactionDecision("unknown", first.start, inf, first, None, first)
