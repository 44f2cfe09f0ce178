"""Sums over the partitions of each group, for verdicts that come in pieces."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.verdict_rules import Status, VerdictRules
from odradek.history.verdicts import Verdicts

_NEVER = (1 << 63) - 1


@dataclass(slots=True)
class GroupColumns:
    """A row for each group, sorted by name. -1 and NaN: unknown. Times are milliseconds.

    ``lags``: the sum over the partitions whose lag is known. ``clear_ms``: the time of the slowest partition; -1 if the
    lag of a partition does not fall. ``worst``: the slot of the worst partition; -1 without partitions. ``stale``: the
    number of partitions whose newest poll failed. ``expires_ms``: when the first of the group's offsets expires; -1 if
    none does in the present state of the group. ``findings``: the number of findings about the group. ``time_lags`` are
    those of the worst partitions, with the greatest errors; ``LogSamples.ages``.
    """

    now_ms: int
    names: list[str]
    statuses: Array
    lags: Array
    highest_lags: Array
    lost: Array
    partitions: Array
    complete: Array
    read_rates: Array
    arrival_rates: Array
    clear_ms: Array
    worst: Array
    stale: Array
    newest_commits: Array
    expires_ms: Array
    findings: Array
    time_lags: Array
    time_lag_errors: Array


class GroupSums:
    """``add`` takes verdicts with the row of each one's group; ``columns`` returns the sums."""

    def __init__(self, groups: int, rules: VerdictRules) -> None:
        self._rules = rules
        self._worst = np.zeros(groups, np.int64)
        self._worst_slot = np.full(groups, -1, np.int64)
        self._lags, self._highest, self._lost = (np.zeros(groups, np.int64) for _ in range(3))
        self._partitions, self._complete, self._stale = (np.zeros(groups, np.int64) for _ in range(3))
        self._reads, self._arrivals = np.zeros(groups), np.zeros(groups)
        self._clear = np.zeros(groups, np.int64)
        self._never_clear = np.zeros(groups, np.bool_)
        self._newest = np.full(groups, -1, np.int64)
        self._expires = np.full(groups, _NEVER, np.int64)
        self._findings = np.zeros(groups, np.int64)

    def add(self, rows: Array, slots: Array, verdicts: Verdicts, stale: Array) -> None:
        count = len(self._lags)
        lags = np.maximum(verdicts.lags, 0)
        np.add.at(self._lags, rows, lags)
        np.maximum.at(self._highest, rows, lags)
        np.add.at(self._lost, rows, verdicts.lost)
        self._partitions += np.bincount(rows, minlength=count)
        self._complete += np.bincount(rows[verdicts.counts == self._rules.intervals], minlength=count)
        self._stale += np.bincount(rows[stale], minlength=count)
        np.add.at(self._reads, rows, np.nan_to_num(verdicts.read_rates))
        np.add.at(self._arrivals, rows, np.nan_to_num(verdicts.arrival_rates))
        np.maximum.at(self._newest, rows, verdicts.times)
        np.maximum.at(self._clear, rows, verdicts.clear_ms)
        self._never_clear[rows[(verdicts.lags != 0) & (verdicts.clear_ms < 0)]] = True
        self._note_worst(rows, slots, verdicts)

    def add_expiry(self, rows: Array, expires_ms: Array, until_ms: int) -> None:
        """Adds the times at which offsets expire (-1: they do not), with the row of each one's group. Those up to
        ``until_ms`` are findings."""
        does = expires_ms >= 0
        np.minimum.at(self._expires, rows[does], expires_ms[does])
        self._findings += np.bincount(rows[does & (expires_ms <= until_ms)], minlength=len(self._findings))

    def add_findings(self, rows: Array, counts: Array) -> None:
        self._findings[rows] += counts

    def _note_worst(self, rows: Array, slots: Array, verdicts: Verdicts) -> None:
        """Of partitions with the same status, the one with the highest lag is the worst."""
        order = np.lexsort((verdicts.lags, verdicts.statuses, rows))
        last = np.flatnonzero(np.append(np.diff(rows[order]) != 0, True)) if len(order) else order
        best = order[last]
        groups, statuses, lags = rows[best], verdicts.statuses[best].astype(np.int64), verdicts.lags[best]
        rank = (statuses << 58) + np.minimum(lags + 1, (1 << 58) - 1)
        is_worse = rank > self._worst[groups]
        self._worst[groups[is_worse]] = rank[is_worse]
        self._worst_slot[groups[is_worse]] = slots[best[is_worse]]

    def columns(self, now_ms: int, names: list[str]) -> GroupColumns:
        expires = np.where(self._expires == _NEVER, -1, self._expires)
        statuses = np.minimum(self._worst >> 58, Status.ERR).astype(np.uint8)
        clear = np.where(self._never_clear, -1, self._clear)
        return GroupColumns(
            now_ms, names, statuses, self._lags, self._highest, self._lost, self._partitions, self._complete,
            self._reads, self._arrivals, clear, self._worst_slot, self._stale, self._newest,
            expires, self._findings, *(np.full(len(names), -1, np.int64) for _ in range(2)),
        )  # fmt: skip


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
