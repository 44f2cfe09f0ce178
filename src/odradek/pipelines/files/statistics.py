"""The statistics in a Parquet file's footer, in the form of Delta's log: minima, maxima, null counts.

Some columns get no bounds: types for which Delta has none (bytes, booleans, times of day), floats with NaN or
infinity as a bound, texts whose maximum has more than 32 characters, decimals that JSON's numbers cannot represent
exactly, and times that Python cannot represent. Lists, maps and columns with a dot in the name have no statistics.
"""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import math
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_LONGEST_TEXT = 32


def file_statistics(footer: pq.FileMetaData) -> dict[str, object]:
    """Returns ``minValues``, ``maxValues`` and ``nullCount``; columns of structs are nested by name."""
    found: dict[str, dict[str, object]] = {"minValues": {}, "maxValues": {}, "nullCount": {}}
    for at in range(footer.num_columns):
        column = footer.schema.column(at)
        path = column.path.split(".")
        if column.max_repetition_level or len(path) != column.max_definition_level:  # a list, or a dot in a name
            continue
        groups = [footer.row_group(number).column(at).statistics for number in range(footer.num_row_groups)]
        if any(one is None or not one.has_null_count for one in groups):
            continue
        _put(found["nullCount"], path, sum(one.null_count for one in groups))
        low, high = _bounds([one for one in groups if one.num_values])
        if low is not None and high is not None:
            _put(found["minValues"], path, low)
            _put(found["maxValues"], path, high)
    return {name: values for name, values in found.items() if values}


def _put(into: dict[str, Any], path: list[str], value: object) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _bounds(groups: list[pq.Statistics]) -> tuple[object, object]:
    if not groups or not all(one.has_min_max for one in groups):
        return None, None
    try:
        pairs = [(one.min, one.max) for one in groups]
    except (pa.ArrowException, OverflowError, ValueError):
        # A type whose statistics pyarrow cannot read, or a time that Python cannot represent: before the year 1, or
        # after the year 9999.
        return None, None
    if any(isinstance(value, bool | bytes | dt.time) for value in itertools.chain(*pairs)):
        return None, None
    if any(isinstance(value, float) and not math.isfinite(value) for value in itertools.chain(*pairs)):
        return None, None
    return _low(min(low for low, _ in pairs)), _high(max(high for _, high in pairs))


def _low(value: object) -> object:
    match value:
        case str():
            return value[:_LONGEST_TEXT]
        case dt.datetime():
            return _time(value)
        case dt.date():
            return value.isoformat()
        case decimal.Decimal():
            return float(value) if decimal.Decimal(repr(float(value))) == value else None
        case _:
            return value


def _high(value: object) -> object:
    match value:
        case str():
            return value if len(value) <= _LONGEST_TEXT else None
        case dt.datetime() if value.microsecond % 1000:  # Delta keeps milliseconds, so round the bound up
            last = dt.datetime.max.replace(microsecond=999_000, tzinfo=value.tzinfo)
            return _time(value + dt.timedelta(milliseconds=1)) if value < last else None
        case _:
            return _low(value)


def _time(value: dt.datetime) -> str:
    """Returns a timestamp with a year of four digits; ``strftime`` writes fewer for early years."""
    return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + ("Z" if value.tzinfo else "")
