"""``Producer`` with a running broker: partitions, order, codecs, Arrow, restarts, errors."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.scripted import ScriptedCluster, scripted

from odradek.batches.compression import NAMES
from odradek.client import Admin, NewTopic, PartitionReader, TopicPartition
from odradek.client.config import as_config
from odradek.client.errors import RequestTimedOut, UnknownTopic
from odradek.client.producer import BufferExhausted, DeliveryFailed, Producer, ProducerConfig, RecordMetadata
from odradek.client.producer.accumulator import ProducerBatch
from odradek.client.producer.config import split_settings
from odradek.client.producer.partitioner import partition_for_key
from odradek.core.errors import ConfigError, ErrorCode, KafkaError
from odradek.wire.api_keys import PRODUCE

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(2) as made:
        yield made


def rows(bootstrap: str, tp: TopicPartition, end: int) -> list[Any]:
    return list(PartitionReader(as_config(bootstrap), tp).read_rows(0, end))


def stored(bootstrap: str, admin: Admin, topic: str) -> dict[int, list[Any]]:
    ends = admin.list_offsets(dict.fromkeys(admin.partitions(topic), -1))
    return {tp.partition: rows(bootstrap, tp, end.offset) for tp, end in ends.items()}


@pytest.mark.parametrize("codec", NAMES)
def test_records_arrive_as_sent(bootstrap: str, admin: Admin, topic: str, codec: str) -> None:
    admin.create_topics([NewTopic(topic, 3, 1)])
    done: list[tuple[RecordMetadata | None, Exception | None]] = []
    with Producer(bootstrap, compression_type=codec) as producer:
        for n in range(200):
            key = str(n % 20).encode()
            producer.send(
                topic, b"%d" % n, key, [("h", key), ("none", None)], None, 1000 + n, lambda m, e: done.append((m, e))
            )
        producer.send(topic, None, b"tombstone")
        producer.flush(30)
        assert len(done) == 200
    assert all(error is None for _, error in done)
    found = stored(bootstrap, admin, topic)
    for partition, records in found.items():
        sent = [n for n in range(200) if partition_for_key(str(n % 20).encode(), 3) == partition]
        mine = [row for row in records if row.key != b"tombstone"]
        assert [int(row.value) for row in mine] == sent  # in order
        assert [row.timestamp for row in mine] == [1000 + n for n in sent]
        assert all(row.headers == (("h", row.key), ("none", None)) for row in mine)
        assert {m.offset for m, _ in done if m is not None and m.partition == partition} == {row.offset for row in mine}
    assert [row.value for records in found.values() for row in records if row.key == b"tombstone"] == [None]


def test_record_batches_arrive_as_single_records_do(bootstrap: str, admin: Admin, topic: str) -> None:
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


@pytest.mark.claim(108, part="ab")
def test_a_broker_killed_while_producing_loses_and_duplicates_no_record(
    own_broker: Callable[..., Any], topic: str
) -> None:
    assert (ProducerConfig().retries, ProducerConfig().delivery_timeout_ms) == (2_147_483_647, 120_000)
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


@pytest.mark.parametrize("acks", [0, 1])
def test_with_acks_0_or_1_all_records_are_stored_in_order(bootstrap: str, admin: Admin, topic: str, acks: int) -> None:
    """With acks=0 the callbacks get offset -1, because the broker sends no reply."""
    admin.create_topics([NewTopic(topic, 2, 1)])
    deliveries: list[tuple[RecordMetadata | None, Exception | None]] = []
    with Producer(bootstrap, acks=acks, batch_size=300, linger_ms=0) as producer:
        for n in range(500):
            producer.send(topic, b"%d" % n, partition=n % 2, on_delivery=lambda m, e: deliveries.append((m, e)))
        producer.send(topic, b"x" * 900_000, partition=0)
    found: dict[int, list[Any]] = {}
    eventually(lambda: found.update(stored(bootstrap, admin, topic)) or sum(map(len, found.values())) == 501)
    for partition, records in found.items():
        assert [int(row.value) for row in records[:250]] == list(range(partition, 500, 2))
    assert [error for _, error in deliveries if error is not None] == []
    offsets = sorted(m.offset for m, _ in deliveries if m is not None and m.partition == 1)
    assert offsets == (list(range(250)) if acks else [-1] * 250)


def test_with_acks_1_a_restart_loses_no_record_but_may_duplicate_some(
    own_broker: Callable[..., Any], topic: str
) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
        with Producer(broker.bootstrap, acks=1, linger_ms=0, batch_size=500) as producer:
            for n in range(3_000):
                if n == 1_500:
                    producer.flush(30)
                    broker.stop()
                    broker.start()
                producer.send(topic, b"%d" % n, partition=0)
        values = [int(row.value) for row in stored(broker.bootstrap, admin, topic)[0]]
    assert sorted(set(values)) == list(range(3_000))
    firsts = [n for at, n in enumerate(values) if n not in values[max(0, at - 600) : at]]
    assert firsts == list(range(3_000))


def test_with_acks_0_batches_go_to_the_new_leader(cluster: ScriptedCluster) -> None:
    """With acks=0 a broker that is no longer the leader closes the connection; the client looks up the new leader."""
    taken: list[tuple[int, bytes]] = []

    def take(node: int) -> Callable[[Any, int], Any]:
        def answer(message: Any, version: int) -> Any:
            if cluster.leader != node:
                return None
            taken.append((node, bytes(message.topic_data[0].partition_data[0].records)))
            return b""

        return answer

    for node, broker in cluster.brokers.items():
        broker.ranges[PRODUCE] = (3, 9)
        broker.answers[PRODUCE] = take(node)
    with Producer(cluster.bootstrap, acks=0, linger_ms=0, retry_backoff_ms=1) as producer:
        producer.send("t", b"one")
        producer.flush(30)
        eventually(lambda: len(taken) == 1)
        cluster.leader = 2

        def sent() -> bool:
            producer.send("t", b"more")
            producer.flush(30)
            return any(node == 2 for node, _ in taken)

        eventually(sent)


@pytest.mark.claim(107)
@pytest.mark.parametrize("retries", [0, 3])
def test_the_number_of_retries_is_limited(cluster: ScriptedCluster, retries: int) -> None:
    broker = cluster.brokers[1]
    broker.ranges[PRODUCE] = (3, 9)
    row = {"index": 0, "error_code": ErrorCode.not_enough_replicas.value, "base_offset": -1, "log_append_time": -1,
           "log_start_offset": -1, "record_errors": [], "error_message": None}  # fmt: skip
    broker.answers[PRODUCE] = lambda message, version: {
        "responses": [{"name": "t", "partition_responses": [row]}], "throttle_time": 0
    }  # fmt: skip
    errors: list[Exception | None] = []
    settings = {"acks": 1, "retries": retries, "retry_backoff_ms": 1, "linger_ms": 0}
    with Producer(cluster.bootstrap, **settings) as producer:
        producer.send("t", b"v", on_delivery=lambda m, e: errors.append(e))
        producer.flush(30)
    assert broker.count(PRODUCE) == retries + 1
    assert isinstance(errors[0], KafkaError)
    assert errors[0].code is ErrorCode.not_enough_replicas


def test_a_broker_that_stays_down_is_a_timeout(own_broker: Callable[..., Any], topic: str) -> None:
    broker = own_broker()
    with Admin(broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    with Producer(broker.bootstrap) as patient:
        patient.send(topic, b"the first record to a broker and a topic takes longer")
    errors: list[Exception | None] = []
    producer = Producer(broker.bootstrap, delivery_timeout_ms=2_000, buffer_memory=2_000, default_api_timeout_ms=2_000)
    producer.send(topic, b"stored")
    producer.flush(30)
    broker.kill()
    producer.send(topic, b"lost", on_delivery=lambda m, e: errors.append(e))
    producer.send(topic, b"lost, without a callback")
    with pytest.raises(DeliveryFailed):
        producer.flush(30)
    assert isinstance(errors[0], RequestTimedOut)
    slow = Producer(broker.bootstrap, max_block_ms=50, buffer_memory=100)
    engine_of(slow).counts[topic] = (1, float("inf"))
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
        errors: list[Exception | None] = []
        producer.send(topic, b"x" * 1_000, on_delivery=lambda m, e: errors.append(e))
        producer.flush(30)
        assert isinstance(errors[0], KafkaError)
        assert errors[0].code.name == "message_too_large"
        with pytest.raises(ValueError, match="unknown column 'v'"):
            producer.send_batch(topic, pa.record_batch({"v": [b"x"]}))
    with pytest.raises(ValueError, match="closed"):
        producer.send(topic, b"v")


@pytest.mark.parametrize(("wrong", "message"), [
    ({"acks": 1, "enable.idempotence": True}, "acks=1 needs enable_idempotence=False"), ({"acks": 2}, "acks"),
    ({"compression_type": "zip"}, "compression_type"), ({"linger_ms": -1}, "linger_ms"),
    ({"liner.ms": 3}, r"did you mean linger\.ms"), ({"linger.ms": "soon"}, r"linger\.ms: expected a whole number"),
    ({"max.in.flight.requests.per.connection": "9"}, "max_in_flight_requests_per_connection: expected 1 to 5, not 9"),
    ({"transactional.id": ""}, "transactional_id: expected a name"),
    ({"transactional.id": "t", "acks": "1"}, "transactional_id needs acks=all"),
    ({"transactional.id": "t", "transaction.timeout.ms": 0}, "transaction_timeout_ms: expected a whole number"),
    ({"value_serializer": 1}, "passed as bytes"),
    ({"acks": []}, "acks: expected all, 1 or 0"), ({"acks": True}, "acks: expected all, 1 or 0, not True"),
    ({"delivery.timeout.ms": 0}, "delivery_timeout_ms: expected a whole number of at least 1"),
    ({"retries": 1, "retries ": 1}, "unknown setting"), ({"linger_ms": 1, "linger.ms": 1}, "set twice"),
])  # fmt: skip
def test_the_error_for_an_invalid_setting_names_the_remedy(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Producer({"bootstrap.servers": "127.0.0.1:1"}, **wrong)


def test_settings_may_have_dotted_names_and_text_values() -> None:
    own, client = split_settings({"bootstrap.servers": "h:1", "acks": "1", "linger.ms": "7", "client.id": "c"}, {})
    assert (own.required_acks, own.enable_idempotence, own.linger_ms) == (1, False, 7)  # as in Kafka
    assert (client.bootstrap_servers, client.client_id) == ("h:1", "c")
    assert split_settings("h:1", {})[0].enable_idempotence


def test_an_invalid_record_is_refused_and_leaves_nothing_behind(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    wrong: Any
    with Producer(bootstrap) as producer:
        for wrong, message in (
            ({"value": "text"}, "value: expected bytes or None, not str: encode it first"),
            ({"value": b"", "key": 5}, "key: expected bytes or None, not int"),
            ({"value": b"", "headers": [("h", "x")]}, "header h: expected bytes or None, not str"),
            ({"value": b"", "headers": [(b"h", b"x")]}, "headers: a name is text, not bytes"),
            ({"value": b"", "headers": "abc"}, "headers: expected pairs of a name and bytes, or a mapping, not 'a'"),
            ({"value": b"", "headers": [("h",)]}, "headers: expected pairs of a name and bytes"),
            (
                {"value": b"", "timestamp": 1.5},
                "timestamp: expected a whole number of milliseconds since 1970",
            ),
            ({"value": b"", "partition": 1.0}, "partition: expected a whole number, not 1.0"),
            ({"value": b"", "partition": True}, "partition: expected a whole number, not True"),
            ({"value": b"", "on_delivery": 3}, "on_delivery: expected a function, not 3"),
        ):
            with pytest.raises(TypeError, match=message):
                producer.send(topic, **wrong)
        with pytest.raises(ValueError, match="timestamp: -7 ms is before 1970"):
            producer.send(topic, b"", timestamp=-7)
        with pytest.raises(ValueError, match="timestamp: 9223372036854775808 ms does not fit into 64 bits"):
            producer.send(topic, b"", timestamp=1 << 63)
        for wrong, message in (
            ({"value": [1, 2]}, "column value: expected bytes or text, not int64: cast it first"),
            ({"value": [b"v"], "headers": ["h"]}, "column headers: expected lists of structs of key and value"),
            ({"value": [b"v"], "partition": ["one"]}, "column partition: expected whole numbers, not string"),
            (
                {"value": [b"v"], "timestamp": ["soon"]},
                "column timestamp: expected milliseconds or timestamps, not string",
            ),
            ({"value": [b"v"], "timestamp": [-2]}, "column timestamp: -2 ms is before 1970"),
        ):
            with pytest.raises(ValueError, match=message):
                producer.send_batch(topic, pa.record_batch(wrong))
        with pytest.raises(TypeError, match="expected a RecordBatch or Table of pyarrow, not list"):
            producer.send_batch(topic, [b"v"])
        with pytest.raises(TypeError, match="on_delivery: expected a function"):
            producer.send_batch(topic, pa.record_batch({"value": [b"v"]}), on_delivery=3)
        assert producer.partitions_for(topic) == [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        producer.send(topic, bytearray(b"good"), headers={"h": b"x"}, partition=1)
        producer.flush(30)
    found = stored(bootstrap, admin, topic)
    assert [(row.value, row.headers) for rows in found.values() for row in rows] == [(b"good", (("h", b"x"),))]


def test_a_batch_that_cannot_be_packed_fails_alone(
    bootstrap: str, admin: Admin, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create_topics([NewTopic(topic, 2, 1)])
    sealed = ProducerBatch.seal

    def broken(self: ProducerBatch, codec: int, producer_id: int, attributes: int = 0) -> bytes:
        if b"odd" in self.body:
            raise ArithmeticError("no room for it")
        return sealed(self, codec, producer_id, attributes)

    monkeypatch.setattr(ProducerBatch, "seal", broken)
    deliveries: list[tuple[bytes, str | None]] = []
    with Producer(bootstrap) as producer:
        producer.send(topic, b"odd", partition=0, on_delivery=lambda m, e: deliveries.append((b"odd", str(e))))
        producer.send(topic, b"even", partition=1, on_delivery=lambda m, e: deliveries.append((b"even", str(e))))
        producer.flush(30)
        producer.send(topic, b"later", partition=0)
        producer.flush(30)
    assert sorted(deliveries) == [(b"even", "None"), (b"odd", "no room for it")]
    found = stored(bootstrap, admin, topic)
    assert [row.value for rows in found.values() for row in rows] == [b"later", b"even"]


_LEFT_OPEN = """
import sys
from odradek import Producer
producer = Producer(sys.argv[1], linger_ms=60_000)
producer.send(sys.argv[2], b"never sent")
"""


def test_a_producer_that_is_not_closed_reports_its_lost_bytes(bootstrap: str, admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)])
    done = subprocess.run(
        [sys.executable, "-c", _LEFT_OPEN, bootstrap, topic], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = done.stderr.splitlines()
    assert re.fullmatch(r"a Producer was not closed: \d+ bytes were not delivered and are lost\. Use .*", line)
    assert stored(bootstrap, admin, topic) == {0: []}


def test_a_table_without_keys_is_spread_over_the_partitions(bootstrap: str, admin: Admin, topic: str) -> None:
    """As with single records, the producer fills a batch for one partition, then a batch for another partition."""
    admin.create_topics([NewTopic(topic, 4, 1)])
    values = [b"%06d" % n + bytes(994) for n in range(20_000)]
    chunks = pa.chunked_array([pa.array(values[:7_000], pa.binary()), pa.array(values[7_000:], pa.binary())])
    with Producer(bootstrap, max_in_flight_requests_per_connection=1) as producer:
        producer.send_batch(topic, pa.table({"value": chunks}))
        producer.flush(60)
    found = stored(bootstrap, admin, topic)
    assert len([rows for rows in found.values() if rows]) > 1
    numbers = {partition: [int((row.value or b"")[:6]) for row in rows] for partition, rows in found.items()}
    assert all(one == sorted(one) for one in numbers.values())
    assert sorted(n for one in numbers.values() for n in one) == list(range(20_000))
