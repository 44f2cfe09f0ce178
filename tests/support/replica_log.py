"""The log of a replica without bytes: batches with leader epochs, and what survives a crash or a power cut.

``AbstractLog`` has the rules of ``storage/log``: a truncation removes whole batches, an epoch may begin without a
record, a restart begins the log at another offset. ``answer`` is what a leader replies to the fetch of a follower.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID
from odradek.replication.follower import FetchedPart, NextFetch


class AbstractBatch(NamedTuple):
    """Records at ``base`` and after it. ``values``: one number for each; no two records of a run have the same."""

    base: int
    epoch: int
    values: tuple[int, ...]
    producer_id: int = NO_PRODUCER_ID
    sequence: int = -1

    @property
    def end(self) -> int:
        return self.base + len(self.values)


class ReplicaRecord(NamedTuple):
    """What one offset has."""

    epoch: int
    value: int


@dataclass(slots=True)
class AbstractEpochs:
    """The epochs of a log with their start offsets, both ascending."""

    entries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start: int) -> None:
        if not self.entries or epoch > self.entries[-1][0]:
            self.entries = [entry for entry in self.entries if entry[1] < start]
            self.entries.append((epoch, start))

    def truncate_from_end(self, end: int) -> None:
        self.entries = [entry for entry in self.entries if entry[1] < end]

    def truncate_from_start(self, start: int) -> None:
        gone = [epoch for epoch, first in self.entries if first <= start]
        if gone:
            self.entries = [(gone[-1], start), *self.entries[len(gone) :]]

    def end_offset(self, epoch: int, log_end: int) -> tuple[int, int]:
        if epoch == NO_EPOCH or not self.entries or epoch > self.entries[-1][0]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.entries[-1][0]:
            return epoch, log_end
        earlier = [one for one, _ in self.entries if one <= epoch]
        end = next(start for one, start in self.entries if one > epoch)
        return (earlier[-1] if earlier else epoch), end


class AbstractLog:
    """The log of one replica (``replication/follower.FollowerLog``).

    ``high_watermark`` is only what its owner has set, within the log. ``sequences``: the last sequence of each
    idempotent producer, with the base offset of its batch, as the records of the log say it.
    """

    __slots__ = ("batches", "epochs", "high_watermark", "log_end_offset", "log_start_offset", "sequences", "synced_end")

    def __init__(self) -> None:
        self.batches: list[AbstractBatch] = []
        self.epochs = AbstractEpochs()
        self.log_start_offset = self.log_end_offset = self.high_watermark = self.synced_end = 0
        self.sequences: dict[int, tuple[int, int]] = {}

    # --- reads --------------------------------------------------------------------------------------------------

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return self.epochs.end_offset(epoch, self.log_end_offset)

    def index_of(self, offset: int) -> int:
        """Returns the place of the batch with this offset, or of the next one."""
        at = bisect_right(self.batches, offset, key=_base)
        return at - 1 if at and self.batches[at - 1].end > offset else at

    def read(self, offset: int, most: int) -> list[AbstractBatch]:
        """Returns up to ``most`` batches from the one with ``offset`` on."""
        at = self.index_of(offset)
        return self.batches[at : at + most]

    def record_at(self, offset: int) -> ReplicaRecord | None:
        """Returns the record at this offset; None if the log has none."""
        if not self.log_start_offset <= offset < self.log_end_offset:
            return None
        batch = self.batches[self.index_of(offset)]
        return ReplicaRecord(batch.epoch, batch.values[offset - batch.base])

    def records(self, start: int, end: int) -> Iterator[tuple[int, ReplicaRecord]]:
        """Yields offsets and records, from the log start on at the earliest."""
        start = max(start, self.log_start_offset)
        for batch in self.batches[self.index_of(start) :]:
            if batch.base >= end:
                return
            for step, value in enumerate(batch.values):
                if start <= batch.base + step < end:
                    yield batch.base + step, ReplicaRecord(batch.epoch, value)

    # --- changes ------------------------------------------------------------------------------------------------

    def append(self, batch: AbstractBatch) -> None:
        assert batch.base == self.log_end_offset or not self.batches, "a gap"
        self.batches.append(batch)
        self.epochs.assign(batch.epoch, batch.base)
        self.log_end_offset = batch.end
        if batch.producer_id != NO_PRODUCER_ID:
            self.sequences[batch.producer_id] = batch.sequence + len(batch.values) - 1, batch.base

    def append_fetched(self, batches: Sequence[AbstractBatch]) -> None:
        """Appends what a follower has fetched. An empty log may begin inside of the first batch's offsets."""
        for batch in batches:
            if batch.end <= self.log_end_offset:
                continue
            if batch.base < self.log_end_offset and self.log_start_offset == self.log_end_offset:
                self.restart_at(batch.base)
            self.append(batch)

    def truncate_to(self, offset: int) -> None:
        if offset >= self.log_end_offset:
            self.epochs.truncate_from_end(self.log_end_offset)
            return
        del self.batches[self.index_of(offset) :]
        end = self.batches[-1].end if self.batches else offset
        self.log_end_offset = end
        self.log_start_offset = min(self.log_start_offset, end)
        self.high_watermark = min(self.high_watermark, end)
        self.synced_end = min(self.synced_end, end)
        self.epochs.truncate_from_end(end)
        self.rebuild_sequences()

    def rebuild_sequences(self) -> None:
        """Reads the states of the producers from the batches."""
        self.sequences = {
            batch.producer_id: (batch.sequence + len(batch.values) - 1, batch.base)
            for batch in self.batches
            if batch.producer_id != NO_PRODUCER_ID
        }

    def restart_at(self, offset: int) -> None:
        self.batches.clear()
        self.epochs.truncate_from_end(0)
        self.sequences.clear()
        self.log_start_offset = self.log_end_offset = self.high_watermark = self.synced_end = offset

    def delete_before(self, offset: int) -> None:
        """Raises the log start. The states of producers stay, as in a log whose segments are removed."""
        if offset <= self.log_start_offset:
            return
        self.log_start_offset = offset
        while self.batches and self.batches[0].end <= offset:
            del self.batches[0]
        self.epochs.truncate_from_start(offset)

    def sync(self) -> None:
        self.synced_end = self.log_end_offset

    def cut_power(self, chance: Callable[[], float]) -> None:
        """Loses batches that were not synced. An epoch without a record may be lost, too."""
        unsynced = [batch for batch in self.batches if batch.base >= self.synced_end]
        kept = int(chance() * (len(unsynced) + 1))
        if kept < len(unsynced):
            self.truncate_to(unsynced[kept].base)
        elif chance() < 0.5:
            self.epochs.truncate_from_end(self.log_end_offset)

    # --- fetches of followers -----------------------------------------------------------------------------------

    def answer(self, asked: NextFetch, leader_epoch: int, most: int) -> tuple[FetchedPart, list[AbstractBatch]]:
        """Returns a leader's reply to a follower's fetch, with at most so many batches."""
        if asked.leader_epoch != leader_epoch:
            fenced = asked.leader_epoch < leader_epoch
            return FetchedPart(ErrorCode.fenced_leader_epoch if fenced else ErrorCode.unknown_leader_epoch), []
        out_of_range = FetchedPart(ErrorCode.offset_out_of_range), list[AbstractBatch]()
        offsets = self.high_watermark, self.log_start_offset
        if asked.last_epoch != NO_EPOCH:
            epoch, end = self.epoch_end_offset(asked.last_epoch)
            if end == NO_OFFSET or asked.offset < self.log_start_offset:
                return out_of_range
            if epoch < asked.last_epoch or end < asked.offset:
                return FetchedPart(ErrorCode.none, *offsets, diverging=(epoch, end)), []
        if not self.log_start_offset <= asked.offset <= self.log_end_offset:
            return out_of_range
        batches = self.read(asked.offset, most)
        return FetchedPart(ErrorCode.none, *offsets, has_records=bool(batches)), batches


def _base(batch: AbstractBatch) -> int:
    return batch.base
