"""``Producer`` against a real broker: partitions, order, codecs, Arrow, a broker that dies, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from odradek.batches.compression import NAMES
from odradek.client import Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.client.errors import RequestTimedOut, UnknownTopic
from odradek.client.partitioner import partition_for_key
from odradek.client.producer import BufferExhausted, DeliveryFailed, Producer, RecordMetadata
from odradek.core.errors import ConfigError, KafkaError

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(bootstrap: str, tp: TopicPartition, end: int) -> list[Any]:
    return list(PartitionReader(as_config(bootstrap), tp).read_rows(0, end))


def stored(bootstrap: str, admin: Admin, topic: str) -> dict[int, list[Any]]:
    ends = admin.list_offsets(dict.fromkeys(admin.partitions(topic), -1))
    return {tp.partition: rows(bootstrap, tp, end.offset) for tp, end in ends.items()}


@pytest.mark.parametrize("codec", NAMES)
def test_records_arrive_as_sent(bootstrap: str, admin: Admin, topic: str, codec: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])
    told: list[tuple[RecordMetadata | None, Exception | None]] = []
    with Producer(bootstrap, compression_type=codec) as producer:
        for n in range(200):
            key = str(n % 20).encode()
            producer.send(
                topic, b"%d" % n, key, [("h", key), ("none", None)], None, 1000 + n, lambda m, e: told.append((m, e))
            )
        producer.send(topic, None, b"tombstone")
        producer.flush(30)
        assert len(told) == 200
    assert all(error is None for _, error in told)
    found = stored(bootstrap, admin, topic)
    for partition, records in found.items():
        sent = [n for n in range(200) if partition_for_key(str(n % 20).encode(), 3) == partition]
        mine = [row for row in records if row.key != b"tombstone"]
        assert [int(row.value) for row in mine] == sent  # in order
        assert [row.timestamp for row in mine] == [1000 + n for n in sent]
        assert all(row.headers == (("h", row.key), ("none", None)) for row in mine)
        assert {m.offset for m, _ in told if m is not None and m.partition == partition} == {row.offset for row in mine}
    assert [row.value for records in found.values() for row in records if row.key == b"tombstone"] == [None]


def test_record_batches_arrive_as_rows_would(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])
    count = 5_000
    batch = pa.record_batch(
        {
            "key": pa.array([None if n % 11 == 0 else b"k%d" % n for n in range(count)], pa.binary()),
            "value": pa.array([None if n % 7 == 0 else f"w{n}" for n in range(count)], pa.string()),
            "headers": pa.array(
                [[{"key": "h", "value": b"%d" % n}] if n % 2 else None for n in range(count)], _HEADERS
            ),
            "partition": pa.array([2 if n % 13 == 0 else None for n in range(count)], pa.int32()),
            "timestamp": pa.array(range(10, 10 + count), pa.timestamp("ms")),
        }
    )
    runs: list[tuple[TopicPartition, int, int, Exception | None]] = []
    with Producer(bootstrap, compression_type="zstd") as producer:
        producer.send_batch(topic, batch.slice(0, 2_000), lambda *run: runs.append(run))
        producer.send_batch(topic, batch.slice(2_000), lambda *run: runs.append(run))
        producer.flush(60)
    assert sum(run[2] for run in runs) == count
    assert [run[3] for run in runs if run[3] is not None] == []
    found = stored(bootstrap, admin, topic)
    numbers: dict[int, int] = {}
    for partition, records in found.items():
        order = [row.timestamp - 10 for row in records]
        assert order == sorted(order)
        for n, row in zip(order, records, strict=True):
            numbers[n] = partition
            assert row.key == (None if n % 11 == 0 else b"k%d" % n)
            assert row.value == (None if n % 7 == 0 else b"w%d" % n)
            assert row.headers == ((("h", b"%d" % n),) if n % 2 else ())
    assert sorted(numbers) == list(range(count))
    for n, partition in numbers.items():
        if n % 13 == 0:
            assert partition == 2
        elif n % 11:
            assert partition == partition_for_key(b"k%d" % n, 3)


def test_a_broker_killed_while_producing_loses_and_doubles_nothing(own_broker: Callable[..., Any], topic: str) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 2, 1)])
        with Producer(broker.bootstrap, linger_ms=0, batch_size=500) as producer:
            for n in range(6_000):
                if n in {2_000, 4_000}:
                    broker.kill()
                    broker.start()
                producer.send(topic, b"%d" % n, partition=n % 2)
            producer.flush(60)
        found = stored(broker.bootstrap, admin, topic)
    assert {p: [int(row.value) for row in records] for p, records in found.items()} == {
        0: list(range(0, 6_000, 2)), 1: list(range(1, 6_000, 2)),
    }  # fmt: skip


def test_a_broker_that_stays_away_is_an_error_in_time(own_broker: Callable[..., Any], topic: str) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    told: list[Exception | None] = []
    producer = Producer(
        broker.bootstrap, delivery_timeout_ms=300, max_block_ms=300, buffer_memory=2_000, default_api_timeout_ms=500
    )
    producer.send(topic, b"stored")
    producer.flush(30)
    broker.kill()
    producer.send(topic, b"lost", on_delivery=lambda m, e: told.append(e))
    producer.send(topic, b"lost, nobody told")
    with pytest.raises(DeliveryFailed):
        producer.flush(30)
    assert isinstance(told[0], RequestTimedOut)
    slow = Producer(broker.bootstrap, max_block_ms=50, buffer_memory=100)
    slow._counts[topic] = (1, float("inf"))
    slow.send(topic, b"x" * 80)
    with pytest.raises(BufferExhausted, match="buffer_memory=100"):
        slow.send(topic, b"x" * 80)
    with pytest.raises(RequestTimedOut):
        slow.close(0)
    producer.close()


def test_errors_are_typed(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1, {"max.message.bytes": "200"})])
    with Producer(bootstrap) as producer:
        with pytest.raises(UnknownTopic, match="no partition 5"):
            producer.send(topic, b"v", partition=5)
        with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
            producer.send(topic, b"x" * 2_000_000)
        told: list[Exception | None] = []
        producer.send(topic, b"x" * 1_000, on_delivery=lambda m, e: told.append(e))
        producer.flush(30)
        assert isinstance(told[0], KafkaError)
        assert told[0].code.name == "message_too_large"
        with pytest.raises(ValueError, match="unknown column 'v'"):
            producer.send_batch(topic, pa.record_batch({"v": [b"x"]}))
    with pytest.raises(ValueError, match="closed"):
        producer.send(topic, b"v")
    for wrong in ({"acks": 1}, {"acks": 2}, {"compression_type": "zip"}, {"linger_ms": -1}, {"linger": 3}):
        with pytest.raises(ConfigError):
            Producer("127.0.0.1:1", **wrong)
