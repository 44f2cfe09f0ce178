"""The newest commits of many keys, in arrays: about 150 bytes for a key with ten commits.

A key is a number. The caller numbers the groups and their partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.verdict_rules import VerdictRules
from odradek.history.windows import window_kernels as kernels

_STEP = 1 << 16
_WIDE_STEP = 256


@dataclass(slots=True)
class WindowRows:
    """The windows of some keys, one row each, oldest commit first, and their numbers of commits.

    Behind the newest commit, its offset and time are repeated and the lags are -1. A lag of -1 is unknown. Times are
    milliseconds.
    """

    offsets: Array
    times: Array
    lags: Array
    counts: Array


class CommitColumns(NamedTuple):
    """Commits in columns. Times are milliseconds; a lag or topic id of -1 is unknown.

    ``are_deletions``: the row deletes the offset of its key. The other values of such a row do not count.
    """

    offsets: Array
    times: Array
    lags: Array
    topic_ids: Array
    are_deletions: Array


class CommitWindows:
    """The windows of the keys 0 to ``len(self)``: the newest ``intervals`` commits that are far enough apart.

    A commit that comes too soon takes the place of the previous one and keeps its time, as in Burrow: otherwise
    frequent commits would never begin a new place. The times of a window never fall.
    """

    def __init__(self, rules: VerdictRules, keys: int = 0) -> None:
        n = rules.intervals
        self.rules = rules
        self._places = np.zeros((0, n, 3), np.int32)
        self._bases = np.zeros((0, 2), np.int64)
        self._rings = np.zeros((0, 2), np.uint8)
        self._wide_row = np.zeros(0, np.int32)
        self._topic_ids = np.zeros(0, np.int32)
        self._wide = np.zeros((0, n, 3), np.int64)
        self._free = kernels.FREE
        self._size = 0
        self.grow(keys)

    def __len__(self) -> int:
        return self._size

    @property
    def nbytes(self) -> int:
        arrays = (self._places, self._bases, self._rings, self._wide_row, self._topic_ids, self._wide)
        return sum(array.nbytes for array in arrays)

    def grow(self, keys: int) -> None:
        """Makes room for the keys 0 to ``keys``. New windows are empty."""
        self._size = max(self._size, keys)
        known = len(self._rings)
        if keys <= known:
            return
        # ``resize`` extends large arrays without a copy. Steps of a fixed size keep the unused part small.
        room = -(-keys // _STEP) * _STEP if keys > 1024 else keys
        for array in (self._places, self._bases, self._rings, self._wide_row, self._topic_ids):
            array.resize((room, *array.shape[1:]), refcheck=False)
        self._wide_row[known:] = kernels.NARROW
        self._topic_ids[known:] = -1

    def store(self, keys: Array, commits: CommitColumns) -> None:
        """Stores commits of these keys, in log order."""
        done, count = 0, len(keys)
        numbers = (keys, commits.offsets, commits.times, commits.lags)
        columns = tuple(writable(one, np.int64) for one in numbers)
        ids = writable(commits.topic_ids, np.int32)
        gone = writable(commits.are_deletions, np.bool_)
        while done < count:
            done, self._free = kernels.store(
                *self._arrays(), self._topic_ids, self.rules.min_distance_ms, self._free, *columns, ids, gone, done
            )
            if done < count:
                self._add_wide_rows()

    def _arrays(self) -> tuple[Array, Array, Array, Array, Array]:
        return self._places, self._wide, self._bases, self._rings, self._wide_row

    def _add_wide_rows(self) -> None:
        known = len(self._wide)
        self._wide.resize((known + max(_WIDE_STEP, known // 4), *self._wide.shape[1:]), refcheck=False)
        rows = np.arange(known, len(self._wide))
        self._wide[rows, 0, 0] = np.append(rows[1:], self._free)
        self._free = known

    @property
    def counts(self) -> Array:
        """Returns the number of commits of each key."""
        counts: Array = self._rings[: self._size, 0]
        return counts

    def rows(self, keys: Array) -> WindowRows:
        """Returns the windows of these keys."""
        keys = writable(keys, np.int64)
        offsets, times, lags = (np.empty((len(keys), self.rules.intervals), np.int64) for _ in range(3))
        kernels.gather(*self._arrays(), keys, offsets, times, lags)
        return WindowRows(offsets, times, lags, self._rings[keys, 0].astype(np.int64))


def writable(values: Array, kind: type) -> Array:
    """Returns values as kernels take them: contiguous, of one type, and not read-only as Arrow's arrays are."""
    array: Array = np.require(values, kind, ["C", "W"])
    return array
