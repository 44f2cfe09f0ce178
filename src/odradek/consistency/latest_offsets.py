"""Checks of the latest offset of a partition: it never goes back, and it is behind all that was seen.

A stale one may be lower. It is still one that stood: no later one is lower.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from odradek.consistency.anomalies import DIRTY_READ, LATEST_GOES_BACK, LOST_WRITE, Anomaly, proof
from odradek.consistency.operations import ClientOperation, Isolation, ListedEnd, SentRecord
from odradek.consistency.partition_records import PartitionRecords, RecordTable
from odradek.consistency.transactions import Decisions
from odradek.core.ids import TopicPartition


class _Bound(NamedTuple):
    """From ``end`` on, the latest offset is at least ``offset``."""

    end: float
    offset: int
    witness: ClientOperation
    isolation: Isolation


def latest_anomalies(ends: Iterable[ListedEnd], table: RecordTable) -> Iterator[Anomaly]:
    listed: dict[TopicPartition, list[ListedEnd]] = {}
    for end in ends:
        if end.of == "latest" and end.outcome == "done":
            listed.setdefault(end.where, []).append(end)
    for where in sorted(listed):
        own = sorted(listed[where], key=lambda one: one.start)
        partition = table.of(where)
        bounds = [_Bound(one.end, one.offset, one, one.isolation) for one in own]
        bounds += _bounds_of_records(partition)
        last = next((one for one in reversed(own) if one.isolation == "read_uncommitted" and not one.is_stale), None)
        lost = [] if last is None else list(_lost_at_the_end(where, last, partition))
        yield from lost
        shown = {one.proof for one in lost}
        of_committed = [one for one in bounds if one.isolation == "read_committed"]
        for found in (
            *_behind(where, own, bounds, "read_uncommitted"),
            *_behind(where, own, of_committed, "read_committed"),
        ):
            if found.proof not in shown:
                yield found


def open_transaction_anomalies(
    ends: Iterable[ListedEnd], table: RecordTable, decisions: Decisions
) -> Iterator[Anomaly]:
    """Yields the latest offsets of ``read_committed`` behind a record of a transaction before the call began that
    commits it. Nothing else has ended a transaction that is committed later: until then it was open."""
    listed: dict[TopicPartition, list[ListedEnd]] = {}
    for one in sorted(ends, key=lambda one: one.start):
        if one.of == "latest" and one.isolation == "read_committed" and one.outcome == "done":
            listed.setdefault(one.where, []).append(one)
    for where, own in sorted(listed.items()):
        for offset, send in _committed_records(table.of(where), table.sends, decisions):
            decision = decisions.of(send.transaction or "")
            early = next((one for one in own if one.offset > offset and one.end < decision.start), None)
            if early is not None:
                text = f"the latest offset was {early.offset} before the call began that commits the record at {offset}"
                evidence = proof(send, early, decision.first_call, decision.end_call, decision.witness)
                yield Anomaly(DIRTY_READ, send.transaction or "", text, evidence)


def _committed_records(
    partition: PartitionRecords, sends: Mapping[str, SentRecord], decisions: Decisions
) -> Iterator[tuple[int, SentRecord]]:
    """The first acknowledged record of each committed transaction, with its offset."""
    found: set[str] = set()
    for offset, seen in sorted(partition.by_offset.items()):
        send = seen.send
        if send is None or send.transaction is None or send.transaction in found or len(seen.values) > 1:
            continue
        found.add(send.transaction)
        if decisions.of(send.transaction).result == "committed":
            yield offset, send


def _bounds_of_records(partition: PartitionRecords) -> Iterator[_Bound]:
    for offset, seen in partition.by_offset.items():
        if seen.send is not None:
            yield _Bound(seen.send.end, offset + 1, seen.send, "read_uncommitted")
        for poll in {id(one): one for one in (seen.poll, seen.committed_poll) if one is not None}.values():
            yield _Bound(poll.end, offset + 1, poll, poll.isolation)


def _behind(
    where: TopicPartition, listed: list[ListedEnd], bounds: list[_Bound], isolation: Isolation
) -> Iterator[Anomaly]:
    bounds.sort(key=lambda one: one.end)
    passed = 0
    highest: _Bound | None = None
    for one in listed:
        while passed < len(bounds) and bounds[passed].end < one.start:
            if highest is None or bounds[passed].offset > highest.offset:
                highest = bounds[passed]
            passed += 1
        if one.is_stale or one.isolation != isolation:
            continue
        if highest is not None and one.offset < highest.offset:
            text = f"the latest offset was at least {highest.offset}, and then {one.offset}"
            yield Anomaly(LATEST_GOES_BACK, str(where), text, proof(highest.witness, one))


def _lost_at_the_end(where: TopicPartition, last: ListedEnd, partition: PartitionRecords) -> Iterator[Anomaly]:
    """Acknowledged records that no poll saw, behind the last known end."""
    for offset, seen in partition.by_offset.items():
        send: SentRecord | None = seen.send
        if send is not None and seen.poll is None and offset >= last.offset and send.end < last.start:
            text = f"record {send.value!r} was acknowledged at offset {offset}, and the log ends at {last.offset}"
            yield Anomaly(LOST_WRITE, str(where), text, proof(send, last))
