"""What became of each transaction of a history, by the calls that ended it and by what readers saw of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Literal

from odradek.consistency.operations import PolledRecords, SentRecord, TransactionEnd


@dataclass(frozen=True, slots=True)
class TransactionDecision:
    """``result``: unknown if either may be. ``start`` and ``end``: between them, a commit becomes visible.
    ``end_call``: the call that decided; ``witness``: a poll with read_committed that saw a record."""

    result: Literal["committed", "aborted", "unknown"]
    start: float
    end: float
    end_call: TransactionEnd | None = None
    witness: PolledRecords | None = None


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
        self._decided = {name: _decision(calls.get(name, ()), witnesses.get(name)) for name in names}

    def of(self, transaction: str) -> TransactionDecision:
        return self._decided.get(transaction) or TransactionDecision("aborted", inf, inf)


def _witnesses(polls: Iterable[PolledRecords], sends: Mapping[str, SentRecord]) -> dict[str, PolledRecords]:
    """The first poll with read_committed that saw a record of each transaction."""
    found: dict[str, PolledRecords] = {}
    for poll in polls:
        if poll.isolation == "read_uncommitted":
            continue
        for _, value in poll.records:
            send = sends.get(value) if value is not None else None
            if send is None or send.transaction is None:
                continue
            known = found.get(send.transaction)
            if known is None or poll.end < known.end:
                found[send.transaction] = poll
    return found


def _decision(calls: Iterable[TransactionEnd], witness: PolledRecords | None) -> TransactionDecision:
    commits = [call for call in calls if call.decision == "commit" and call.outcome != "failed"]
    done = next((call for call in commits if call.outcome == "done"), None)
    if done is not None:
        return TransactionDecision("committed", done.start, done.end, done, witness)
    if commits:
        first = min(commits, key=lambda call: call.start)
        if witness is not None:
            return TransactionDecision("committed", first.start, witness.end, first, witness)
        return TransactionDecision("unknown", first.start, inf, first)
    last = max(calls, key=lambda call: call.start, default=None)
    return TransactionDecision("aborted", inf, inf, last, witness)
