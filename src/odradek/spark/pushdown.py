"""Filters that Spark pushes down to a batch read, as ranges of offsets. Pure: no I/O, no clock.

Rules
-----
* ``topic`` and ``partition`` say which partitions are read, ``offset`` from where to where: what is pushed here holds
  exactly, so Spark need not look at the rows again.
* ``timestamp`` narrows what is read, and Spark looks at the rows again. Kafka answers one question about time: which
  is the first offset that is not older? So a lower bound is safe: nothing before that offset can match. An upper bound
  is not, by itself: behind the first younger record an older one may follow, since clients choose the timestamps. It is
  safe where it is known how far back timestamps can go (*disorder*): the first record that is younger by more than
  that ends the range. Known it is

  | where                                                 | disorder                                     |
  |-------------------------------------------------------|----------------------------------------------|
  | the option ``maxTimestampDisorder`` is given          | that                                         |
  | the topic has ``message.timestamp.type=LogAppendTime``| 0                                            |
  | its brokers refuse timestamps that are too far off    | ``message.timestamp.before.max.ms`` plus     |
  |                                                       | ``message.timestamp.after.max.ms``           |
  | elsewhere                                             | unknown: read to the end                     |
* Null matches no comparison and no column here is null, so ``IS NOT NULL`` always holds.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
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

from odradek.core.ids import TopicPartition
from odradek.spark.offset_ranges import Range

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
class Pushed:
    """What the pushed filters ask for. ``low`` ≤ offset < ``high``; ``since_ms`` ≤ timestamp < ``before_ms``."""

    partition_tests: list[Callable[[TopicPartition], bool]] = field(default_factory=list)
    low: int | None = None
    high: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    def takes(self, partition: TopicPartition) -> bool:
        return all(test(partition) for test in self.partition_tests)


def push(filters: Sequence[Filter]) -> tuple[Pushed, list[Filter]]:
    """What ``filters`` (all have to hold) ask for, and those that Spark still has to look at itself."""
    pushed = Pushed()
    return pushed, [item for item in filters if not _take(pushed, item)]


def _take(pushed: Pushed, item: Filter) -> bool:
    """Notes what a filter asks for; true where that is all of it."""
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


def _take_partition_test(pushed: Pushed, item: Filter, *, wanted: bool) -> bool:
    compare, column, value = _COMPARED.get(type(item)), _column(item), getattr(item, "value", None)
    if compare is None or column not in ("topic", "partition") or value is None:
        return False
    if isinstance(item, In) and None in value:
        return False
    pushed.partition_tests.append(lambda tp: compare(getattr(tp, column), value) is wanted)
    return True


def _bounds(item: Filter, value: Any) -> tuple[int | None, int | None]:
    """The whole numbers that a comparison allows, the second exclusive."""
    if isinstance(item, EqualTo | EqualNullSafe):
        return value, value + 1
    if isinstance(item, GreaterThan | GreaterThanOrEqual):
        return value + isinstance(item, GreaterThan), None
    if isinstance(item, LessThan | LessThanOrEqual):
        return None, value + isinstance(item, LessThanOrEqual)
    if isinstance(item, In):
        return min(value), max(value) + 1
    return None, None


def _take_offset(pushed: Pushed, item: Filter, value: Any) -> bool:
    low, high = _bounds(item, value)
    pushed.low, pushed.high = _later(pushed.low, low), _earlier(pushed.high, high)
    return not isinstance(item, In)  # between the least and the greatest lie others


def _take_time(pushed: Pushed, item: Filter, value: Any) -> None:
    """Timestamps have microseconds in Spark, milliseconds in Kafka."""
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
    pushed: Pushed,
    since: Mapping[TopicPartition, int],
    before: Mapping[TopicPartition, int],
) -> list[Range]:
    """The ranges less what cannot match. ``since``: first offset of ``since_ms``; ``before``: first offset that is
    surely too young; both -1 where no record is that young, and absent where nobody asked."""
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
