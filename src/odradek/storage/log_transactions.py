"""The part of a log that concerns transactions: the last stable offset, aborted and open transactions, verification."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.storage.aborted_index import collect_aborted
from odradek.storage.producers import Producers
from odradek.storage.segment import Segment, Slice


class DescribedProducer(NamedTuple):
    """The state of a producer for DescribeProducers. -1 is "unknown", and no open transaction."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    current_txn_start_offset: int


class LogTransactions:
    """The base class of ``Log`` with the methods for transactions."""

    __slots__ = ("_high_watermark",)

    producers: Producers
    log_start_offset: int
    has_aborted: bool
    """Whether a segment may have markers of aborted transactions."""
    _segments: list[Segment]
    _bases: list[int]
    _end_offset: int
    _high_watermark: int | None

    @property
    def high_watermark(self) -> int:
        return self._end_offset if self._high_watermark is None else min(self._high_watermark, self._end_offset)

    @high_watermark.setter
    def high_watermark(self, value: int | None) -> None:
        """``None`` makes it equal to the log end offset again."""
        self._high_watermark = value
        self.producers.replicate(self._end_offset if value is None else value)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        high_watermark = self.high_watermark
        return high_watermark if unstable is None else min(max(unstable, self.log_start_offset), high_watermark)

    @property
    def stable_base_offset(self) -> int:
        """The base offset of the segment with the last stable offset."""
        if self.producers.first_unstable_offset is None:
            return self._bases[-1]
        return self._bases[self._number_at(self.last_stable_offset)]

    @property
    def open_transactions(self) -> Mapping[int, int]:
        """The first offset of each open transaction by producer id, in the order of the offsets."""
        return self.producers.open_transactions

    def producers_described(self) -> Iterator[DescribedProducer]:
        """Yields the state of each producer."""
        for state in self.producers:
            yield DescribedProducer(
                state.producer_id,
                state.epoch,
                state.last_sequence,
                state.last_timestamp,
                state.coordinator_epoch,
                state.transaction_start,
            )

    def aborted_in(self, start: int, end: int) -> Sequence[AbortedTransaction]:
        """Returns the aborted transactions with records in [``start``, ``end``). Raises OSError."""
        if not self.has_aborted:
            return ()
        return collect_aborted(self._segments[self._number_at(start) :], start, end)

    def aborted_for(self, offset: int, records: Slice) -> Sequence[AbortedTransaction]:
        """Returns the aborted transactions for a reader of ``records`` from ``offset`` on. Raises OSError.

        As in Kafka, the end is the next entry of the offset index after the records, so a few may be after them.
        """
        if not self.has_aborted:
            return ()
        number = self._number_at(records.base_offset)
        end = self._segments[number].offset_index.first_at_or_after(records.position + records.size)
        if end is None:
            end = self._bases[number + 1] if number + 1 < len(self._bases) else self._end_offset
        return collect_aborted(self._segments[number:], offset, end)

    def _number_at(self, offset: int) -> int:
        """Returns the number of the segment with ``offset``."""
        return max(bisect_right(self._bases, offset) - 1, 0)
