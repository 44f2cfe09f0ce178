"""Checks of records: what was acknowledged is there, once, in order, and what failed is not."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from odradek.consistency.anomalies import (
    ABORTED,
    BROKEN_ORDER,
    DIFFERENT_RECORDS,
    DIRTY_READ,
    DUPLICATE,
    FAILED_SEND,
    LOST_WRITE,
    OTHER_PARTITION,
    Anomaly,
    proof,
)
from odradek.consistency.operations import PolledRecords, SentRecord
from odradek.consistency.partition_records import PartitionRecords, RecordTable
from odradek.consistency.transactions import Decisions
from odradek.core.ids import TopicPartition


def record_anomalies(table: RecordTable, decisions: Decisions) -> Iterator[Anomaly]:
    for where, partition in table.by_partition():
        yield from _different_records(where, partition, table)
    yield from _duplicates(table)
    yield from _failed_sends(table)
    yield from _other_partitions(table)
    yield from _uncommitted(table, decisions)
    yield from _broken_order(table)


def _different_records(where: TopicPartition, partition: PartitionRecords, table: RecordTable) -> Iterator[Anomaly]:
    """Two values at one offset. If one of them was acknowledged there and is nowhere else, it is lost."""
    for offset, seen in sorted(partition.by_offset.items()):
        for (first, witness), (second, other) in pairwise(seen.values.items()):
            evidence = proof(witness, other)
            given = (one for one in (witness, other) if isinstance(one, SentRecord))
            lost = next((one for one in given if _is_lost(one, table)), None)
            if lost is not None and not all(isinstance(one, SentRecord) for one in evidence):
                text = f"record {lost.value!r} was acknowledged at offset {offset}, which has another record"
                yield Anomaly(LOST_WRITE, str(where), text, evidence)
            else:
                yield Anomaly(DIFFERENT_RECORDS, str(where), f"offset {offset} has {first!r} and {second!r}", evidence)


def _is_lost(send: SentRecord, table: RecordTable) -> bool:
    """Returns whether a record is known only by its acknowledgement."""
    return not any(isinstance(one, PolledRecords) for one in table.places.get(send.value, {}).values())


def _duplicates(table: RecordTable) -> Iterator[Anomaly]:
    for value, places in table.places.items():
        send = table.sends.get(value)
        if send is None or len(places) < 2 or not _is_idempotent(send):
            continue
        (one, first), (other, second) = sorted(places.items(), key=lambda place: place[0])[:2]
        text = f"record {value!r} is at offset {one[1]} and at offset {other[1]}"
        if one[0] != other[0]:
            text += f" of {other[0]}"
        yield Anomaly(DUPLICATE, str(one[0]), text, proof(send, first, second))


def _is_idempotent(send: SentRecord) -> bool:
    return send.idempotent or send.transaction is not None


def _failed_sends(table: RecordTable) -> Iterator[Anomaly]:
    for value, send in table.sends.items():
        if send.outcome == "failed":
            for (where, offset), witness in table.places.get(value, {}).items():
                text = f"record {value!r}, which was not written, is at offset {offset}"
                yield Anomaly(FAILED_SEND, str(where), text, proof(send, witness))


def _other_partitions(table: RecordTable) -> Iterator[Anomaly]:
    """Records that are not where their producer sent them. A send without a partition may go to any of its topic."""
    for value, send in table.sends.items():
        for (where, offset), witness in table.places.get(value, {}).items():
            if where.topic != send.topic or send.partition not in (None, where.partition):
                name = send.topic if send.where is None else str(send.where)
                text = f"record {value!r}, which was sent to {name}, is at offset {offset}"
                yield Anomaly(OTHER_PARTITION, str(where), text, proof(send, witness))


def _uncommitted(table: RecordTable, decisions: Decisions) -> Iterator[Anomaly]:
    """Records that a reader with read_committed saw, and whose transaction was aborted, or was not decided yet."""
    for where, partition in table.by_partition():
        for offset, seen in partition.by_offset.items():
            for value, witness in seen.values.items() if seen.committed_poll is not None else ():
                send = table.sends.get(value)
                poll = seen.committed_poll
                if witness is send:  # no poll has shown the value: one without a value has shown the record
                    poll = seen.unnamed_poll if len(seen.values) == 1 else None
                if poll is None or send is None or send.transaction is None:
                    continue
                decision, shown = decisions.of(send.transaction), f"record {value!r} at offset {offset} of {where}"
                if decision.result == "aborted":
                    evidence = proof(send, decision.end_call, poll)
                    yield Anomaly(ABORTED, send.transaction, f"{shown} was read with read_committed", evidence)
                elif poll.end < decision.start:
                    text = f"{shown} was read with read_committed before the call began that commits it"
                    yield Anomaly(DIRTY_READ, send.transaction, text, proof(send, decision.first_call, poll))


def _broken_order(table: RecordTable) -> Iterator[Anomaly]:
    """A producer's records in another order than it sent them.

    With idempotence, the order of the numbers counts. Without it, a retry may change the order; but what was
    acknowledged before the next send began is before it."""
    sent: dict[tuple[str, TopicPartition], list[tuple[int, SentRecord]]] = {}
    for value, send in table.sends.items():
        if send.outcome == "failed" or not send.acks_all:
            continue
        places = table.places.get(value, {})
        if len(places) == 1:
            ((where, offset),) = places
            sent.setdefault((send.client, where), []).append((offset, send))
    for (client, where), own in sorted(sent.items(), key=lambda item: item[0]):
        numbered = [one for one in own if one[1].number is not None and _is_idempotent(one[1])]
        numbered.sort(key=lambda one: one[1].number or 0)
        waited = [one for one in own if one[1].outcome == "done"]
        waited.sort(key=lambda one: one[1].start)
        for (before, first), (after, second) in [*pairwise(numbered), *_one_after_the_other(waited)]:
            if before > after:
                text = f"{client} sent {first.value!r} (offset {before}) before {second.value!r} (offset {after})"
                witnesses = (table.places[one.value][where, at] for one, at in ((first, before), (second, after)))
                yield Anomaly(BROKEN_ORDER, str(where), text, proof(first, second, *witnesses))


def _one_after_the_other(
    sends: list[tuple[int, SentRecord]],
) -> Iterator[tuple[tuple[int, SentRecord], tuple[int, SentRecord]]]:
    """Pairs each send with the acknowledged one of the highest offset that ended before it began."""
    by_end = sorted(sends, key=lambda one: one[1].end)
    ended = 0
    highest: tuple[int, SentRecord] | None = None
    for offset, send in sends:
        while ended < len(by_end) and by_end[ended][1].end < send.start:
            highest = max(highest or by_end[ended], by_end[ended], key=lambda one: one[0])
            ended += 1
        if highest is not None:
            yield highest, (offset, send)
