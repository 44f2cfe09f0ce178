"""The segments of a log in the order of their offsets, and the aborted transactions in their indexes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.storage.segments.aborted_index import AbortedEntry, collect_aborted
from odradek.storage.segments.index_digests import IndexDigest, LogDigest, SegmentDigest
from odradek.storage.segments.segment import Segment
from odradek.storage.segments.slice import Slice

CUT_BYTES = 4 << 20
"""The most bytes of a segment that one step of a truncation removes: about a millisecond, if the system has cached and
written them. A whole gigabyte takes 0.2 s."""


class SegmentList:
    """The segments of a log, at least one. ``bases`` are their base offsets. ``active`` is the last segment.

    ``has_aborted``: a segment may have markers of aborted transactions.
    """

    __slots__ = ("active", "all", "bases", "has_aborted")

    def __init__(self, segments: list[Segment]) -> None:
        self.all = segments
        self.bases = [segment.base_offset for segment in segments]
        self.active = segments[-1]
        self.has_aborted = any(segment.has_aborted for segment in segments)

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.all)

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self.all)

    def number_at(self, offset: int) -> int:
        """Returns the number of the segment with ``offset``."""
        return max(bisect_right(self.bases, offset) - 1, 0)

    def replace(self, first: int, last: int, *fresh: Segment) -> None:
        """Replaces the segments from number ``first`` to number ``last - 1``. At least one segment has to remain."""
        self.all[first:last] = fresh
        self.bases[first:last] = [segment.base_offset for segment in fresh]
        self.active = self.all[-1]

    def next_cut(self, offset: int) -> int:
        """Returns where a log that is to be truncated to ``offset`` is cut next, so that the newest segment loses at
        most ``CUT_BYTES`` or is removed; ``offset`` for the last cut. A larger index.interval.bytes makes larger cuts.
        """
        active = self.active
        if len(self.all) > 1 and active.base_offset > offset:
            return active.base_offset
        at = active.offset_index.first_at_or_after(active.size - CUT_BYTES) if active.size > CUT_BYTES else None
        return offset if at is None else max(at, offset)

    def append(self, segment: Segment) -> None:
        self.replace(len(self.all), len(self.all), segment)

    # aborted transactions

    def add_aborted(self, entry: AbortedEntry) -> None:
        """Adds an aborted transaction whose marker is in the active segment. Raises OSError."""
        self.has_aborted = True
        self.active.add_aborted(entry)

    def aborted_for(self, offset: int, records: Slice) -> Sequence[AbortedTransaction]:
        """Returns the aborted transactions for a reader of ``records`` from ``offset`` on. Raises OSError.

        As in Kafka, the search ends at the offset index's next entry after the records. So a few of the transactions
        may begin after the records.
        """
        if not self.has_aborted:
            return ()
        number = self.number_at(records.base_offset)
        end = self.all[number].offset_index.first_at_or_after(records.position + records.size)
        if end is None:
            end = self.bases[number + 1] if number + 1 < len(self.bases) else self.active.next_offset
        return collect_aborted(self.all[number:], offset, end)

    def digests(self, *, with_segments: bool) -> LogDigest:
        """Returns the digests of the indexes of aborted transactions and, at a clean stop, of the segments. Raises
        OSError."""
        sizes = [SegmentDigest(one.base_offset, one.size, one.next_offset) for one in self.all if with_segments]
        return LogDigest(self._index_digests() if self.has_aborted else [], sizes)

    def _index_digests(self) -> list[IndexDigest]:
        return [digest for segment in self.all if (digest := segment.digest()) is not None]
