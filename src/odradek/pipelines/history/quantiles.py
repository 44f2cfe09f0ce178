"""Exact quantiles: the values at given ranks of a column, without a sort.

Each pass divides intervals of values into parts and counts the values in each part. The next pass divides only the
parts with a requested rank. Two or three passes find sixty ranks among a hundred million timestamps. In each pass, a
worker's task returns at most ``PARTS`` counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.spark.arrow_map import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Array = npt.NDArray[np.int64]
PARTS = 1 << 16
_COUNTS = "interval long, part long, count long, low long, high long"


def at_ranks(values: DataFrame, ranks: Array, parts: int = PARTS) -> Array:
    """Returns the values at these ranks (from 0, ascending) of a frame with one column of longs without nulls.

    ``parts``: the largest number of parts in one pass. The frame must have more values than the largest
    rank.
    """
    if not len(ranks):
        return np.empty(0, np.int64)
    name = values.columns[0]
    ends = values.selectExpr(f"min({name}) low", f"max({name}) high").first()
    lows, highs, below = (np.array([one], np.int64) for one in (ends.low, ends.high, 0))
    while (lows < highs).any():
        counter = partial(_count, lows, highs, max(2, parts // len(lows)))
        counted = map_in_arrow(values, counter, _COUNTS).groupBy("interval", "part")
        rows = counted.agg({"count": "sum", "low": "min", "high": "max"}).toArrow()
        rows = rows.sort_by([("interval", "ascending"), ("part", "ascending")])
        interval = rows["interval"].to_numpy()
        count, low, high = (rows[column].to_numpy() for column in ("sum(count)", "min(low)", "max(high)"))
        before = np.cumsum(count) - count
        before += (below - before[np.searchsorted(interval, np.arange(len(below)))])[interval]
        kept = np.searchsorted(ranks, before) < np.searchsorted(ranks, before + count)
        lows, highs, below = low[kept], high[kept], before[kept]
    chosen: Array = lows[np.searchsorted(below, ranks, side="right") - 1]
    return chosen


def _count(lows: Array, highs: Array, parts: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the count, the minimum and the maximum of each part of each interval. Runs in a worker."""
    widths = (highs - lows) // parts + 1
    count = np.zeros(len(lows) * parts, np.int64)
    least = np.full(len(count), np.iinfo(np.int64).max)
    most = np.full(len(count), np.iinfo(np.int64).min)
    for batch in batches:
        values = batch.column(0).to_numpy()
        interval = np.maximum(np.searchsorted(lows, values, side="right") - 1, 0)
        inside = (lows[interval] <= values) & (values <= highs[interval])
        values, interval = values[inside], interval[inside]
        code = interval * parts + (values - lows[interval]) // widths[interval]
        count += np.bincount(code, minlength=len(count))
        np.minimum.at(least, code, values)
        np.maximum.at(most, code, values)
    seen = np.flatnonzero(count)
    columns: list[object] = [seen // parts, seen % parts, count[seen], least[seen], most[seen]]
    names = ("interval", "part", "count", "low", "high")
    yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], names=names)
