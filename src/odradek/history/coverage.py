"""The coverage of ``__consumer_offsets``: how many offsets have a record, and why the other offsets have none.

An offset without a record is not always a lost record. The headers of the batches in the log show two other cases:
control batches (transaction markers, which are no history) and batches of aborted transactions (never committed). In
all other cases a record or a batch was removed: by compaction, or because it is below the log start offset. A gap
inside a batch is a removed record. If a whole batch is missing, the log does not show whether it had records or
markers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from odradek.batches.kernels.kernel_arrays import Int64s
from odradek.batches.arrow import BatchSpans

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
"""The columns of ``CoverageRow``: one row for each partition that was ever written to."""


class CoverageRow(NamedTuple):
    """The offsets 0 to ``end_offset`` (exclusive) of one partition. The five counts add up to ``end_offset``.

    ``records``: records that were read, of all groups. ``control_records``: transaction markers. ``rolled_back``:
    records of aborted transactions. ``removed_records``: gaps in existing batches. ``removed_unknown``: offsets that no
    batch covers, because they are below the log start offset or because compaction removed the whole batch (of records,
    markers or aborted transactions). No record at or above ``incomplete_below`` was removed (0: nothing was removed).
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
    """The coverage of all partitions that are read, one row per partition."""

    rows: list[CoverageRow] = field(default_factory=list)

    def begin(self, partition: int, log_start_offset: int, end_offset: int, known_below: int = 0) -> PartitionCoverage:
        """Starts a partition that is read up to ``end_offset``. Its ``finish`` adds the row.

        ``known_below``: the offsets below are not missing, because an earlier read has covered them.
        """
        return PartitionCoverage(self.rows, partition, (log_start_offset, end_offset), known_below)

    @property
    def incomplete_below(self) -> dict[int, int]:
        """For each partition with removed records: an offset above all removed records."""
        return {row.record_partition: row.incomplete_below for row in self.rows if row.incomplete_below}

    def table(self) -> pa.Table:
        rows = sorted(self.rows)
        return pa.table([[getattr(row, name) for row in rows] for name in SCHEMA.names], schema=SCHEMA)


class PartitionCoverage:
    """The coverage of one partition while it is read.

    The caller notes batches before their records, both in log order.
    """

    def __init__(self, rows: list[CoverageRow], partition: int, bounds: tuple[int, int], known_below: int) -> None:
        self._rows = rows
        self._partition, (self._start, self._end) = partition, bounds
        self._records = self._data = self._control = self._rolled_back = self._incomplete_below = 0
        self._next = known_below
        # Spans without records (control batches, aborted transactions) above the last noted record.
        self._begins, self._sizes = _NONE, _NONE

    def note_batches(self, spans: BatchSpans) -> None:
        """Counts the offsets of the next batches. The first and last batch may extend beyond the range that is read."""
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
        """Counts the next records, of all groups, by their offsets."""
        numbers = offsets.to_numpy(zero_copy_only=False)
        if not len(numbers):
            return
        self._records += len(numbers)
        before = np.concatenate(([self._next - 1], numbers[:-1]))
        gaps = np.flatnonzero(numbers != before + 1)
        if len(gaps):
            self._check_gaps(before[gaps] + 1, numbers[gaps])
        self._next = int(numbers[-1]) + 1

    def _check_gaps(self, begins: Int64s, ends: Int64s) -> None:
        """Finds removed offsets in the gaps between records. A span is in one gap at most and contains no record."""
        sums = np.concatenate(([0], np.cumsum(self._sizes)))
        first, last = np.searchsorted(self._begins, begins), np.searchsorted(self._begins, ends)
        removed = np.flatnonzero(ends - begins > sums[last] - sums[first])
        if len(removed):
            self._incomplete_below = int(ends[removed[-1]])
        self._begins, self._sizes = self._begins[last[-1] :], self._sizes[last[-1] :]

    def finish(self) -> None:
        """Checks the offsets after the last record and adds the partition's row."""
        if self._next < self._end:
            self._check_gaps(np.array([self._next]), np.array([self._end]))
        covered = self._data + self._control + self._rolled_back
        self._rows.append(
            CoverageRow(
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


_NONE: Int64s = np.empty(0, np.int64)
