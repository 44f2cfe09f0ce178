"""What a history says about the records of each partition: which value is at which offset, and who says so."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from odradek.consistency.operations import Isolation, ListedEnd, PolledRecords, SentRecord
from odradek.consistency.transactions import Decisions
from odradek.core.ids import TopicPartition


@dataclass(slots=True)
class SeenRecord:
    """A record at one offset. ``poll``: the first poll that returned it. ``unnamed_poll``: the first one with
    read_committed that does not know its value. ``values``: with what values, and by which poll; more than one is an
    anomaly."""

    send: SentRecord | None = None
    poll: PolledRecords | None = None
    committed_poll: PolledRecords | None = None
    unnamed_poll: PolledRecords | None = None
    values: dict[str, PolledRecords | SentRecord] = field(default_factory=dict)


class PartitionRecords:
    """The records of one partition by offset."""

    def __init__(self) -> None:
        self.by_offset: dict[int, SeenRecord] = {}
        self.log_start = 0
        self._visible: dict[Isolation, list[int]] = {"read_uncommitted": [], "read_committed": []}

    def seen(self, offset: int) -> SeenRecord:
        return self.by_offset.setdefault(offset, SeenRecord())

    def index(self, sends: dict[str, SentRecord], decisions: Decisions) -> None:
        """Decides which offsets no reader may leave out."""
        offsets = sorted(offset for offset in self.by_offset if offset >= self.log_start)
        self._visible["read_uncommitted"] = offsets
        self._visible["read_committed"] = [
            offset for offset in offsets if _is_committed(self.by_offset[offset], sends, decisions)
        ]

    def between(self, first: int, end: int, isolation: Isolation) -> Sequence[int]:
        """Returns the offsets from ``first`` to before ``end`` that a reader has to see."""
        visible = self._visible[isolation]
        return visible[bisect_left(visible, first) : bisect_right(visible, end - 1)]


def _is_committed(seen: SeenRecord, sends: dict[str, SentRecord], decisions: Decisions) -> bool:
    if seen.committed_poll is not None:
        return True
    found = [sends[value] for value in seen.values if value in sends]
    if not found:
        return False
    return all(one.transaction is None or decisions.of(one.transaction).result == "committed" for one in found)


class RecordTable:
    """All partitions of a history. ``sends``: by value. ``places``: each value's offsets, with the first witness."""

    def __init__(self, sends: Iterable[SentRecord], polls: Iterable[PolledRecords], ends: Iterable[ListedEnd]) -> None:
        self.sends = {one.value: one for one in sends}
        self.partitions: dict[TopicPartition, PartitionRecords] = {}
        self.places: dict[str, dict[tuple[TopicPartition, int], PolledRecords | SentRecord]] = {}
        for poll in sorted(polls, key=lambda one: one.end):
            self._take_poll(poll)
        for send in self.sends.values():
            self._take_send(send)
        for end in ends:
            if end.of == "earliest":
                known = self.of(end.where)
                known.log_start = max(known.log_start, end.offset)

    def of(self, where: TopicPartition) -> PartitionRecords:
        return self.partitions.setdefault(where, PartitionRecords())

    def index(self, decisions: Decisions) -> None:
        for partition in self.partitions.values():
            partition.index(self.sends, decisions)

    def by_partition(self) -> Iterator[tuple[TopicPartition, PartitionRecords]]:
        yield from sorted(self.partitions.items())

    def _take_poll(self, poll: PolledRecords) -> None:
        known = self.of(poll.where)
        for offset, value in poll.records:
            seen = known.seen(offset)
            seen.poll = seen.poll or poll
            if poll.isolation == "read_committed":
                seen.committed_poll = seen.committed_poll or poll
                if value is None:
                    seen.unnamed_poll = seen.unnamed_poll or poll
            if value is not None:
                seen.values.setdefault(value, poll)
                self.places.setdefault(value, {}).setdefault((poll.where, offset), poll)

    def _take_send(self, send: SentRecord) -> None:
        if not send.is_acknowledged or send.where is None or send.offset is None:
            return
        seen = self.of(send.where).seen(send.offset)
        seen.send = seen.send or send
        seen.values.setdefault(send.value, send)
        self.places.setdefault(send.value, {}).setdefault((send.where, send.offset), send)
