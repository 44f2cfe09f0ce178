"""What became of every offset of ``__consumer_offsets``: how much of the history is there, and what is not.

An offset without a record need not be a lost one. The headers of the batches tell those apart that are still in the
log: control batches (markers of transactions, which are no history) and batches of transactions that were rolled back
(nobody committed that). What is left was removed, by compaction or since the log begins later: records, where the batch
is still there and has gaps; where the whole batch is gone, records or markers, which nothing in the log tells.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from odradek.batches.arrow import BatchSpans

Int64s = npt.NDArray[np.int64]

SCHEMA = pa.schema(
    [
        ("record_partition", pa.int32()),
        ("log_start_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("records", pa.int64()),
        ("control_records", pa.int64()),
        ("rolled_back", pa.int64()),
        ("removed_records", pa.int64()),
        ("removed_unknown", pa.int64()),
        ("incomplete_below", pa.int64()),
    ]
)
"""``Covered``, a row for each partition that ever held something."""


class Covered(NamedTuple):
    """The offsets 0 to ``end_offset`` (exclusive) of one partition: the five counts add up to them.

    ``records`` were read, of all groups. ``control_records`` are markers. ``rolled_back``: of aborted transactions.
    ``removed_records`` are gaps in batches that are there; ``removed_unknown`` no batch covers: below the log's start,
    or whole batches that compaction took, of records, markers or aborted transactions. From ``incomplete_below`` on
    nothing was removed (0: nothing ever).
    """

    record_partition: int
    log_start_offset: int
    end_offset: int
    records: int
    control_records: int
    rolled_back: int
    removed_records: int
    removed_unknown: int
    incomplete_below: int

    @property
    def removed(self) -> int:
        return self.removed_records + self.removed_unknown


@dataclass(slots=True)
class Coverage:
    """Takes in partitions as they are read, one after the other."""

    rows: list[Covered] = field(default_factory=list)

    def begin(self, partition: int, log_start_offset: int, end_offset: int) -> Covering:
        """A partition about to be read as far as ``end_offset``; counted once that is finished."""
        return Covering(self.rows, partition, log_start_offset, end_offset)

    @property
    def incomplete_below(self) -> dict[int, int]:
        """Of the partitions from which something was removed: the offset from which on nothing was."""
        return {row.record_partition: row.incomplete_below for row in self.rows if row.incomplete_below}

    def table(self) -> pa.Table:
        rows = sorted(self.rows)
        return pa.table([[getattr(row, name) for row in rows] for name in SCHEMA.names], schema=SCHEMA)


class Covering:
    """One partition while it is read. Batches are noted before their records, both in the order of the log."""

    def __init__(self, rows: list[Covered], partition: int, log_start_offset: int, end_offset: int) -> None:
        self._rows = rows
        self._partition, self._start, self._end = partition, log_start_offset, end_offset
        self._records = self._data = self._control = self._rolled_back = self._incomplete_below = 0
        self._next = 0
        # Spans that explain gaps between records, as far as no record behind them has come yet.
        self._begins, self._sizes = _NONE, _NONE

    def note_batches(self, spans: BatchSpans) -> None:
        """Which offsets the next batches cover. The first and the last may reach over the ends of what is read."""
        begins, ends = np.maximum(spans.begins, self._start), np.minimum(spans.ends, self._end)
        sizes = np.maximum(ends - begins, 0)
        self._control += int(sizes[spans.is_control].sum())
        self._rolled_back += int(sizes[spans.is_rolled_back].sum())
        explains = spans.is_control | spans.is_rolled_back
        self._data += int(sizes[~explains].sum())
        if explains.any():
            self._begins = np.concatenate((self._begins, begins[explains]))
            self._sizes = np.concatenate((self._sizes, sizes[explains]))

    def note_records(self, offsets: pa.Array) -> None:
        """The offsets of the records that were read next, of all groups."""
        found = offsets.to_numpy(zero_copy_only=False)
        if not len(found):
            return
        self._records += len(found)
        before = np.concatenate(([self._next - 1], found[:-1]))
        gaps = np.flatnonzero(found != before + 1)
        if len(gaps):
            self._look_at(before[gaps] + 1, found[gaps])
        self._next = int(found[-1]) + 1

    def _look_at(self, begins: Int64s, ends: Int64s) -> None:
        """Gaps between records: no span lies in two of them, nor do records lie in a span."""
        sums = np.concatenate(([0], np.cumsum(self._sizes)))
        first, last = np.searchsorted(self._begins, begins), np.searchsorted(self._begins, ends)
        removed = np.flatnonzero(ends - begins > sums[last] - sums[first])
        if len(removed):
            self._incomplete_below = int(ends[removed[-1]])
        self._begins, self._sizes = self._begins[last[-1] :], self._sizes[last[-1] :]

    def finish(self) -> None:
        """All was read: what follows the last record is looked at too."""
        if self._next < self._end:
            self._look_at(np.array([self._next]), np.array([self._end]))
        covered = self._data + self._control + self._rolled_back
        self._rows.append(
            Covered(
                self._partition,
                self._start,
                self._end,
                self._records,
                self._control,
                self._rolled_back,
                removed_records=self._data - self._records,
                removed_unknown=self._end - covered,
                incomplete_below=self._incomplete_below,
            )
        )


_NONE: Any = np.empty(0, np.int64)
