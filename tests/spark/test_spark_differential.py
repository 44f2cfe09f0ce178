"""Comparison with Spark's own Kafka connector, in one session, on the same topics: the same options give the same rows
and schema.

The connector's jars come from Maven. Without the jars these tests skip with the reason. The tests run with odradek's
broker, and with the Kafka broker of ODRADEK_TEST_BOOTSTRAP.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from support.brokers import Wire, unique
from support.publish import create_topic
from support.spark_connector import with_connector

from odradek.wire.api_keys import ADD_PARTITIONS_TO_TXN

pytestmark = pytest.mark.slow
T0 = 1_700_000_000_000
CODECS = ("none", "gzip", "lz4", "zstd")
Options = dict[str, str]


@pytest.fixture(scope="module")
def both(spark: Any) -> Any:
    """The session, with the connector's jars added."""
    return with_connector(spark)


@dataclass(frozen=True)
class Topics:
    """``one`` has three partitions with 100, 60 and 0 records. Their timestamps are a second apart, but the
    timestamp of every tenth record is five seconds too old. ``two`` has one partition with 20 records."""

    one: str
    two: str

    def filled_in(self, options: Options) -> Options:
        """Returns the options with the names of the topics in place of ONE and TWO."""
        return {name: text.replace("ONE", self.one).replace("TWO", self.two) for name, text in options.items()}


def fill(bootstrap: str, topic: str, sizes: list[int]) -> None:
    create_topic(bootstrap, topic, len(sizes))
    for number, codec in enumerate(CODECS):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 50})
        for partition, size in enumerate(sizes):
            for n in range(size * number // 4, size * (number + 1) // 4):
                headers: Any = [("a", b"1"), ("a", None), ("ü", b"")] if n % 3 == 0 else None
                producer.produce(
                    topic,
                    None if n % 7 == 0 else bytes([n % 256]) * (n % 50),
                    None if n % 5 == 0 else b"k\x00%d" % n,
                    partition,
                    timestamp=T0 + 1000 * n - (5000 if n % 10 == 9 else 0),
                    headers=headers,
                )
        assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def topics(bootstrap: str) -> Topics:
    name = unique("spark-differential")
    made = Topics(name + "-one", name + "-two")
    fill(bootstrap, made.one, [100, 60, 0])
    fill(bootstrap, made.two, [20])
    return made


def load(spark: Any, kind: str, bootstrap: str, options: Options) -> Any:
    chosen = {"kafka.bootstrap.servers": bootstrap} | options
    return spark.read.format(kind).options(**chosen).load()


def of(offsets: dict[str, list[int]]) -> str:
    """JSON offsets: topic → one offset for each partition."""
    return json.dumps({topic: {str(n): offset for n, offset in enumerate(row)} for topic, row in offsets.items()})


ONE: Options = {"subscribe": "ONE"}
COMBINATIONS: dict[str, Options] = {
    "plain": ONE,
    "headers": ONE | {"includeHeaders": "true"},
    "words": ONE | {"startingOffsets": "earliest", "endingOffsets": "latest"},
    "start by offset": ONE | {"startingOffsets": of({"ONE": [90, -2, -2]})},
    "end by offset": ONE | {"endingOffsets": of({"ONE": [7, -1, -1]})},
    "both by offset": ONE | {"startingOffsets": of({"ONE": [5, 6, 0]}), "endingOffsets": of({"ONE": [50, 6, 0]})},
    "start by time": ONE | {"startingTimestamp": str(T0 + 10_500), "startingOffsetsByTimestampStrategy": "latest"},
    "end by time": ONE | {"endingTimestamp": str(T0 + 10_500)},
    "time of a late record": {"assign": '{"ONE":[0]}', "startingTimestamp": str(T0 + 14_000)},
    "both by time": {
        "assign": '{"ONE":[0,1]}', "startingTimestamp": str(T0 + 20_000), "endingTimestamp": str(T0 + 50_000),
    },
    "start by times": ONE
    | {
        "startingOffsetsByTimestamp": of({"ONE": [T0 + 50_000, T0, T0]}),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "end by times": ONE | {"endingOffsetsByTimestamp": of({"ONE": [T0 + 50_000, T0, T0]})},
    "both by times": {
        "assign": '{"ONE":[0,1]}',
        "startingOffsetsByTimestamp": of({"ONE": [T0 + 1, T0 + 30_000]}),
        "endingOffsetsByTimestamp": of({"ONE": [T0 + 90_000, T0 + 10**9]}),
    },
    "time before offsets": {
        "assign": '{"ONE":[0]}', "startingTimestamp": str(T0 + 60_000), "startingOffsets": of({"ONE": [3]}),
    },
    "times before offsets": {
        "assign": '{"ONE":[0]}',
        "startingOffsetsByTimestamp": of({"ONE": [T0 + 70_000]}),
        "startingOffsets": of({"ONE": [3]}),
        "endingOffsetsByTimestamp": of({"ONE": [T0 + 80_000]}),
        "endingOffsets": of({"ONE": [4]}),
    },
    "time before times": {
        "assign": '{"ONE":[0]}',
        "startingTimestamp": str(T0 + 70_000),
        "startingOffsetsByTimestamp": of({"ONE": [T0]}),
    },
    "too young, latest": ONE
    | {"startingTimestamp": str(T0 + 10**9), "startingOffsetsByTimestampStrategy": "latest"},
    "pattern": {"subscribePattern": "ONE|TWO"},
    "pattern with offsets": {
        "subscribePattern": "(ONE|TWO)", "startingOffsets": of({"ONE": [50, 50, 0], "TWO": [15]}),
    },
    "two topics": {"subscribe": "ONE, TWO", "includeHeaders": "TRUE"},
    "assigned": {"assign": '{"ONE":[1,2],"TWO":[0]}', "endingOffsets": of({"ONE": [0], "TWO": [-1]}).replace(
        '"0": 0', '"1": 10, "2": -1')},
    "more tasks": ONE | {"minPartitions": "7"},
    "fewer wanted than there are": ONE | {"minPartitions": "1"},
    "small tasks": ONE | {"maxRecordsPerPartition": "17"},
    "small tasks, many of them": ONE | {"maxRecordsPerPartition": "40", "minPartitions": "9"},
    "committed only": ONE | {"kafka.isolation.level": "read_committed"},
    "named group": ONE | {"kafka.group.id": "GROUP", "commitOffsets": "false"},
    "group prefix": ONE | {"groupIdPrefix": "mine", "kafkaConsumer.pollTimeoutMs": "20000"},
    "retries": ONE | {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "5"},
    "small fetches": ONE
    | {"kafka.max.partition.fetch.bytes": "500", "kafka.fetch.max.bytes": "700", "kafka.check.crcs": "false"},
    "names in other case": {"SUBSCRIBE": "ONE", "STARTINGOFFSETS": "Earliest", "failondataloss": "FALSE"},
    "limits of streams": ONE | {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "3", "maxTriggerDelay": "1m"},
}  # fmt: skip


def rows(frame: Any) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: (row[2], row[3], row[4]))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_the_same_options_give_the_same_rows(both: Any, bootstrap: str, topics: Topics, name: str) -> None:
    options = topics.filled_in(COMBINATIONS[name]) | (
        {"kafka.group.id": unique("differential")} if "kafka.group.id" in COMBINATIONS[name] else {}
    )
    theirs = load(both, "kafka", bootstrap, {n: o for n, o in options.items() if n != "commitOffsets"})
    ours = load(both, "odradek", bootstrap, options)
    assert ours.schema == theirs.schema
    expected = rows(theirs)
    assert rows(ours) == expected
    if name != "too young, latest":
        assert expected, "there are no rows to compare"


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_transactions_give_the_same_rows(both: Any, bootstrap: str, topic: str, isolation: str) -> None:
    """Committed, aborted and open transactions; control records are never rows."""
    with Wire(bootstrap) as wire:
        if ADD_PARTITIONS_TO_TXN not in wire.versions():
            pytest.skip("this broker has no transactions")
    create_topic(bootstrap, topic)
    producers = []
    for number, end in enumerate(("commit", "abort", "commit", "open")):
        settings = {"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-{number}"}
        producer = Producer(settings)
        producer.init_transactions(30)
        producer.begin_transaction()
        for n in range(5):
            producer.produce(topic, b"%s-%d" % (end.encode(), n))
        assert producer.flush(30) == 0
        if end == "commit":
            producer.commit_transaction(30)
        elif end == "abort":
            producer.abort_transaction(30)
        producers.append(producer)
    options = {"subscribe": topic, "kafka.isolation.level": isolation}
    try:
        ours, theirs = (rows(load(both, kind, bootstrap, options)) for kind in ("odradek", "kafka"))
    finally:
        producers[-1].abort_transaction(30)
    assert ours == theirs
    assert len(ours) == (10 if isolation == "read_committed" else 20)


REFUSED: dict[str, Options] = {
    "no topic": {},
    "subscribe and assign together": ONE | {"assign": '{"ONE":[0]}'},
    "start at latest": ONE | {"startingOffsets": "latest"},
    "start at -1": ONE | {"startingOffsets": of({"ONE": [-1, 0, 0]})},
    "end at earliest": ONE | {"endingOffsets": "earliest"},
    "end at -2": ONE | {"endingOffsets": of({"ONE": [-2, 0, 0]})},
    "a partition is left out": ONE | {"startingOffsets": of({"ONE": [0, 0]})},
    "no JSON": ONE | {"startingOffsets": '{"ONE":[0]}'},
    "too young": ONE | {"startingTimestamp": str(T0 + 10**9)},
    "auto commit": ONE | {"kafka.enable.auto.commit": "true"},
    "deserializer": ONE | {"kafka.key.deserializer": "x"},
    "offset reset": ONE | {"kafka.auto.offset.reset": "earliest"},
    "interceptors": ONE | {"kafka.interceptor.classes": "x"},
    "no tasks": ONE | {"minPartitions": "0"},
    "beyond the end": {
        "assign": '{"ONE":[0]}', "endingOffsets": of({"ONE": [500]}), "kafkaConsumer.pollTimeoutMs": "3000",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse_the_same_options(both: Any, bootstrap: str, topics: Topics, name: str) -> None:
    options = topics.filled_in(REFUSED[name])
    for kind in ("kafka", "odradek"):
        with pytest.raises(Exception, match=r"\S"):
            both.read.format(kind).options(**{"kafka.bootstrap.servers": bootstrap} | options).load().collect()


STREAMS: dict[str, Options] = {
    "all": ONE | {"startingOffsets": "earliest"},
    "limited": ONE | {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "50", "includeHeaders": "true"},
    "by offset": ONE | {"startingOffsets": of({"ONE": [90, -1, -2]}), "minPartitions": "5"},
    "by time": ONE | {"startingTimestamp": str(T0 + 20_000), "startingOffsetsByTimestampStrategy": "latest"},
    "pattern": {"subscribePattern": "ONE|TWO", "startingOffsets": "earliest"},
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_give_the_same_rows(both: Any, bootstrap: str, topics: Topics, tmp_path: Path, name: str) -> None:
    options = {"kafka.bootstrap.servers": bootstrap} | topics.filled_in(STREAMS[name])
    found, schemas, sizes = [], [], []
    for kind in ("kafka", "odradek"):
        frame = both.readStream.format(kind).options(**options).load()
        table = unique(kind).replace("-", "_")
        writer = frame.writeStream.format("memory").queryName(table).option("checkpointLocation", str(tmp_path / kind))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        schemas.append(frame.schema)
        found.append(rows(both.table(table)))
        sizes.append([progress.numInputRows for progress in query.recentProgress if progress.numInputRows])
    assert schemas[0] == schemas[1]
    assert found[0] == found[1] != []
    if name == "limited":  # the connector rounds down the share of each partition; ours add up to the limit
        assert (max(sizes[1]), len(sizes[1])) == (50, len(sizes[0]))
    else:
        assert sizes[0] == sizes[1]


WRITES = {
    "topic option": ("SELECT 'k' || id AS key, CAST('v' || id AS binary) AS value FROM range(100)", "topic"),
    "topic column": ("SELECT 'INTO' AS topic, 'k' || id AS key, 'v' || id AS value FROM range(100)", ""),
    "option before column": ("SELECT 'nowhere' AS topic, 'k' || id AS key, 'v' || id AS value FROM range(9)", "topic"),
    "partitions": (
        "SELECT 'k' || id AS key, 'v' || id AS value, CAST(id % 3 AS int) AS partition FROM range(60)", "topic",
    ),
    "some partitions": (
        "SELECT 'k' || id AS key, 'v' || id AS value, IF(id % 2 = 0, 1, CAST(null AS int)) AS partition FROM range(60)",
        "topic",
    ),
    "headers": (
        "SELECT 'k' || id AS key, 'v' || id AS value, IF(id % 3 = 0, null, array(named_struct('key', 'h', 'value', "
        "CAST('h' || id AS binary)), named_struct('key', '', 'value', CAST(null AS binary)))) AS headers FROM range(9)",
        "topic",
    ),
    "nulls": ("SELECT 'k' || id AS key, IF(id % 2 = 0, null, 'v' || id) AS value FROM range(60)", "topic"),
    "other columns": (
        "SELECT 'k' AS key, 'v' || id AS value, id AS offset, current_timestamp() AS timestamp FROM range(60)", "topic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_the_sinks_write_the_same_records(both: Any, bootstrap: str, name: str) -> None:
    sql, option = WRITES[name]
    written = []
    for kind in ("kafka", "odradek"):
        topic = unique("spark-differential")
        create_topic(bootstrap, topic, 3)
        writer = both.sql(sql.replace("INTO", topic)).write.format(kind).mode("append")
        writer.options(**{"kafka.bootstrap.servers": bootstrap} | ({"topic": topic} if option else {})).save()
        frame = load(both, "kafka", bootstrap, {"subscribe": topic, "includeHeaders": "true"})
        found = frame.select("partition", "key", "value", "headers").collect()
        written.append(sorted((tuple(row) for row in found), key=repr))
    assert written[0] == written[1] != []


def test_both_sinks_cause_the_creation_of_a_missing_topic(both: Any, bootstrap: str) -> None:
    written = []
    for kind in ("kafka", "odradek"):
        topic = unique("spark-differential")
        writer = both.sql("SELECT 'v' || id AS value FROM range(9)").coalesce(1).write.format(kind).mode("append")
        writer.options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()
        found = load(both, "kafka", bootstrap, {"subscribe": topic}).select("value").collect()
        written.append(sorted(bytes(row.value) for row in found))
    assert written[0] == written[1] == [b"v%d" % number for number in range(9)]
