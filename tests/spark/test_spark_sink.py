"""The sink writes the rows of DataFrames to topics, in batch and streaming queries. Errors name the mistake."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TopicPartition
from spark_runs import StreamingRun
from support.brokers import unique
from support.publish import consumer, create_topic, log_end, numbers, publish
from support.publish import read as consume

from odradek.client.producer.partitioner import partition_for_key
from odradek.spark import register
from odradek.spark.errors import reason

HEADERS = "array<struct<key:string,value:binary>>"


def save(frame: Any, bootstrap: str, **options: str) -> None:
    writer = frame.write.format("odradek").mode("append").option("kafka.bootstrap.servers", bootstrap)
    writer.options(**options).save()


def held(bootstrap: str, topic: str, partitions: int, count: int) -> list[Any]:
    """Every record of a topic, read by librdkafka."""
    source = consumer(bootstrap, unique("sink-check"), auto_offset_reset="earliest")
    source.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found = consume(source, count)
    source.close()
    return found


def test_keys_values_headers_and_partitions_arrive_unchanged(spark: Any, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 3)
    headers = [("a", b"1"), ("a", None), ("ü", b"")]
    rows = [
        (None if n % 5 == 0 else f"k{n}", None if n % 5 == 1 else b"\0" * (n % 30) + b"%d" % n,
         headers if n % 3 == 0 else None, n % 3 if n % 2 == 0 else None, n)
        for n in range(1000)
    ]  # fmt: skip
    frame = spark.createDataFrame(rows, f"key string, value binary, headers {HEADERS}, partition int, other int")
    save(frame, bootstrap, topic=topic, **{"kafka.compression.type": "lz4"})

    found = held(bootstrap, topic, 3, 1000)
    assert {message.timestamp()[0] for message in found} == {TIMESTAMP_CREATE_TIME}
    by_row = {(message.key(), message.value()): message for message in found}
    assert len(by_row) == 1000
    for text, value, heads, partition, _ in rows:
        key = None if text is None else text.encode()
        message = by_row[key, value]
        assert message.headers() == heads
        if partition is None and key is not None:
            partition = partition_for_key(key, 3)
        assert partition in (message.partition(), None)


def test_each_row_goes_to_the_topic_in_its_column_unless_the_option_is_set(spark: Any, bootstrap: str) -> None:
    one, two, three = (unique("spark-sink") for _ in range(3))
    for name in (one, two, three):
        create_topic(bootstrap, name)
    frame = spark.createDataFrame([(one, "1"), (two, "2"), (one, "3")], "topic string, value string")
    save(frame.coalesce(1), bootstrap)
    assert [message.value() for message in held(bootstrap, one, 1, 2)] == [b"1", b"3"]
    assert [message.value() for message in held(bootstrap, two, 1, 1)] == [b"2"]
    save(frame, bootstrap, topic=three)
    assert sorted(message.value() for message in held(bootstrap, three, 1, 3)) == [b"1", b"2", b"3"]
    assert [log_end(bootstrap, name) for name in (one, two)] == [2, 1]


def test_timestamps_are_written_only_with_include_timestamp(spark: Any, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic)
    frame = spark.sql("SELECT 'x' AS value, timestamp_millis(1700000000123) AS timestamp")
    save(frame, bootstrap, topic=topic, includeTimestamp="true")
    save(frame, bootstrap, topic=topic)
    first, second = held(bootstrap, topic, 1, 2)
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 1_700_000_000_123)
    assert second.timestamp()[1] > 1_700_000_000_123, "Spark's own sink ignores the column, and ours does, too"


def test_the_broker_creates_a_missing_topic_as_it_does_for_sparks_own_sink(spark: Any, bootstrap: str) -> None:
    name = unique("spark-sink")
    save(spark.sql("SELECT 'x' AS value"), bootstrap, topic=name)
    assert [message.value() for message in held(bootstrap, name, 4, 1)] == [b"x"], (
        "the brokers of the tests create 4 partitions"
    )


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("SELECT 'x' AS key", {"topic": "T"}, "required attribute 'value' not found among key"),
        ("SELECT 'x' AS value", {}, "topic option required when no 'topic' attribute is present"),
        ("SELECT 1 AS value", {"topic": "T"}, "value attribute unsupported type int"),
        ("SELECT 'x' AS value, CAST(null AS string) AS topic", {}, "null topic present in the data"),
        ("SELECT 'x' AS value, 9 AS partition", {"topic": "T"}, "there is no partition 9: the topic has 2 partitions"),
        ("SELECT 'x' AS value, -1 AS partition", {"topic": "T"}, "partition -1: a partition number is at least 0"),
        ("SELECT 'x' AS value", {"topic": "T", "tpoic": "x"}, "unknown option tpoic; did you mean topic?"),
        ("SELECT repeat('x', 2000000) AS value", {"topic": "T"}, "MESSAGE_TOO_LARGE"),
        (
            "SELECT 'x' AS value",
            {"topic": "nowhere-to-be-found", "kafka.allow.auto.create.topics": "false"},
            "nowhere-to-be-found",
        ),
    ],
)
def test_errors_name_the_mistake(
    spark: Any, bootstrap: str, filled: str, sql: str, options: dict[str, str], message: str
) -> None:
    chosen = {name: filled if value == "T" else value for name, value in options.items()}
    with pytest.raises(Exception, match="odradek") as caught:
        save(spark.sql(sql), bootstrap, **chosen)
    assert message in (reason(caught.value) or str(caught.value))


@pytest.fixture(scope="module")
def filled(bootstrap: str) -> str:
    topic = unique("spark-sink")
    create_topic(bootstrap, topic, 2)
    publish(bootstrap, topic, numbers(5))
    return topic


def test_overwriting_a_topic_is_refused(spark: Any, bootstrap: str, filled: str) -> None:
    frame = spark.sql("SELECT 'x' AS value")
    with pytest.raises(Exception, match="a topic can only be appended to"):
        frame.write.format("odradek").mode("overwrite").option("topic", filled).option(
            "kafka.bootstrap.servers", bootstrap
        ).save()


@pytest.mark.parametrize("mode", ["append", pytest.param("complete", marks=pytest.mark.slow)])
def test_a_stream_copies_a_topic_to_a_topic(spark: Any, bootstrap: str, topic: str, tmp_path: Path, mode: str) -> None:
    into = topic + "-out"
    create_topic(bootstrap, topic)
    create_topic(bootstrap, into, 2)
    source = spark.readStream.format("odradek").option("kafka.bootstrap.servers", bootstrap)
    frame = source.option("subscribe", topic).option("startingOffsets", "earliest").load().select("key", "value")
    if mode != "append":
        frame = frame.groupBy("value").count().selectExpr("value AS key", "CAST(count AS string) AS value")

    def run() -> None:
        writer = frame.writeStream.format("odradek").outputMode(mode).option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", into).option("checkpointLocation", str(tmp_path))
        assert writer.trigger(availableNow=True).start().awaitTermination(240)

    publish(bootstrap, topic, [b"a", b"b"])
    run()
    publish(bootstrap, topic, [b"b"])
    run()
    wanted = {
        "append": [(None, b"a"), (None, b"b"), (None, b"b")],
        "complete": [(b"a", b"1"), (b"a", b"1"), (b"b", b"1"), (b"b", b"2")],
    }[mode]
    found = [(message.key(), message.value()) for message in held(bootstrap, into, 2, len(wanted))]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_repeated_micro_batch_is_written_again(stream: StreamingRun, bootstrap: str) -> None:
    """The sink writes at least once. The test puts the checkpoint into the state of a kill between the last sent row
    and Spark's mark that the micro-batch is complete."""
    into = stream.topic + "-out"
    create_topic(bootstrap, stream.topic)
    create_topic(bootstrap, into)
    publish(bootstrap, stream.topic, numbers(3))
    stream.group = None

    def run() -> None:
        writer = stream.frame().writeStream.format("odradek").option("kafka.bootstrap.servers", bootstrap)
        writer = writer.option("topic", into).option("checkpointLocation", str(stream.checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(240)

    run()
    stream.forget_that_the_last_batch_was_done()
    run()
    assert [message.value() for message in held(bootstrap, into, 1, 6)] == numbers(3) * 2


def in_another_thread(work: Callable[[], object]) -> None:
    """Calls Spark from a thread that did not start it, like a web server or a scheduler."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result(timeout=240)


def test_any_thread_may_write_and_read(spark: Any, bootstrap: str, topic: str, tmp_path: Path) -> None:
    create_topic(bootstrap, topic, 1)
    frame = spark.createDataFrame([("k", "from a batch")], "key string, value string")
    options = {"kafka.bootstrap.servers": bootstrap, "topic": topic}
    in_another_thread(lambda: save(frame, bootstrap, topic=topic))
    in_another_thread(lambda: frame.write.mode("append").options(**options).save(format="odradek"))

    def stream() -> None:
        source = spark.readStream.format("odradek").option("kafka.bootstrap.servers", bootstrap)
        rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        sink = rows.selectExpr("string(key) key", "'from a stream' value").writeStream.format("odradek")
        started = sink.options(**options).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert started.awaitTermination(240)

    in_another_thread(stream)
    assert [m.value() for m in held(bootstrap, topic, 1, 4)] == [b"from a batch"] * 2 + [b"from a stream"] * 2


def test_a_session_writes_while_another_one_is_active(spark: Any, bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, 1)
    other, bare = spark.newSession(), spark.newSession()
    register(other)
    rows = bare.createDataFrame([("x",)], "value string")  # makes this session active
    try:
        save(other.range(2).selectExpr("string(id) value"), bootstrap, topic=topic)
        assert sorted(m.value() for m in held(bootstrap, topic, 1, 2)) == [b"0", b"1"]
        save(rows, bootstrap, topic=topic)
        assert len(held(bootstrap, topic, 1, 3)) == 3, "Spark discovers the source in the session without register"
    finally:
        spark.createDataFrame([], "none int")
