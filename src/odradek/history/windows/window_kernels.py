"""The kernels of ``commit_windows``: they store commits in the windows of their keys.

A window is a ring of ``n`` places. A place has three numbers of 32 bits: the offset and the time relative to the key's
base, and the lag. A window with a number that does not fit (a rewind over two billion records, commits a month apart)
has a row in ``wide``, with 64 bits for each number. Both layouts hold the same values.
"""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.kernels.kernel_arrays import Bools, Bytes, Int32s, Int64s, Long
from odradek.batches.kernels.kernel_cache import INT32S, INT64, INT64S, kernel

LOWEST, HIGHEST = -(1 << 31), (1 << 31) - 1
NARROW, FREE = -1, -2
"""Values of ``wide_row`` for a window in ``places``, and for the end of the list of free rows."""

_BOOL = types.boolean
_PLACES = types.int32[:, :, ::1]
_WIDE = types.int64[:, :, ::1]
_BASES = types.int64[:, ::1]
_RINGS = types.uint8[:, ::1]
_BOOLS = types.boolean[::1]


@kernel(_BOOL(INT64, INT64))
def _fits(value: int, base: int) -> bool:
    difference = value - base
    return LOWEST <= difference <= HIGHEST


@kernel(INT64(_PLACES, _WIDE, _BASES, _RINGS, INT32S, INT64, INT64, INT64, INT64, INT64))
def _make_room(  # noqa: PLR0917  kernels take flat arrays
    places: Int32s,
    wide: Int64s,
    bases: Int64s,
    rings: Bytes,
    wide_row: Int32s,
    key: int,
    offset: int,
    time: int,
    lag: int,
    free: int,
) -> Long:
    """Makes the window of ``key`` hold these values. Returns the first free row of ``wide``, or FREE - 1 if none is
    left."""
    if wide_row[key] >= 0:
        return free
    n, count, begin = places.shape[1], rings[key, 0], rings[key, 1]
    if count == 0:
        bases[key, 0], bases[key, 1] = offset, time
    if _fits(offset, bases[key, 0]) and _fits(time, bases[key, 1]) and lag <= HIGHEST:
        return free
    fits = lag <= HIGHEST
    for i in range(count):
        at = (begin + i) % n
        fits &= _fits(bases[key, 0] + places[key, at, 0], offset) and _fits(bases[key, 1] + places[key, at, 1], time)
    if not fits and free == FREE:
        return np.int64(FREE - 1)
    next_free = free
    if not fits:
        next_free = wide[free, 0, 0]
        wide_row[key] = free
    for i in range(count):
        at = (begin + i) % n
        old_offset, old_time = bases[key, 0] + places[key, at, 0], bases[key, 1] + places[key, at, 1]
        if fits:
            places[key, at, 0], places[key, at, 1] = old_offset - offset, old_time - time
        else:
            wide[free, at, 0], wide[free, at, 1], wide[free, at, 2] = old_offset, old_time, places[key, at, 2]
    if fits:
        bases[key, 0], bases[key, 1] = offset, time
    return next_free


@kernel(INT64(_PLACES, _WIDE, _BASES, _RINGS, INT32S, INT64, INT64))
def _newest_time(  # noqa: PLR0917  kernels take flat arrays
    places: Int32s, wide: Int64s, bases: Int64s, rings: Bytes, wide_row: Int32s, key: int, at: int
) -> Long:
    time: Long = wide[wide_row[key], at, 1] if wide_row[key] >= 0 else bases[key, 1] + places[key, at, 1]
    return time


@kernel(types.UniTuple(INT64, 2)(
    _PLACES, _WIDE, _BASES, _RINGS, INT32S, INT32S, INT64, INT64, INT64S, INT64S, INT64S, INT64S, INT32S, _BOOLS, INT64
))  # fmt: skip
def store(  # noqa: PLR0917  kernels take flat arrays
    places: Int32s, wide: Int64s, bases: Int64s, rings: Bytes, wide_row: Int32s,
    topic_ids: Int32s, min_distance: int, free: Long,
    keys: Int64s, offsets: Int64s, times: Int64s, lags: Int64s, ids: Int32s, is_deleted: Bools, first: int,
) -> tuple[Long, Long]:  # fmt: skip
    """Stores the commits from index ``first`` on. Returns the index after the last stored one, and the first free row.

    The index is lower than the number of commits if ``wide`` has no free row. A deletion empties the window, and so
    does a commit to a topic with another id. ``rings[key]``: the number of commits, and the place of the oldest one.
    """
    n = places.shape[1]
    for i in range(first, len(keys)):
        key = keys[i]
        is_other = ids[i] >= 0 and topic_ids[key] >= 0 and ids[i] != topic_ids[key]
        if is_deleted[i] or is_other:
            rings[key, 0] = rings[key, 1] = 0
            topic_ids[key] = -1
            if wide_row[key] >= 0:
                wide[wide_row[key], 0, 0] = free
                free = np.int64(wide_row[key])
                wide_row[key] = NARROW
        if is_deleted[i]:
            continue
        if ids[i] >= 0:
            topic_ids[key] = ids[i]
        time = times[i]
        count, begin = rings[key, 0], rings[key, 1]
        at = (begin + count - 1) % n if count else 0
        is_same_place = False
        if count:
            newest = _newest_time(places, wide, bases, rings, wide_row, key, at)
            if time - newest < min_distance:
                time, is_same_place = newest, True
        room = _make_room(places, wide, bases, rings, wide_row, key, offsets[i], time, lags[i], free)
        if room < FREE:
            return np.int64(i), free
        free = room
        if not is_same_place:
            at = (begin + count) % n
            if count < n:
                rings[key, 0] = count + 1
            else:
                rings[key, 1] = (begin + 1) % n
        if wide_row[key] >= 0:
            row = wide_row[key]
            wide[row, at, 0], wide[row, at, 1], wide[row, at, 2] = offsets[i], time, lags[i]
        else:
            places[key, at, 0] = offsets[i] - bases[key, 0]
            places[key, at, 1] = time - bases[key, 1]
            places[key, at, 2] = lags[i]
    return np.int64(len(keys)), free


@kernel(types.void(_PLACES, _WIDE, _BASES, _RINGS, INT32S, INT64S, types.int64[:, ::1], types.int64[:, ::1],
                   types.int64[:, ::1]))  # fmt: skip
def gather(  # noqa: PLR0917  kernels take flat arrays
    places: Int32s,
    wide: Int64s,
    bases: Int64s,
    rings: Bytes,
    wide_row: Int32s,
    keys: Int64s,
    offsets: Int64s,
    times: Int64s,
    lags: Int64s,
) -> None:
    """Copies the windows of ``keys`` to rows, oldest commit first.

    Behind the newest commit, its offset and time are repeated and the lags are -1, so that these columns prove nothing.
    """
    n = places.shape[1]
    for i in range(len(keys)):
        key = keys[i]
        row, count, begin = wide_row[key], rings[key, 0], rings[key, 1]
        for j in range(n):
            if j >= count:
                offsets[i, j] = offsets[i, j - 1] if j else -1
                times[i, j] = times[i, j - 1] if j else -1
                lags[i, j] = -1
                continue
            at = (begin + j) % n
            if row >= 0:
                offsets[i, j], times[i, j], lags[i, j] = wide[row, at, 0], wide[row, at, 1], wide[row, at, 2]
            else:
                offsets[i, j] = bases[key, 0] + places[key, at, 0]
                times[i, j] = bases[key, 1] + places[key, at, 1]
                lags[i, j] = places[key, at, 2]
