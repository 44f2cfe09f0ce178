"""Filters that Spark pushes into batch reads: fewer records are read, and the rows do not change."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, Filter, GreaterThanOrEqual, LessThan
from spark_runs import rows_of, span
from support.brokers import unique
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin
from odradek.spark.options import parse_options
from odradek.spark.registration import register
from odradek.spark.session_activation import active
from odradek.spark.source import OdradekReader

T0 = 1_700_000_000_000
CONF = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def filled(bootstrap: str) -> str:
    """Four partitions of 100 records, a second apart. Every tenth timestamp is five seconds too old."""
    topic = unique("spark-pushdown")
    create_topic(bootstrap, topic, 4)
    times = [T0 + 1000 * n - (5000 if n % 10 == 9 else 0) for n in range(100)]
    for partition in range(4):
        publish(bootstrap, topic, numbers(100), partition=partition, timestamps_ms=times)
    return topic


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(CONF, "true")
    yield
    spark.conf.unset(CONF)


def time(second: int) -> str:
    return f"timestamp_millis({T0 + second * 1000})"


LATE = [n for n in range(100) if 50 <= (n - 5 if n % 10 == 9 else n) < 60]


CONDITIONS = (
    ("partition = 2 AND offset >= 90", span(2, 90, 100), 1),
    ("partition IN (1, 3) AND offset < 5", span(1, 0, 5) + span(3, 0, 5), 1),
    (f"timestamp >= {time(50)} AND timestamp < {time(60)} AND partition > 2", [(3, n) for n in LATE], 1),
    ("offset IN (3, 97) AND partition = 0 AND CAST(value AS string) = '97'", [(0, 97)], 1),
    ("partition = 1 OR offset = 0", span(0, 0, 1) + span(1, 0, 100) + span(2, 0, 1) + span(3, 0, 1), 4),
    ("topic = 'nothing'", [], 1),  # if no partition is left, Spark makes one empty task
)


def loaded(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    reader = spark.read.format("odradek").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


@pytest.mark.usefixtures("pushing")
@pytest.mark.parametrize("pushes", ["true", pytest.param("false", marks=pytest.mark.slow)])
def test_pushed_filters_do_not_change_the_rows(spark: Any, bootstrap: str, filled: str, pushes: str) -> None:
    for condition, expected, tasks in CONDITIONS:
        wanted = loaded(spark, bootstrap, filled, pushFilters=pushes).where(condition)
        assert rows_of(wanted) == expected, condition
        assert wanted.rdd.getNumPartitions() == (tasks if pushes == "true" else 4), condition


def test_the_error_of_push_filters_names_the_required_setting(spark: Any, bootstrap: str, filled: str) -> None:
    assert spark.conf.get(CONF) == "false", "Spark's default"
    with pytest.raises(Exception, match=rf"OdradekReader implements pushFilters.*configuration '{CONF}' is false"):
        loaded(spark, bootstrap, filled, pushFilters="true").where("partition = 2").count()
    assert loaded(spark, bootstrap, filled).where("partition = 2").count() == 100


def settings_of(spark: Any) -> dict[str, str]:
    return {row.key: row.value for row in spark.sql("SET").collect()}


def test_register_changes_no_setting_that_affects_other_sources(spark: Any) -> None:
    """With Spark's setting for filters, a frame keeps a pushed filter. The frame's next use would read too few rows."""
    fresh = spark.newSession()
    before = settings_of(fresh)
    register(fresh)
    assert settings_of(fresh) == before

    class FilterPusher:
        """Spark calls this object only if Spark's setting allows filters. Otherwise all rows are read. Without the
        option ``pushFilters``, our own reader does the same."""

        def __init__(self, reader: Any) -> None:
            self.reader = reader
            self.__func__ = DataSourceReader.pushFilters

        def __call__(self, filters: list[Filter]) -> list[Filter]:
            self.reader.wanted = [item.value for item in filters if isinstance(item, EqualTo)]
            return [item for item in filters if not isinstance(item, EqualTo)]

    class TenReader(DataSourceReader):
        wanted: tuple[int, ...] = ()

        @property
        def pushFilters(self) -> Any:
            return FilterPusher(self)

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            return ((n,) for n in range(10) if not self.wanted or n in self.wanted)

    class Ten(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ten"

        def schema(self) -> str:
            return "n int"

        def reader(self, schema: Any) -> DataSourceReader:
            return TenReader()

    with active(fresh):
        fresh.dataSource.register(Ten)
    frame = fresh.read.format("ten").load()
    assert frame.where("n = 3").count() == 1
    assert frame.count() == 10


@pytest.mark.usefixtures("pushing")
def test_a_frame_used_twice_reads_all_records(spark: Any, bootstrap: str, filled: str) -> None:
    """Spark uses the tasks of the first, filtered query for the second query. So no filter is pushed by default."""
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
    """The end becomes an offset only if the disorder of timestamps is known, from the option or the topic's limits."""
    topic = unique("spark-pushdown")
    create_topic(bootstrap, topic)
    publish(bootstrap, topic, numbers(100), timestamps_ms=[T0 + 1000 * n for n in range(100)])
    with Admin(bootstrap) as admin:
        if config:  # set afterwards, because these records are years old
            admin.alter_topic_configs(topic, {name.replace("_", "."): value for name, value in config.items()})
    chosen = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "pushFilters": "true"} | options
    reader = OdradekReader(parse_options(chosen, streaming=False))
    asked = between(50, 60)
    assert list(reader.pushFilters(asked)) == asked, "Spark filters timestamps itself, too"
    (task,) = reader.partitions()
    assert [piece[1:3] for piece in task.pieces] == [expected]
