"""Lag, time lag and consumption rate over time, at ``Logs.moments``."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from odradek.batches.kernels.kernel_arrays import Array
from odradek.history.findings import Evidence, waiting_since
from odradek.history.log_ends import LogEnds
from odradek.history.records.columns import TIME
from odradek.history.records.journal import Key
from odradek.history.rewinds import classify

SCHEMA = pa.schema(
    [
        ("timestamp", TIME),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("log_end_offset", pa.int64()),
        ("lag", pa.int64()),
        ("time_lag_ms", pa.int64()),
        ("time_lag_error_ms", pa.int64()),
        ("records_per_second", pa.float64()),
    ]
)
"""``committed_offset`` is the newest commit at the row's moment; null if it was deleted. ``lag`` counts from the
committed offset, or from the current log start offset if that is higher. It is null without a committed offset, and if
the log end offset of the moment is unknown. ``time_lag_ms``: the age of the first record that ``lag`` counts, with an
error of ``time_lag_error_ms`` at most; 0 if ``lag`` is 0. ``records_per_second``: the average reading rate since the
previous moment. The rate does not count the records that a reset passed."""

LOOKED_UP = 2_000
"""The maximum number of records that are read for their timestamps. Other timestamps are interpolated."""


def lag_table(evidence: Evidence) -> pa.Table:
    """Returns a row per key and moment, from the key's first commit on."""
    tables = list(_tables(evidence))
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


def _tables(evidence: Evidence) -> Iterator[pa.Table]:
    commits, moments = evidence.commits, evidence.logs.moments
    if not len(commits):
        return
    newest = _newest_times(evidence)
    is_reset = classify(evidence).is_reset
    for number, key in enumerate(commits.keys):
        rows = commits.rows_of(number)
        times = np.maximum.accumulate(commits.times[rows])
        at = np.searchsorted(times, moments, side="right") - 1
        shown = np.flatnonzero(at >= 0)
        if not len(shown):
            continue
        offsets = commits.offsets[rows]
        deleted = commits.is_tombstone[rows]
        committed = np.where(deleted[at[shown]], -1, offsets[at[shown]])
        log = evidence.logs.by_partition.get(key.topic_partition)
        ends = np.full(len(shown), -1) if log is None else log.ends[shown]
        lag = np.where((ends < 0) | (committed < 0), -1, ends - np.maximum(committed, 0 if log is None else log.start))
        lag = np.where((ends >= 0) & (committed >= 0), np.maximum(lag, 0), -1)
        ages, errors = _ages(log, newest.get(key), committed, lag, moments[shown])
        rates = _rates(times, _progress(offsets, deleted, is_reset[rows]), moments)[shown]
        yield _table(key, moments[shown], (committed, ends, lag, ages, errors), rates)


def _progress(offsets: Array, deleted: Array, is_reset: Array) -> Array:
    """Returns how many records were read between the previous commit and each commit; 0 for resets and tombstones."""
    advanced = np.zeros(len(offsets), np.int64)
    usable = ~deleted[1:] & ~deleted[:-1] & ~is_reset[1:]
    advanced[1:] = np.where(usable, np.maximum(np.diff(offsets), 0), 0)
    return advanced


def _rates(times: Array, advanced: Array, moments: Array) -> Array:
    """Returns records per second between each moment and the previous one; NaN at the first.

    The records of a commit are spread evenly over the time since the previous commit.
    """
    upto = np.interp(moments, times, np.cumsum(advanced))
    rates = np.full(len(moments), np.nan)
    seconds = np.diff(moments) / 1e6
    np.divide(np.diff(upto), seconds, out=rates[1:], where=seconds > 0)
    return rates


def _newest_times(evidence: Evidence) -> dict[Key, tuple[int, int]]:
    """Returns the committed offset of each key that lags now, and the timestamp of the record at this offset.

    The result has at most ``LOOKED_UP`` keys.
    """
    commits = evidence.commits
    records = {}
    for number, key in enumerate(commits.keys):
        row = commits.rows_of(number).stop - 1
        log = evidence.logs.by_partition.get(key.topic_partition)
        if log is not None and not commits.is_tombstone[row] and log.start <= commits.offsets[row] < log.end:
            records[key] = key.topic_partition, int(commits.offsets[row])
        if len(records) == LOOKED_UP:
            break
    times = waiting_since(evidence, sorted(set(records.values())))
    return {key: (record[1], times[record]) for key, record in records.items() if record in times}


def _ages(
    log: LogEnds | None, newest: tuple[int, int] | None, committed: Array, lag: Array, moments: Array
) -> tuple[Array, Array]:
    """Returns the time lag at each moment and its maximum error, in microseconds; -1: unknown."""
    ages, errors = np.full(len(lag), -1), np.full(len(lag), -1)
    ages[lag == 0] = errors[lag == 0] = 0
    if log is None:
        return ages, errors
    known: dict[int, tuple[int, int] | None] = {}
    for i in np.flatnonzero(lag > 0).tolist():
        offset = max(int(committed[i]), log.start)
        if offset not in known:
            known[offset] = (newest[1], 0) if newest and newest[0] == offset else log.time_of(offset)
        time_and_error = known[offset]
        if time_and_error is not None:
            ages[i], errors[i] = max(0, int(moments[i]) - time_and_error[0]), time_and_error[1]
    return ages, errors


def _table(key: Key, moments: Array, numbers: tuple[Array, ...], rates: Array) -> pa.Table:
    count = len(moments)
    committed, ends, lag, ages, errors = numbers
    columns = [
        pa.array(moments).cast(TIME),
        pa.repeat(pa.scalar(key.group, pa.string()), count),
        pa.repeat(pa.scalar(key.topic, pa.string()), count),
        pa.repeat(pa.scalar(key.partition, pa.int32()), count),
        *(pa.array(column, pa.int64(), mask=column < 0) for column in (committed, ends, lag)),
        *(pa.array(column // 1000, pa.int64(), mask=column < 0) for column in (ages, errors)),
        pa.array(rates, pa.float64(), mask=np.isnan(rates)),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
