"""The bounds of many logs at the newest polls, one row for each partition."""

from __future__ import annotations

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.batch_verdicts import known_ends, set_recent_ends
from odradek.history.verdict_rules import VerdictRules
from odradek.history.verdicts import LogBoundColumns

_STEP = 1 << 12


class LogSamples:
    """Log start and end offsets at the newest ``polls`` polls. -1: unknown. Times are milliseconds, ascending."""

    def __init__(self, rules: VerdictRules, polls: int) -> None:
        self._rules = rules
        self._moments = np.zeros(0, np.int64)
        self._polls = polls
        self._ends = np.full((0, polls), -1, np.int64)
        self._starts = np.full(0, -1, np.int64)
        self._newest = np.full(0, -1, np.int64)
        self._size = 0

    @property
    def nbytes(self) -> int:
        return self._ends.nbytes + self._starts.nbytes + self._newest.nbytes

    @property
    def last_ms(self) -> int:
        """Returns the time of the newest poll; -1 before the first one."""
        return int(self._moments[-1]) if len(self._moments) else -1

    def grow(self, rows: int) -> None:
        if rows > len(self._starts):
            more = max(rows - len(self._starts), min(_STEP, max(64, rows)))
            self._ends = np.append(self._ends, np.full((more, self._polls), -1, np.int64), axis=0)
            self._starts = np.append(self._starts, np.full(more, -1, np.int64))
            self._newest = np.append(self._newest, np.full(more, -1, np.int64))
        self._size = max(self._size, rows)

    def forget(self, rows: Array) -> None:
        """Empties rows, for another partition."""
        self._ends[rows] = self._starts[rows] = self._newest[rows] = -1

    def add(self, time_ms: int, rows: Array, starts: Array, ends: Array) -> None:
        """Adds a poll. Partitions that are not in ``rows`` keep their newest bounds and get no sample of this time."""
        if len(self._moments) and time_ms <= self._moments[-1]:
            time_ms = int(self._moments[-1]) + 1
        self._moments = np.append(self._moments, time_ms)[-self._polls :]
        # Samples stand at the end of a row, the newest one last, like the moments.
        self._ends[:, :-1] = self._ends[:, 1:]
        self._ends[:, -1] = -1
        self._ends[rows, -1] = ends
        self._starts[rows] = starts
        self._newest[rows] = ends

    def _columns(self) -> tuple[Array, Array]:
        count = len(self._moments)
        return self._moments, self._ends[: self._size, self._polls - count :]

    def known_ends(self, rows: Array, times: Array) -> Array:
        """Returns the log end offset that was known at each of ``times`` of a partition; -1: none."""
        return known_ends(self._columns(), rows, times, self._rules)

    def end(self, row: int) -> int:
        """Returns the newest known log end offset of a row; -1 without one."""
        return int(self._newest[row])

    def series(self, row: int) -> list[tuple[int, int]]:
        """Returns the times and the known log end offsets of a row, oldest first."""
        moments, ends = self._columns()
        pairs = zip(moments.tolist(), ends[row].tolist(), strict=True)
        return [(time_ms, end) for time_ms, end in pairs if end >= 0]

    def bounds(self, now_ms: int) -> LogBoundColumns:
        """Returns the newest known bounds of all rows, and the oldest recent log end offsets."""
        size = self._size
        bounds = LogBoundColumns(
            self._starts[:size].copy(), self._newest[:size].copy(), np.full(size, -1), np.full(size, -1)
        )
        moments, ends = self._columns()
        set_recent_ends(bounds, moments, ends, now_ms, self._rules)
        return bounds

    def ages(self, rows: Array, offsets: Array, now_ms: int) -> tuple[Array, Array]:
        """Returns how long ago the records at ``offsets`` of logs arrived, and the greatest error, both in ms.

        Both are 0 at the log end. They are -1 for a record that is older than the polls, or in a log without polls. The
        time is between those of two polls, so the error is the time between them.
        """
        moments, ends = self._columns()
        ages, errors = np.full(len(rows), -1, np.int64), np.full(len(rows), -1, np.int64)
        if not len(moments):
            return ages, errors
        known = np.maximum.accumulate(ends[rows], axis=1)  # a poll without an answer shows what the one before showed
        passed = (known <= offsets[:, None]).sum(axis=1)
        is_at_end = (known[:, -1] >= 0) & (offsets >= known[:, -1])
        ages[is_at_end] = errors[is_at_end] = 0
        between = np.flatnonzero(~is_at_end & (passed > 0) & (offsets >= 0))
        after = passed[between]
        low, high = known[between, after - 1], known[between, after]
        usable = low >= 0
        between, after, low, high = between[usable], after[usable], low[usable], high[usable]
        span = moments[after] - moments[after - 1]
        at = moments[after - 1] + span * (offsets[between] - low) // np.maximum(high - low, 1)
        ages[between], errors[between] = np.maximum(now_ms - at, 0), span
        return ages, errors
