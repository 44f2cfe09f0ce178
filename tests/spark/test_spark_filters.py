"""Filters pushed down to batch reads: fewer records are read, and the rows are the same as unpushed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from brokers import unique
from publish import create_topic, numbers, publish
from pyspark.sql.datasource import Filter, GreaterThanOrEqual, LessThan
from spark_runs import rows_of, span

from odradek.client.admin import Admin
from odradek.spark.options import parse_options
from odradek.spark.source import OdradekReader

T0 = 1_700_000_000_000
CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def filled(bootstrap: str) -> str:
    """Four partitions of 100 records, a second apart but for every tenth, which is five seconds late."""
    topic = unique("spark-pushdown")
    create_topic(bootstrap, topic, 4)
    times = [T0 + 1000 * n - (5000 if n % 10 == 9 else 0) for n in range(100)]
    for partition in range(4):
        publish(bootstrap, topic, numbers(100), partition=partition, timestamps_ms=times)
    return topic


@pytest.fixture(params=["true", "false"])
def pushing(spark: Any, request: pytest.FixtureRequest) -> Iterator[bool]:
    assert spark.conf.get(CONF) == "true", "register sets it"
    spark.conf.set(CONF, request.param)
    yield request.param == "true"
    spark.conf.set(CONF, "true")


def time(second: int) -> str:
    return f"timestamp_millis({T0 + second * 1000})"


LATE = [n for n in range(100) if 50 <= (n - 5 if n % 10 == 9 else n) < 60]


CONDITIONS = (
    ("partition = 2 AND offset >= 90", span(2, 90, 100), 1),
    ("partition IN (1, 3) AND offset < 5", span(1, 0, 5) + span(3, 0, 5), 1),
    (f"timestamp >= {time(50)} AND timestamp < {time(60)} AND partition > 2", [(3, n) for n in LATE], 1),
    ("offset IN (3, 97) AND partition = 0 AND CAST(value AS string) = '97'", [(0, 97)], 1),
    ("partition = 1 OR offset = 0", span(0, 0, 1) + span(1, 0, 100) + span(2, 0, 1) + span(3, 0, 1), 4),
    ("topic = 'nothing'", [], 1),  # Spark makes one empty task of none
)


def loaded(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    reader = spark.read.format("odradek").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def test_the_rows_are_the_same_with_and_without(spark: Any, bootstrap: str, filled: str, pushing: bool) -> None:
    for condition, expected, tasks in CONDITIONS:
        wanted = loaded(spark, bootstrap, filled, pushFilters="true").where(condition)
        assert rows_of(wanted) == expected, condition
        assert wanted.rdd.getNumPartitions() == (tasks if pushing else 4), condition


def test_a_frame_used_twice_reads_all_it_should(spark: Any, bootstrap: str, filled: str) -> None:
    """Spark gives the tasks of the first, filtered, query to the second: so nothing is pushed unasked."""
    assert spark.conf.get(CONF) == "true"
    frame = loaded(spark, bootstrap, filled)
    first, second = frame.where("partition = 2"), frame.where("partition = 1")
    assert rows_of(first) == span(2, 0, 100)
    assert frame.count() == 400
    assert rows_of(first.union(second)) == span(1, 0, 100) + span(2, 0, 100)


def between(first: int, last: int) -> list[Filter]:
    def at(second: int) -> dt.datetime:
        return dt.datetime.fromtimestamp(T0 / 1000 + second, dt.UTC)

    return [GreaterThanOrEqual(("timestamp",), at(first)), LessThan(("timestamp",), at(last))]


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, {}, (50, 100)),
        ({}, {"maxTimestampDisorder": "5s"}, (50, 65)),
        ({"message_timestamp_before_max_ms": "4000", "message_timestamp_after_max_ms": "2000"}, {}, (50, 66)),
    ],
)
def test_a_range_of_time_becomes_a_range_of_offsets(
    bootstrap: str, config: dict[str, str], options: dict[str, str], expected: tuple[int, int]
) -> None:
    """Its end only where it is known how far back timestamps can go."""
    topic = unique("spark-pushdown")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(100), timestamps_ms=[T0 + 1000 * n for n in range(100)])
    with Admin(bootstrap) as admin:
        if config:  # afterwards, since these records are years old
            admin.alter_topic_configs(topic, {name.replace("_", "."): value for name, value in config.items()})
    chosen = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "pushFilters": "true"} | options
    reader = OdradekReader(parse_options(chosen, streaming=False))
    asked = between(50, 60)
    assert list(reader.pushFilters(asked)) == asked, "Spark looks at timestamps itself, too"
    (task,) = reader.partitions()
    assert [piece[1:3] for piece in task.pieces] == [expected]
