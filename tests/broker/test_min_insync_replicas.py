"""The ISR shrinks below min.insync.replicas while a request with acks=all waits: what its client gets, and what stays
in the log."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from support.brokers import eventually
from support.logs import T0, batch, sequenced
from support.replicated_nodes import NONE, ReplicatedNodes, bytes_below_watermark
from support.simulated_controller import BlockingWire

import odradek
from odradek.batches.encode import encode_batch
from odradek.broker.loop.workers import SMALL_MEMORY_BYTES, Reservation
from odradek.client import NewTopic
from odradek.client.producer.engine import DeliveryFailed
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import PRODUCE

THREE = (1, 2, 3)
AFTER_APPEND = ErrorCode.not_enough_replicas_after_append


def large_batch() -> bytes:
    """A compressed batch, which the broker checks in steps that need memory."""
    value = random.Random(1).randbytes(600_000)
    return encode_batch([SimpleRecord(b"k", value, T0)], now_ms=T0, compression="lz4")


class WaitingRequest:
    """A request with records for two partitions. Those of partition 0 are in the log and replicated. Those of
    partition 1 wait for memory, which this broker needs for other requests until ``go_on``."""

    def __init__(self, nodes: ReplicatedNodes, first: bytes, timeout_ms: int = 500) -> None:
        self._taken: Reservation = nodes.brokers[1].broker.workers.small.reserve(SMALL_MEMORY_BYTES)
        self._wire = BlockingWire(nodes.brokers[1], "client")
        rows = [{"index": 0, "records": first}, {"index": 1, "records": large_batch()}]
        topics = [{"name": "t", "partition_data": rows}]
        message = {"transactional_id": None, "acks": -1, "timeout": timeout_ms, "topic_data": topics}
        self._sent = self._wire.send(PRODUCE, 9, message)

    def go_on(self) -> list[tuple[ErrorCode, int]]:
        """Returns the code and the base offset of each partition."""
        assert not self._wire.has_reply(0.05)
        self._taken.release()
        reply = self._wire.receive(PRODUCE, 9, self._sent)
        return [(part.error_code, part.base_offset) for part in reply.responses[0].partition_responses]


def lose_followers(nodes: ReplicatedNodes) -> None:
    for number in (2, 3):
        nodes.brokers[number].kill()
    for index in (0, 1):
        nodes.run_until_in_sync(1, index=index)


def regain_followers(nodes: ReplicatedNodes) -> None:
    for number in (2, 3):
        nodes.brokers[number].begin()
    for index in (0, 1):
        nodes.run_until_in_sync(*THREE, index=index)
        nodes.run_until_equal(index=index)


@pytest.fixture
def nodes() -> ReplicatedNodes:
    made = ReplicatedNodes()
    made.create("t", THREE, THREE, min_insync_replicas="2")
    return made


def test_replicated_records_of_a_waiting_request_stay_when_replicas_leave(nodes: ReplicatedNodes) -> None:
    waiting = WaitingRequest(nodes, batch(3))
    nodes.run_until(lambda: nodes.partition(1).high_watermark == 3)
    lose_followers(nodes)
    first, second = waiting.go_on()
    assert first == (AFTER_APPEND, 0)
    assert second == (ErrorCode.request_timed_out, 0), "its records are in the log of the leader alone"
    assert nodes.produce(1) == (ErrorCode.not_enough_replicas, -1), "a request that comes now appends nothing"
    row = nodes.fetch(1, 0)
    assert (row.error_code, row.high_watermark, bytes(row.records)) == (
        NONE,
        3,
        bytes_below_watermark(nodes.partition(1)),
    )
    assert (nodes.partition(1, index=1).log_end_offset, nodes.fetch(1, 0, index=1).high_watermark) == (1, 0)
    regain_followers(nodes)
    for index, end in ((0, 3), (1, 1)):
        assert {nodes.partition(number, index=index).log_end_offset for number in THREE} == {end}
        assert len({bytes_below_watermark(nodes.partition(number, index=index)) for number in THREE}) == 1


def test_a_request_is_answered_without_an_error_if_enough_replicas_stay(nodes: ReplicatedNodes) -> None:
    waiting = WaitingRequest(nodes, batch(3))
    nodes.run_until(lambda: nodes.partition(1).high_watermark == 3)
    nodes.brokers[3].kill()
    for index in (0, 1):
        nodes.run_until_in_sync(1, 2, index=index)
    assert waiting.go_on() == [(NONE, 0), (NONE, 0)]


@pytest.mark.parametrize("idempotent", [True, False])
def test_a_batch_that_is_sent_again_is_there_once_if_the_producer_is_idempotent(nodes, *, idempotent: bool) -> None:
    data = sequenced(0, 3) if idempotent else batch(3)
    waiting = WaitingRequest(nodes, data)
    nodes.run_until(lambda: nodes.partition(1).high_watermark == 3)
    lose_followers(nodes)
    assert waiting.go_on()[0] == (AFTER_APPEND, 0)
    assert nodes.produce(1, data=data)[0] is ErrorCode.not_enough_replicas
    regain_followers(nodes)
    assert nodes.produce(1, data=data) == (NONE, 0 if idempotent else 3)
    nodes.run_until_equal()
    assert {nodes.partition(number).log_end_offset for number in THREE} == {3 if idempotent else 6}


# --- librdkafka on real brokers -----------------------------------------------------------------------------------

SETTINGS = {
    "broker.session.timeout.ms": 20_000, "replica.lag.time.max.ms": 1_500, "min.insync.replicas": 2,
    "replica.fetch.wait.max.ms": 500,
}  # fmt: skip
WITHIN_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(brokers=3, config=SETTINGS) as made:
        yield made


@pytest.fixture
def topic(cluster: odradek.Cluster, request: pytest.FixtureRequest) -> str:
    """A topic with one partition, led by broker 1, with all brokers in sync."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, replica_assignments=[list(THREE)])])
    cluster.wait_until_in_sync()
    return name


class Sender:
    """A producer of librdkafka with one request in flight. ``answers``: what each record is answered with, an offset
    or the code of an error."""

    def __init__(self, cluster: odradek.Cluster, topic: str, **settings: object) -> None:
        self.topic = topic
        self.answers: list[int] = []
        self._producer = Producer({
            "bootstrap.servers": cluster.bootstrap_servers, "acks": "all", "linger.ms": 0, "request.timeout.ms": 1_000,
            "retry.backoff.ms": 100, "max.in.flight": 1, **settings,
        })  # fmt: skip

    def send(self, value: str) -> None:
        self._producer.produce(self.topic, value, partition=0, on_delivery=self._note)

    def answer(self) -> int:
        """Waits for the answers to all records, and returns the last one."""
        assert self._producer.flush(WITHIN_S) == 0
        return self.answers[-1]

    def answered(self, value: str) -> int:
        self.send(value)
        return self.answer()

    def _note(self, error: KafkaError | None, sent: Message) -> None:
        self.answers.append(error.code() if error is not None else sent.offset())


def read_to_end(cluster: odradek.Cluster, topic: str) -> list[str]:
    reader = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "enable.partition.eof": True})
    reader.assign([TopicPartition(topic, 0, 0)])
    found: list[str] = []

    def is_at_end() -> bool:
        message = reader.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
        return message is not None and message.error() is not None

    try:
        eventually(is_at_end, within_s=WITHIN_S)
    finally:
        reader.close()
    return found


def isr(cluster: odradek.Cluster, topic: str) -> tuple[int, ...]:
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        return tuple(admin.describe_topics([topic])[topic].partitions[0].isr)


def test_librdkafka_gets_the_code_of_each_moment_and_the_record_stays(cluster: odradek.Cluster, topic: str) -> None:
    cluster.hold_back(2)
    cluster.hold_back(3)
    sender = Sender(cluster, topic, retries=0)
    sender.send("waits")
    assert sender.answer() == KafkaError.REQUEST_TIMED_OUT
    eventually(lambda: isr(cluster, topic) == (1,), within_s=WITHIN_S)
    sender.send("refused")
    assert sender.answer() == KafkaError.NOT_ENOUGH_REPLICAS
    assert read_to_end(cluster, topic) == []
    cluster.heal()
    cluster.wait_until_in_sync()
    assert read_to_end(cluster, topic) == ["waits"]


def test_an_idempotent_producer_of_librdkafka_outlasts_the_missing_replicas(cluster, topic: str) -> None:
    cluster.hold_back(2)
    cluster.hold_back(3)
    sender = Sender(cluster, topic, **{"enable.idempotence": True})
    for number in range(3):
        sender.send(str(number))
    eventually(lambda: isr(cluster, topic) == (1,), within_s=WITHIN_S)
    assert sender.answers == []
    cluster.heal()
    assert sender.answer() == 2
    cluster.wait_until_in_sync()
    assert read_to_end(cluster, topic) == ["0", "1", "2"]


@pytest.mark.parametrize("idempotent", [True, False])
def test_librdkafka_sends_a_record_again_that_was_appended(cluster, topic: str, *, idempotent: bool) -> None:
    """The error comes from a fault: librdkafka sends a request for each partition, and the next reply to it is late
    only by chance."""
    cluster.faults(1).error("Produce", AFTER_APPEND.name.upper(), times=1, when="after")
    sender = Sender(cluster, topic, **{"enable.idempotence": idempotent})
    sender.send("once")
    assert sender.answer() == (0 if idempotent else 1)
    assert read_to_end(cluster, topic) == (["once"] if idempotent else ["once", "once"])


# --- our producer ---------------------------------------------------------------------------------------------------


def refusal(servers: str, topic: str) -> str:
    """Returns why our producer did not deliver a record within two seconds."""
    with pytest.raises(DeliveryFailed) as error, odradek.Producer(servers, delivery_timeout_ms=2_000) as producer:
        producer.send(topic, b"refused")
    return str(error.value)


def test_our_producer_says_that_too_few_replicas_are_in_sync(cluster: odradek.Cluster, topic: str) -> None:
    cluster.hold_back(2)
    cluster.hold_back(3)
    assert Sender(cluster, topic, acks=1).answered("leads alone") == 0
    eventually(lambda: isr(cluster, topic) == (1,), within_s=WITHIN_S)
    assert refusal(cluster.bootstrap_servers, topic) == (
        f"records were not delivered: {topic}-0: 1 record was not delivered within delivery_timeout_ms=2000: "
        f"NOT_ENOUGH_REPLICAS: {topic}-0: fewer replicas than min.insync.replicas are in sync: start the brokers that "
        "are down"
    )
    cluster.heal()
    cluster.wait_until_in_sync()


def test_our_producer_says_that_a_partition_has_no_leader(cluster: odradek.Cluster) -> None:
    """The last test: broker 2 stays away."""
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("alone", replica_assignments=[[2]])])
    cluster.stop(2)
    assert refusal(cluster.address(1), "alone").endswith("=2000: LEADER_NOT_AVAILABLE: alone-0 has no leader now")
