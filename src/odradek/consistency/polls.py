"""Checks of polls: a consumer sees each record of a partition once, in order, until its position is set again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from odradek.consistency.anomalies import HALF_VISIBLE, LOST_WRITE, REPEATED, SKIPPED, Anomaly, proof
from odradek.consistency.operations import (
    CommittedOffset,
    Isolation,
    OffsetLookup,
    PolledRecords,
    SentRecord,
    SetPosition,
)
from odradek.consistency.partition_records import RecordTable
from odradek.consistency.transactions import Decisions, Witness
from odradek.core.ids import TopicPartition

Step = PolledRecords | SetPosition


def poll_anomalies(
    polls: Iterable[PolledRecords], assigned: Iterable[SetPosition], table: RecordTable, decisions: Decisions
) -> Iterator[Anomaly]:
    steps: dict[tuple[str, TopicPartition], list[Step]] = {}
    given: list[Step] = [*assigned, *polls]
    for step in given:
        steps.setdefault((step.client, step.where), []).append(step)
    for key in sorted(steps):
        yield from _PolledPartition(key[1], table, decisions).follow(sorted(steps[key], key=_moment))


def _moment(step: Step) -> tuple[float, bool]:
    """A position that is set during a poll, as in a callback, is set before the poll returns records."""
    return (step.start, False) if isinstance(step, SetPosition) else (step.end, True)


class _PolledPartition:
    """One consumer in one partition."""

    def __init__(self, where: TopicPartition, table: RecordTable, decisions: Decisions) -> None:
        self._where, self._table, self._decisions = where, table, decisions
        self._position: int | None = None
        self._since: Step | None = None

    def follow(self, steps: Iterable[Step]) -> Iterator[Anomaly]:
        for step in steps:
            if isinstance(step, SetPosition):
                self._position = step.offset
            else:
                yield from self._take(step)
            self._since = step

    def _take(self, poll: PolledRecords) -> Iterator[Anomaly]:
        for offset, value in poll.records:
            if self._position is not None and offset < self._position:
                text = f"offset {offset} ({value!r}) was polled, and the position was {self._position}"
                yield Anomaly(REPEATED, str(self._where), text, proof(self._since, poll))
            yield from self._gap(offset, poll)
            self._position = max(self._position or 0, offset + 1)
            self._since = poll
        if poll.position is not None:
            if self._position is not None and poll.position < self._position:
                text = f"the position was {self._position}, and then {poll.position}"
                yield Anomaly(REPEATED, str(self._where), text, proof(self._since, poll))
                self._position = poll.position
            yield from self._gap(poll.position, poll)
            self._position = max(self._position or 0, poll.position)

    def _gap(self, end: int, poll: PolledRecords) -> Iterator[Anomaly]:
        if self._position is None or end <= self._position:
            return
        for missing in self._table.of(self._where).between(self._position, end, poll.isolation):
            yield self._missing(missing, poll)

    def _missing(self, offset: int, poll: PolledRecords) -> Anomaly:
        """What it means that a poll passed over a record."""
        seen = self._table.of(self._where).by_offset[offset]
        name = str(self._where)
        send = seen.send or next((self._table.sends[one] for one in seen.values if one in self._table.sends), None)
        other = seen.committed_poll or seen.poll if poll.isolation == "read_committed" else seen.poll
        half = self._half_visible(send, poll.isolation)
        if send is not None and half is not None:
            part = "a record" if isinstance(half, PolledRecords) else "an offset"
            text = f"{half.client} saw {part} of it, and {poll.client} passed offset {offset} of {name} without it"
            call = self._decisions.of(send.transaction or "").end_call
            seen_send = self._seen_of(send.transaction, half)
            evidence = proof(send, call, seen_send, half, self._since, poll)
            return Anomaly(HALF_VISIBLE, send.transaction or "", text, evidence)
        if seen.send is not None and seen.poll is None:
            text = f"record {seen.send.value!r} was acknowledged at offset {offset}, and a reader did not find it there"
            call = self._decisions.of(seen.send.transaction).end_call if seen.send.transaction else None
            return Anomaly(LOST_WRITE, name, text, proof(seen.send, call, self._since, poll))
        text = f"{poll.client} passed offset {offset} without its record"
        return Anomaly(SKIPPED, name, text, proof(other, self._since, poll))

    def _half_visible(self, send: SentRecord | None, isolation: Isolation) -> Witness | None:
        """Returns the poll or the fetch that saw another part of a record's transaction."""
        if isolation == "read_uncommitted" or send is None or send.transaction is None:
            return None
        return self._decisions.of(send.transaction).witness

    def _seen_of(self, transaction: str | None, seen: Witness) -> SentRecord | CommittedOffset | None:
        """Returns the send or the commit of a transaction whose effect was seen."""
        if isinstance(seen, OffsetLookup):
            return self._decisions.commit_of(seen)
        sends = (self._table.sends.get(value) for _, value in seen.records if value is not None)
        return next((one for one in sends if one is not None and one.transaction == transaction), None)
