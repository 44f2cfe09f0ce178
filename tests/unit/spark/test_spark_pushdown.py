"""Filters that Spark pushes down become ranges of offsets: compared with rows that are filtered one at a time."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.ids import TopicPartition
from odradek.spark.compatibility import FILTERS, version
from odradek.spark.offsets.lookups import disorder_ms
from odradek.spark.offsets.offset_ranges import Range
from odradek.spark.pushdown import PushedFilters, narrow, push

if version() < FILTERS:
    pytest.skip("this PySpark pushes no filters down", allow_module_level=True)
from pyspark.sql.datasource import (  # PySpark 4.0 has none of them
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Row = tuple[str, int, int, dt.datetime]
COLUMNS = ("topic", "partition", "offset", "timestamp")


def at(micros: int) -> dt.datetime:
    return EPOCH + dt.timedelta(microseconds=micros)


def holds(item: Filter, row: Row) -> bool:
    """The value of the filter for a row, as in Spark."""
    if isinstance(item, Not):
        return not holds(item.child, row)
    value = row[COLUMNS.index(item.attribute[0])]
    if isinstance(item, IsNotNull):
        return True
    if isinstance(item, IsNull):
        return False
    compare: Callable[[Any, Any], Any] = {
        EqualTo: operator.eq, EqualNullSafe: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge,
        LessThan: operator.lt, LessThanOrEqual: operator.le, In: lambda one, many: one in many,
        StringStartsWith: str.startswith, StringEndsWith: str.endswith, StringContains: operator.contains,
    }[type(item)]  # fmt: skip
    return bool(compare(value, item.value))


COMPARISONS = st.sampled_from([EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual])


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    column = draw(st.sampled_from(COLUMNS))
    values: st.SearchStrategy[Any] = {
        "topic": st.sampled_from(["a", "ab", "b", ""]),
        "partition": st.integers(-1, 3),
        "offset": st.integers(-2, 12),
        "timestamp": st.integers(-3000, 16_000).map(at),
    }[column]
    kind = draw(st.sampled_from(["compare", "in", "null", "text"]))
    if kind == "text" and column == "topic":
        made: Filter = draw(st.sampled_from([StringStartsWith, StringEndsWith, StringContains]))(
            (column,), draw(values)
        )
    elif kind == "in":
        made = In((column,), tuple(draw(st.lists(values, min_size=1, max_size=3))))
    elif kind == "null":
        made = draw(st.sampled_from([IsNotNull, IsNull]))((column,))
    else:
        made = draw(COMPARISONS)((column,), draw(values))
    return Not(made) if draw(st.integers(0, 3)) == 0 else made


@given(st.lists(filters(), max_size=4), st.data())
def test_pushed_filters_select_the_same_rows_as_spark(asked: list[Filter], data: st.DataObject) -> None:
    disorder = 2
    rows: list[Row] = []
    for partition in (TopicPartition("a", 0), TopicPartition("ab", 1), TopicPartition("b", 2)):
        newest = 0
        for offset in range(10):
            newest = max(newest, data.draw(st.integers(newest, newest + 2)))
            rows.append((*partition, offset, at(1000 * data.draw(st.integers(newest - disorder, newest)))))
    pushed, left = push(asked)

    def first(time_ms: int) -> dict[TopicPartition, int]:
        found: dict[TopicPartition, int] = {}
        for topic, number, offset, time in rows:
            if time >= at(1000 * time_ms):
                found.setdefault(TopicPartition(topic, number), offset)
        return {TopicPartition(row[0], row[1]): -1 for row in rows} | found

    whole = [
        Range(TopicPartition("a", 0), 0, 10),
        Range(TopicPartition("ab", 1), 2, 9),
        Range(TopicPartition("b", 2), 0, 10),
    ]
    since = {} if pushed.since_ms is None else first(pushed.since_ms)
    before = {} if pushed.before_ms is None else first(pushed.before_ms + disorder)
    ranges = narrow(whole, pushed, since, before)

    def within(row: Row, of: list[Range]) -> bool:
        return any(item.partition == row[:2] and item.start <= row[2] < item.end for item in of)

    read = [row for row in rows if within(row, ranges) and all(holds(item, row) for item in left)]
    assert read == [row for row in rows if within(row, whole) and all(holds(item, row) for item in asked)]


@pytest.mark.parametrize(
    ("item", "exact"),
    [
        (EqualTo(("partition",), 1), True),
        (In(("topic",), ("a", "b")), True),
        (Not(EqualTo(("partition",), 1)), True),
        (GreaterThan(("offset",), 7), True),
        (IsNotNull(("timestamp",)), True),
        (In(("offset",), (1, 9)), False),
        (Not(EqualTo(("offset",), 7)), False),
        (LessThan(("timestamp",), at(0)), False),
        (EqualTo(("topic",), None), False),
        (IsNotNull(("value",)), False),
        (EqualTo(("key",), b"x"), False),
        (EqualTo(("headers", "key"), "x"), False),
    ],
)
def test_exact_filters_are_not_returned_to_spark(item: Filter, exact: bool) -> None:
    assert push([item])[1] == ([] if exact else [item])


def test_microseconds_are_rounded_to_the_milliseconds_that_match() -> None:
    pushed, _ = push([GreaterThan(("timestamp",), at(1000)), LessThanOrEqual(("timestamp",), at(2000))])
    assert (pushed.since_ms, pushed.before_ms) == (2, 3)
    pushed, _ = push([GreaterThanOrEqual(("timestamp",), at(1001)), LessThan(("timestamp",), at(2001))])
    assert (pushed.since_ms, pushed.before_ms) == (2, 3)
    assert push([]) == (PushedFilters(), [])


@pytest.mark.parametrize(
    ("settings", "disorder"),
    [
        ({}, None),
        ({"message.timestamp.type": "LogAppendTime"}, 0),
        ({"message.timestamp.before.max.ms": "9223372036854775807", "message.timestamp.after.max.ms": "3600000"}, None),
        ({"message.timestamp.before.max.ms": "60000", "message.timestamp.after.max.ms": "3600000"}, 3_660_000),
        ({"message.timestamp.difference.max.ms": "60000"}, 120_000),
    ],
)
def test_the_disorder_of_timestamps_follows_the_topic_settings(
    settings: dict[str, str | None], disorder: int | None
) -> None:
    assert disorder_ms(settings) == disorder
