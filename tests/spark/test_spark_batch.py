"""Batch reads: their rows, their starts and ends, their tasks and their errors."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from confluent_kafka import Producer
from spark_runs import rows_of, span
from support.publish import commit, create_topic, numbers, publish

from odradek.spark.errors import reason

T0 = 1_700_000_000_000


def read(spark: Any, bootstrap: str, topic: str, **options: str) -> Any:
    chosen = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic} | options
    return spark.read.format("odradek").options(**chosen).load()


@pytest.fixture(scope="module")
def filled(bootstrap: str) -> str:
    """A topic of two partitions. Partition 0 has 100 records, a second apart. Partition 1 has 10 records."""
    topic = "spark-batch-" + dt.datetime.now(dt.UTC).strftime("%H%M%S%f")
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(100), timestamps_ms=range(T0, T0 + 100_000, 1000))
    publish(bootstrap, topic, numbers(10), partition=1, timestamps_ms=range(T0, T0 + 10_000, 1000))
    return topic


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_rows_equal_the_produced_records(spark: Any, bootstrap: str, topic: str, codec: str) -> None:
    create_topic(bootstrap, topic, 3)
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20})
    expected = set()
    headers: Any
    for n in range(500):
        key = None if n % 5 == 0 else b"" if n % 5 == 1 else b"k\x00%d" % n
        value = None if n % 7 == 0 else b"" if n % 7 == 1 else bytes([n % 256]) * (n % 50)
        headers = [("a", b"1"), ("a", None), ("ü", b"")] if n % 3 == 0 else None
        producer.produce(topic, value, key, n % 3, timestamp=T0 + n, headers=headers)
        pairs = None if headers is None else tuple(headers)
        expected.add((n % 3, n // 3, key, value, T0 + n, pairs))
    assert producer.flush(30) == 0

    frame = read(spark, bootstrap, topic, includeHeaders="true")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    found = frame.selectExpr("*", "unix_millis(timestamp) AS ms").collect()
    assert len(found) == len(expected)
    assert {row.topic for row in found} == {topic}
    assert {row.timestampType for row in found} == {0}
    seen = {
        (
            row.partition,
            row.offset,
            row.key,
            row.value,
            row.ms,
            None if row.headers is None else tuple((h.key, h.value) for h in row.headers),
        )
        for row in found
    }
    assert seen == expected
    assert read(spark, bootstrap, topic).columns == frame.columns[:-1], "headers only with includeHeaders"

    # Named columns alone have the same values, whatever their order.
    for names in ("offset,partition", "headers", "value,key", "timestampType,timestamp,topic"):
        chosen = names.split(",")
        part = read(spark, bootstrap, topic, columns=names)
        assert part.columns == chosen
        assert sorted(map(str, part.collect())) == sorted(map(str, frame.select(*chosen).collect()))
    assert read(spark, bootstrap, topic, columns="value").where("value IS NULL").count() == len(range(0, 500, 7))


STARTS_AND_ENDS = [
    pytest.param({}, (0, 100), (0, 10), id="all"),
    pytest.param(
        {"startingOffsets": '{"T":{"0":90,"1":-2}}', "endingOffsets": '{"T":{"0":95,"1":-1}}'},
        (90, 95),
        (0, 10),
        id="json",
    ),
    pytest.param(
        {"startingTimestamp": str(T0 + 4500), "startingOffsets": '{"T":{"0":90,"1":-2}}'}, (5, 100), (5, 10), id="time"
    ),
    pytest.param(
        {
            "startingOffsetsByTimestamp": json.dumps({"T": {"0": T0 + 50_000, "1": T0}}),
            "endingOffsetsByTimestamp": json.dumps({"T": {"0": T0 + 60_000, "1": T0 + 10**9}}),
        },
        (50, 60),
        (0, 10),
        id="times",
    ),
    pytest.param(
        {"startingTimestamp": str(T0 + 20_000), "startingOffsetsByTimestampStrategy": "latest"},
        (20, 100),
        (10, 10),
        id="strategy",
    ),
]


@pytest.mark.parametrize(("options", "first", "second"), STARTS_AND_ENDS)
def test_a_batch_read_starts_and_ends_as_the_options_say(
    spark: Any, bootstrap: str, filled: str, options: dict[str, str], first: tuple[int, int], second: tuple[int, int]
) -> None:
    chosen = {name: value.replace('"T"', f'"{filled}"') for name, value in options.items()}
    assert rows_of(read(spark, bootstrap, filled, **chosen)) == span(0, *first) + span(1, *second)


def test_a_batch_read_starts_at_the_committed_offsets_of_a_group(
    spark: Any, bootstrap: str, filled: str, group: str
) -> None:
    commit(bootstrap, group, {(filled, 0): 42})
    options = {"startingOffsets": "committed", "kafka.group.id": group}
    assert rows_of(read(spark, bootstrap, filled, **options)) == span(0, 42, 100) + span(1, 0, 10)
    latest = rows_of(read(spark, bootstrap, filled, **options, **{"kafka.auto.offset.reset": "latest"}))
    assert latest == span(0, 42, 100)
    with pytest.raises(Exception, match="no committed offset") as caught:
        rows_of(read(spark, bootstrap, filled, **options, **{"kafka.auto.offset.reset": "none"}))
    message = reason(caught.value) or ""
    assert message.startswith(f"{filled}-1 has no committed offset: none yet, or it expired")
    assert "its log has offsets 0 to 10" in message


def test_only_the_assigned_partitions_are_read(spark: Any, bootstrap: str, filled: str) -> None:
    frame = spark.read.format("odradek").option("kafka.bootstrap.servers", bootstrap)
    assert rows_of(frame.option("assign", json.dumps({filled: [1]})).load()) == span(1, 0, 10)


def test_ranges_are_split_into_tasks(spark: Any, bootstrap: str, filled: str) -> None:
    frame = read(spark, bootstrap, filled, minPartitions="6")
    assert frame.rdd.getNumPartitions() >= 6
    assert rows_of(frame) == span(0, 0, 100) + span(1, 0, 10)
    assert read(spark, bootstrap, filled, maxRecordsPerPartition="30").rdd.getNumPartitions() == 5


def test_an_empty_topic_is_no_error(spark: Any, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    assert rows_of(read(spark, bootstrap, topic)) == []


def test_errors_name_missing_offsets(spark: Any, bootstrap: str, filled: str) -> None:
    wanted = {"endingOffsets": json.dumps({filled: {"0": 200, "1": -1}})}
    with pytest.raises(Exception, match="data may have been lost") as caught:
        rows_of(read(spark, bootstrap, filled, **wanted))
    assert (reason(caught.value) or "").startswith(
        f"data may have been lost: {filled}-0: offset 199 does not exist yet (its log ends at 100)"
    )
    frame = read(spark, bootstrap, filled, **wanted, failOnDataLoss="false")
    assert rows_of(frame) == span(0, 0, 100) + span(1, 0, 10)


@pytest.mark.claim(101, part=True)
def test_mistakes_are_reported_in_one_line_at_load(spark: Any, bootstrap: str, filled: str) -> None:
    # Spark's own source refuses this setting, too.
    with pytest.raises(Exception, match=r"enable\.auto\.commit is not supported") as caught:
        read(spark, bootstrap, filled, **{"kafka.enable.auto.commit": "true"})
    assert "\n" not in (reason(caught.value) or "\n")
    with pytest.raises(Exception, match="did you mean startingOffsets") as caught:
        read(spark, bootstrap, filled, startingOffset="earliest")
    assert (reason(caught.value) or "").startswith("unknown option startingoffset; did you mean startingOffsets?")
    with pytest.raises(Exception, match="unknown") as caught:
        rows_of(read(spark, bootstrap, filled + "-typo"))
    assert filled + "-typo" in (reason(caught.value) or "")


def test_a_user_defined_schema_is_refused(spark: Any, bootstrap: str, filled: str) -> None:
    reader = spark.read.format("odradek").option("kafka.bootstrap.servers", bootstrap).option("subscribe", filled)
    with pytest.raises(Exception, match="the schema of this source is fixed"):
        reader.schema("value string").load().collect()


def test_python_workers_import_the_installed_pyspark(spark: Any) -> None:
    """The workers do not import ``pyspark.zip``: each process would compile the modules of the archive again."""
    import pyspark

    (found,) = spark.sparkContext.range(1).map(lambda _: __import__("pyspark").__file__).collect()
    assert found == pyspark.__file__
