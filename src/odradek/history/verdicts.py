"""Verdicts on groups and their partitions, many at a time, and the table ``verdicts``.

``odradek.history.verdict_rules`` describes the rules. The live monitor, the analysis of the offsets topic and the
analysis on Spark make their rows here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.records.columns import TIME
from odradek.history.verdict_rules import STATUS_OF, Status, VerdictRule, VerdictRules
from odradek.history.windows.commit_windows import CommitWindows, WindowRows

SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("status", pa.string()),
        ("rule", pa.string()),
        ("group_status", pa.string()),
        ("commits", pa.int32()),
        ("complete", pa.float64()),
        ("first_offset", pa.int64()),
        ("first_timestamp", TIME),
        ("committed_offset", pa.int64()),
        ("commit_timestamp", TIME),
        ("log_start_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("lag", pa.int64()),
        ("lost", pa.int64()),
        ("records_per_second", pa.float64()),
        ("arrivals_per_second", pa.float64()),
        ("clear_ms", pa.int64()),
    ]
)
"""A row for each partition with a committed offset. ``status`` and ``rule`` are names of ``verdict_rules.Status`` and
``VerdictRule``. ``commits``, ``first_offset`` and ``first_timestamp`` describe the window. ``lag`` counts from the log
start offset at least; ``lost`` records were deleted before the group read them. ``clear_ms``: the time until the lag is
0 at the present rates; null while the lag does not fall. ``group_status`` is that of the worst partition of the group.
"""

_CHUNK = 1 << 12
_STATUS = np.array([STATUS_OF[rule] for rule in VerdictRule], np.uint8)
_STATUS_NAMES = pa.array([status.name for status in Status])
_RULE_NAMES = pa.array([rule.name for rule in VerdictRule])
_NO_NUMBER = -1


@dataclass(slots=True)
class LogBoundColumns:
    """The bounds of some logs, one row for each. -1: unknown.

    ``recent_ends``: the oldest log end offset that was known within the last ``recent_ms``. ``recent_spans_ms``: the
    time from then to the time of ``ends``.
    """

    starts: Array
    ends: Array
    recent_ends: Array
    recent_spans_ms: Array

    def take(self, rows: Array) -> LogBoundColumns:
        return LogBoundColumns(*(getattr(self, one.name)[rows] for one in fields(self)))


@dataclass(slots=True)
class Verdicts:
    """Verdicts in columns, one row for each key. -1 and NaN: unknown. Times are milliseconds.

    ``rules`` has numbers of ``VerdictRule``. ``read_rates`` and ``arrival_rates`` are records per second.
    """

    rules: Array
    counts: Array
    first_offsets: Array
    first_times: Array
    offsets: Array
    times: Array
    lags: Array
    lost: Array
    read_rates: Array
    arrival_rates: Array
    clear_ms: Array

    @property
    def statuses(self) -> Array:
        """Returns the numbers of ``Status``."""
        numbers: Array = _STATUS[self.rules]
        return numbers


def judge_windows(window: WindowRows, bounds: LogBoundColumns, now_ms: int, rules: VerdictRules) -> Verdicts:
    """Returns the verdicts on windows, each with the bounds of its log in the same row."""
    offsets, times, counts = window.offsets, window.times, window.counts
    newest, last = offsets[:, -1], times[:, -1]
    lag = np.maximum(bounds.ends - np.maximum(newest, bounds.starts), 0)
    is_known = (bounds.ends >= 0) & (counts > 0)
    lag[~is_known] = _NO_NUMBER
    lost = np.where((bounds.starts >= 0) & (counts > 0), np.maximum(bounds.starts - newest, 0), 0)
    has_stopped = now_ms - last > last - times[:, 0]
    deciding = _decide(window, lag, has_stopped, bounds.recent_ends, rules)
    until = np.where(has_stopped, now_ms, last)
    took = until - times[:, 0]
    advanced = np.maximum(np.diff(offsets, axis=1), 0).sum(axis=1)
    read = np.full(len(lag), np.nan)
    np.divide(advanced * 1000.0, took, out=read, where=(counts > 1) & (took > 0))
    arriving = np.full(len(lag), np.nan)
    has_recent = (bounds.recent_ends >= 0) & (bounds.recent_spans_ms > 0) & (bounds.ends >= 0)
    np.divide((bounds.ends - bounds.recent_ends) * 1000.0, bounds.recent_spans_ms, out=arriving, where=has_recent)
    clear = _clear(lag, read, arriving)
    clear[deciding == VerdictRule.STOPPED] = _NO_NUMBER
    return Verdicts(deciding, counts, offsets[:, 0], times[:, 0], newest, last, lag, lost, read, arriving, clear)


def _decide(window: WindowRows, lag: Array, has_stopped: Array, recent_ends: Array, rules: VerdictRules) -> Array:
    """Returns the rule that decides about each window. Later rules are written first, so that earlier ones replace
    them."""
    offsets, lags, counts = window.offsets, window.lags, window.counts
    known = (lags >= 0).sum(axis=1)
    fell = _lag_fell(lags)
    is_stalled = (offsets == offsets[:, :1]).all(axis=1)
    deciding = np.where(fell, VerdictRule.LAG_FELL, VerdictRule.LAG_NEVER_FELL).astype(np.uint8)
    deciding[known < 2] = VerdictRule.UNKNOWN_LAGS
    deciding[is_stalled & (known >= 1)] = VerdictRule.SAME_OFFSET
    deciding[((lags >= 0) & (lags <= rules.allowed_lag)).any(axis=1)] = VerdictRule.CAUGHT_UP
    deciding[_is_rewound(offsets)] = VerdictRule.REWOUND
    was_without_lag = (recent_ends >= 0) & (recent_ends <= offsets[:, -1])
    deciding[has_stopped & ~was_without_lag] = VerdictRule.STOPPED
    deciding[lag <= rules.allowed_lag] = VerdictRule.NO_LAG
    deciding[(counts == 0) | (counts / rules.intervals < rules.minimum_complete)] = VerdictRule.INCOMPLETE
    deciding[lag == _NO_NUMBER] = VerdictRule.UNKNOWN_END
    return deciding


def _lag_fell(lags: Array) -> Array:
    """Returns whether a known lag of each window is smaller than the known lag before it."""
    fell = np.zeros(len(lags), bool)
    before = lags[:, 0].copy()
    for column in lags.T[1:]:
        fell |= (column >= 0) & (column < before)
        before = np.where(column >= 0, column, before)
    return fell


def _is_rewound(offsets: Array) -> Array:
    """Returns whether the first fall of each window's offsets was not made good."""
    falls = np.diff(offsets, axis=1) < 0
    rewound: Array = np.array(falls.any(axis=1))
    rows = np.flatnonzero(rewound)
    if len(rows):
        at = np.argmax(falls[rows], axis=1)
        later = np.arange(offsets.shape[1]) > at[:, None]
        reached = np.where(later, offsets[rows], -1).max(axis=1)
        rewound[rows] = reached < offsets[rows, at]
    return rewound


def _clear(lag: Array, read: Array, arriving: Array) -> Array:
    clear = np.full(len(lag), _NO_NUMBER, np.int64)
    clear[lag == 0] = 0
    falls = np.flatnonzero((lag > 0) & (read > arriving))  # false for NaN
    clear[falls] = np.ceil(lag[falls] * 1000.0 / (read[falls] - arriving[falls])).astype(np.int64)
    return clear


def judge_keys(windows: CommitWindows, keys: Array, bounds: LogBoundColumns, logs: Array, now_ms: int) -> Verdicts:
    """Returns the verdicts on keys. ``logs`` has the row of ``bounds`` for each key; -1: the log is unknown."""
    parts = list(_judged(windows, keys, bounds, logs, now_ms))
    return Verdicts(*(np.concatenate([getattr(part, one.name) for part in parts]) for one in fields(Verdicts)))


def _judged(
    windows: CommitWindows, keys: Array, bounds: LogBoundColumns, logs: Array, now_ms: int
) -> Iterator[Verdicts]:  # fmt: skip
    none = np.full(1, _NO_NUMBER, np.int64)
    padded = LogBoundColumns(*(np.append(getattr(bounds, one.name), none) for one in fields(LogBoundColumns)))
    for begin in range(0, max(len(keys), 1), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        yield judge_windows(windows.rows(keys[chunk]), padded.take(logs[chunk]), now_ms, windows.rules)


def worst_of_groups(statuses: Array, groups: Array, count: int) -> Array:
    """Returns the status of each of ``count`` groups: that of the worst partition, where STOP, STALL and REWIND are
    ERR. ``groups`` has the number of each partition's group."""
    worst = np.zeros(count, np.uint8)
    np.maximum.at(worst, groups, np.minimum(statuses, Status.ERR).astype(np.uint8))
    return worst


def verdict_table(
    verdicts: Verdicts, bounds: LogBoundColumns, intervals: int, names: tuple[pa.Array, pa.Array, Array]
) -> pa.Table:
    """Returns the table ``SCHEMA``, sorted by group, topic and partition. ``bounds`` has the row of each verdict.

    ``names`` has the groups, the topics and the partitions of the verdicts.
    """
    groups, topics, partitions = names
    of_group = pa.chunked_array([groups]).combine_chunks().dictionary_encode()
    codes = of_group.indices.to_numpy(zero_copy_only=False)
    worst = worst_of_groups(verdicts.statuses, codes, len(of_group.dictionary))
    table = pa.Table.from_arrays(
        [
            groups,
            topics,
            pa.array(partitions, pa.int32()),
            _STATUS_NAMES.take(pa.array(verdicts.statuses)),
            _RULE_NAMES.take(pa.array(verdicts.rules)),
            _STATUS_NAMES.take(pa.array(worst[codes])),
            pa.array(verdicts.counts, pa.int32()),
            pa.array(verdicts.counts / intervals),
            _numbers(verdicts.first_offsets),
            _moments(verdicts.first_times),
            _numbers(verdicts.offsets),
            _moments(verdicts.times),
            _numbers(bounds.starts),
            _numbers(bounds.ends),
            _numbers(verdicts.lags),
            _numbers(verdicts.lost),
            _rates(verdicts.read_rates),
            _rates(verdicts.arrival_rates),
            _numbers(verdicts.clear_ms),
        ],
        schema=SCHEMA,
    )
    return table.sort_by([("group", "ascending"), ("topic", "ascending"), ("partition", "ascending")])


def _numbers(column: Array) -> pa.Array:
    return pa.array(column, pa.int64(), mask=column < 0)


def _moments(ms: Array) -> pa.Array:
    return pa.array(ms * 1000, pa.int64(), mask=ms < 0).cast(TIME)


def _rates(column: Array) -> pa.Array:
    return pa.array(column, pa.float64(), mask=np.isnan(column))
