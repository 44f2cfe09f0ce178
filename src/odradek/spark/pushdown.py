"""The conversion of filters that Spark pushes down into ranges of offsets. Pure: no I/O, no clock.

Rules
-----
* Filters on ``topic`` and ``partition`` select the partitions to read; filters on ``offset`` bound the offsets. These
  are applied exactly, so Spark does not check the rows again. A filter with a list of offsets (``IN``) is the
  exception.
* Filters on ``timestamp`` reduce the offsets to read, and Spark checks the rows again. For a time, Kafka finds
  only the first offset whose record is not older. So a lower bound is safe: no record before that offset matches. An
  upper bound alone is not safe: an older record may follow the first newer one, because clients choose the timestamps.
  An upper bound is safe if the *disorder* is known: by how much a record can be older than an earlier record, at most.
  Then the range ends at the first record that is too new even if the disorder is subtracted from its timestamp. The
  disorder is

  | if                                                    | disorder                                     |
  |-------------------------------------------------------|----------------------------------------------|
  | the option ``maxTimestampDisorder`` is given          | the option's value                           |
  | the topic has ``message.timestamp.type=LogAppendTime``| 0                                            |
  | the topic limits the timestamps of records            | ``message.timestamp.before.max.ms`` plus     |
  |                                                       | ``message.timestamp.after.max.ms``           |
  | otherwise                                             | unknown: read to the end                     |
* No comparison matches null, and none of these columns is null, so ``IS NOT NULL`` is always true.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odradek.core.ids import TopicPartition
from odradek.spark.compatibility import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from odradek.spark.offsets.offset_ranges import Range

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp")
_COMPARED: Mapping[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, wanted: value in wanted,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


@dataclass(slots=True)
class PushedFilters:
    """The bounds of the pushed filters. ``low`` ≤ offset < ``high``; ``since_ms`` ≤ timestamp < ``before_ms``."""

    partition_tests: list[Callable[[TopicPartition], bool]] = field(default_factory=list)
    low: int | None = None
    high: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    def takes(self, partition: TopicPartition) -> bool:
        return all(test(partition) for test in self.partition_tests)


def push(filters: Sequence[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Returns the bounds of ``filters`` (all must be true), and the filters that Spark still has to apply."""
    pushed = PushedFilters()
    return pushed, [item for item in filters if not _take(pushed, item)]


def _take(pushed: PushedFilters, item: Filter) -> bool:
    """Adds a filter's bounds; returns whether they express the whole filter."""
    if isinstance(item, IsNotNull):
        return _column(item) in _NEVER_NULL
    if isinstance(item, Not):
        return _take_partition_test(pushed, item.child, wanted=False)
    value = getattr(item, "value", None)
    if value is None or (isinstance(item, In) and None in value):
        return False
    if _column(item) == "offset":
        return _take_offset(pushed, item, value)
    if _column(item) == "timestamp":
        _take_time(pushed, item, value)
        return False
    return _take_partition_test(pushed, item, wanted=True)


def _column(item: Filter) -> str | None:
    path: tuple[str, ...] = getattr(item, "attribute", ())
    return path[0] if len(path) == 1 else None


def _take_partition_test(pushed: PushedFilters, item: Filter, *, wanted: bool) -> bool:
    compare, column, value = _COMPARED.get(type(item)), _column(item), getattr(item, "value", None)
    if compare is None or column not in ("topic", "partition") or value is None:
        return False
    if isinstance(item, In) and None in value:
        return False
    pushed.partition_tests.append(lambda tp: compare(getattr(tp, column), value) is wanted)
    return True


def _bounds(item: Filter, value: Any) -> tuple[int | None, int | None]:
    """Returns the smallest integer that a comparison allows, and the first integer above all allowed ones."""
    if isinstance(item, EqualTo | EqualNullSafe):
        return value, value + 1
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(item, GreaterThan), None
    if isinstance(item, LessThan | LessThanOrEqual):
        return None, value + isinstance(item, LessThanOrEqual)
    if isinstance(item, In):
        return min(value), max(value) + 1
    return None, None


def _take_offset(pushed: PushedFilters, item: Filter, value: object) -> bool:
    low, high = _bounds(item, value)
    pushed.low, pushed.high = _later(pushed.low, low), _earlier(pushed.high, high)
    return not isinstance(item, In)  # the bounds include values that are not in the list


def _take_time(pushed: PushedFilters, item: Filter, value: Any) -> None:
    """Adds the bounds of a filter on timestamps, which are microseconds in Spark and milliseconds in Kafka."""
    times = [_micros(one) for one in value] if isinstance(item, In) else _micros(value)
    low, high = _bounds(item, times)
    pushed.since_ms = _later(pushed.since_ms, None if low is None else -(-low // 1000))
    pushed.before_ms = _earlier(pushed.before_ms, None if high is None else -(-high // 1000))


def _micros(value: dt.datetime) -> int:
    aware = value if value.tzinfo is not None else value.astimezone()
    return (aware - _EPOCH) // _MICROSECOND


def _later(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


def _earlier(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def narrow(
    whole: Iterable[Range],
    pushed: PushedFilters,
    since: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> list[Range]:
    """Returns the ranges without the offsets that cannot match.

    ``since``: the first offset of ``since_ms``. ``before``: the offset from which all records are too recent. Both are
    -1 if no record is that recent, and absent if they were not looked up.
    """
    left: list[Range] = []
    for item in whole:
        first, last = since.get(item.partition), before.get(item.partition)
        start = max(item.start, pushed.low or 0, item.end if first == -1 else first or 0)
        end = min(item.end, item.end if pushed.high is None else pushed.high)
        if last is not None and last >= 0:
            end = min(end, last)
        if pushed.takes(item.partition) and start < end:
            left.append(Range(item.partition, start, end))
    return left
