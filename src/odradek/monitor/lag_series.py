"""The lag of each group at the newest polls."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from odradek.batches.kernel_arrays import Array
from odradek.monitor.group_sums import GroupColumns

MOST_POLLS = 120


class LagSeries:
    """A column of lags for each of the newest ``MOST_POLLS`` polls: 8 bytes for each group and poll."""

    def __init__(self) -> None:
        self._polls: deque[tuple[int, list[str], Array]] = deque(maxlen=MOST_POLLS)

    def add(self, groups: GroupColumns) -> None:
        names = groups.names
        if self._polls and self._polls[-1][1] == names:
            names = self._polls[-1][1]  # one list for all polls between which no group came or went
        self._polls.append((groups.now_ms, names, groups.lags))

    def of(self, group: str) -> list[tuple[int, int]]:
        """Returns the times in ms and the lags of a group, oldest first, of the polls that saw it."""
        points = []
        for time_ms, names, lags in self._polls:
            at = bisect_left(names, group)
            if at < len(names) and names[at] == group:
                points.append((time_ms, int(lags[at])))
        return points
