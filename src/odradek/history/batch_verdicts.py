"""The table ``verdicts`` of an analysis: one verdict for each partition of each group, at the end of the analysed time.

The log end offset at a commit's time is the one at the newest of ``Logs.moments`` before it, if it is not older than
``known_for_ms``. For commits of partitions with a lag, ``ends_of`` looks up the other log end offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from odradek.batches.kernels.kernel_arrays import Array
from odradek.core.ids import TopicPartition
from odradek.history.findings import Evidence
from odradek.history.log_ends import PartitionOffset
from odradek.history.verdict_rules import VerdictRules
from odradek.history.verdicts import SCHEMA, LogBoundColumns, judge_keys, verdict_table
from odradek.history.windows.commit_windows import CommitColumns, CommitWindows

PartitionTime = PartitionOffset
"""A partition and a time in milliseconds."""
EndsOf = Callable[[Sequence[PartitionTime]], Mapping[PartitionTime, int]]
"""Returns the log end offsets of partitions at the given times. Unknown ones are left out."""

MOST_ENDS = 5_000
"""The maximum number of log end offsets to look up, in the order of keys."""


def verdicts_of(evidence: Evidence, rules: VerdictRules, ends_of: EndsOf = lambda wanted: {}) -> pa.Table:
    """Returns a row of ``verdicts.SCHEMA`` for each key with a committed offset."""
    commits, logs = evidence.commits, evidence.logs
    if not commits.keys:
        return SCHEMA.empty_table()
    now_ms = logs.now_us // 1000
    partitions = sorted({key.topic_partition for key in commits.keys})
    rows = {tp: row for row, tp in enumerate(partitions)}
    log_of_key = np.array([rows[key.topic_partition] for key in commits.keys], np.int64)
    moments, ends = logs.moments // 1000, _ends(evidence, partitions)
    bounds = _bounds(evidence, partitions, (moments, ends), rules)
    times = commits.times // 1000
    known = known_ends((moments, ends), log_of_key[commits.key], times, rules)
    wanted = _wanted(evidence, bounds, log_of_key, known, rules)
    if wanted:
        log_ends = ends_of(sorted({(partitions[log_of_key[commits.key[row]]], int(times[row])) for row in wanted}
                               | {(partitions[log_of_key[commits.key[row]]], now_ms - rules.recent_ms)
                                  for row in wanted}))  # fmt: skip
        for row in wanted:
            known[row] = log_ends.get((partitions[log_of_key[commits.key[row]]], int(times[row])), -1)
        for row, tp in enumerate(partitions):
            recent = log_ends.get((tp, now_ms - rules.recent_ms), -1)
            if recent >= 0:
                bounds.recent_ends[row], bounds.recent_spans_ms[row] = recent, rules.recent_ms
    windows = CommitWindows(rules, len(commits.keys))
    lags = np.where(known >= 0, np.maximum(known - commits.offsets, 0), -1)
    columns = CommitColumns(commits.offsets, times, lags, commits.topic_ids, commits.is_tombstone)
    windows.store(commits.key, columns)
    shown = np.flatnonzero(windows.counts)
    verdicts = judge_keys(windows, shown, bounds, log_of_key[shown], now_ms)
    keys = [commits.keys[number] for number in shown.tolist()]
    return verdict_table(
        verdicts,
        bounds.take(log_of_key[shown]),
        rules.intervals,
        (
            pa.array([key.group for key in keys], pa.string()),
            pa.array([key.topic for key in keys], pa.string()),
            np.array([key.partition for key in keys], np.int32),
        ),
    )


def _ends(evidence: Evidence, partitions: Sequence[TopicPartition]) -> Array:
    """Returns the log end offset of each partition at each of ``Logs.moments``; -1: unknown."""
    logs = evidence.logs
    ends = np.full((len(partitions), len(logs.moments)), -1, np.int64)
    for row, tp in enumerate(partitions):
        if tp in logs.by_partition:
            ends[row] = logs.by_partition[tp].ends
    return ends


def _bounds(
    evidence: Evidence, partitions: Sequence[TopicPartition], samples: tuple[Array, Array], rules: VerdictRules
) -> LogBoundColumns:
    logs, (moments, ends) = evidence.logs, samples
    bounds = LogBoundColumns(*(np.full(len(partitions), -1, np.int64) for _ in range(4)))
    for row, tp in enumerate(partitions):
        log = logs.by_partition.get(tp)
        if log is not None:
            bounds.starts[row], bounds.ends[row] = log.start, log.end
    set_recent_ends(bounds, moments, ends, logs.now_us // 1000, rules)
    return bounds


def set_recent_ends(bounds: LogBoundColumns, moments: Array, ends: Array, now_ms: int, rules: VerdictRules) -> None:
    """Sets ``recent_ends`` and ``recent_spans_ms`` from log end offsets at moments (ms): the columns of ``ends``."""
    recent = np.flatnonzero((moments >= now_ms - rules.recent_ms) & (moments <= now_ms))
    if not len(recent):
        return
    is_known = ends[:, recent] >= 0
    rows = np.flatnonzero(is_known.any(axis=1))
    oldest = recent[np.argmax(is_known[rows], axis=1)]
    newest = recent[len(recent) - 1 - np.argmax(is_known[rows][:, ::-1], axis=1)]
    bounds.recent_ends[rows] = ends[rows, oldest]
    bounds.recent_spans_ms[rows] = moments[newest] - moments[oldest]


def known_ends(samples: tuple[Array, Array], logs: Array, times: Array, rules: VerdictRules) -> Array:
    """Returns the log end offset that was known at each of ``times`` (ms) of a log (a row of the samples); -1: none."""
    moments, ends = samples
    if not len(moments):
        return np.full(len(times), -1, np.int64)
    at = np.searchsorted(moments, times, side="right") - 1
    known: Array = np.where((at >= 0) & (moments[at] >= times - rules.known_for_ms), ends[logs, at], -1)
    return known


def _wanted(
    evidence: Evidence, bounds: LogBoundColumns, log_of_key: Array, known: Array, rules: VerdictRules
) -> list[int]:
    """Returns the newest commits of each key with a lag, as far as their log end offsets are unknown."""
    commits = evidence.commits
    wanted: list[int] = []
    for number, log in enumerate(log_of_key.tolist()):
        rows = commits.rows_of(number)
        newest = rows.stop - 1
        if commits.is_tombstone[newest] or bounds.ends[log] <= commits.offsets[newest]:
            continue
        wanted += [
            row
            for row in range(max(rows.start, rows.stop - rules.intervals), rows.stop)
            if known[row] < 0 and not commits.is_tombstone[row] and commits.times[row] >= 0
        ]
        if len(wanted) >= MOST_ENDS:
            break
    return wanted[:MOST_ENDS]
