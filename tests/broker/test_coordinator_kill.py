"""Processes: the coordinator of a group is killed, and the group goes on with the same offsets at the next one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from support.brokers import Wire, eventually

import odradek
from odradek.client import NewTopic
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import FIND_COORDINATOR

SETTINGS = {"broker.session.timeout.ms": 2_000, "broker.heartbeat.interval.ms": 200, "offsets.topic.num.partitions": 5}
RECORDS = 40
WITHIN_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(brokers=3, config=SETTINGS) as made:
        yield made


def coordinator(cluster: odradek.Cluster, group: str) -> int:
    """Returns the coordinator that a live broker names; −1 without one."""
    asked = next(broker for broker in cluster.brokers if cluster.running(broker))
    with contextlib.suppress(OSError), Wire(cluster.address(asked)) as wire:
        found = wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]
        return int(found.node_id) if found.error_code is ErrorCode.none else -1
    return -1


def consumer(cluster: odradek.Cluster, group: str, protocol: str) -> Consumer:
    own = {"group.protocol": "consumer"} if protocol == "consumer" else {"session.timeout.ms": 30_000}
    return Consumer({
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "socket.timeout.ms": 10_000, **own,
    })  # fmt: skip


def read(one: Consumer, count: int) -> list[int]:
    """Polls until there are so many records. Returns their offsets."""
    found: list[int] = []

    def has_all() -> bool:
        message = one.poll(0.5)
        if message is not None and message.error() is None:
            found.append(message.offset())
        return len(found) == count

    eventually(has_all, within_s=WITHIN_S)
    return found


def committed(cluster: odradek.Cluster, group: str, topic: str) -> int:
    """Returns the committed offset, as another client of the group sees it."""
    one = consumer(cluster, group, "classic")
    found: list[int] = []

    def is_known() -> bool:
        with contextlib.suppress(KafkaException):
            (partition,) = one.committed([TopicPartition(topic, 0)], timeout=10)
            if partition.error is None:
                found.append(partition.offset)
        return bool(found)

    try:
        eventually(is_known, within_s=WITHIN_S)
    finally:
        one.close()
    return found[0]


def commit(one: Consumer) -> None:
    """Commits until the coordinator has acknowledged it."""

    def is_done() -> bool:
        with contextlib.suppress(KafkaException):
            one.commit(asynchronous=False)
            return True
        return False

    eventually(is_done, within_s=WITHIN_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.claim(112)
def test_a_killed_coordinator_loses_no_committed_offset(cluster: odradek.Cluster, protocol: str) -> None:
    """A live consumer of librdkafka reads on without a gap or a repeat, and commits at the next coordinator."""
    topic = group = f"kept-{protocol}"
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, 1, 3, {"min.insync.replicas": "2"})])
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode())
    assert producer.flush(WITHIN_S) == 0
    one = consumer(cluster, group, protocol)
    one.subscribe([topic])
    assert read(one, 10) == list(range(10))
    commit(one)
    assert committed(cluster, group, topic) == 10
    cluster.wait_until_in_sync()
    killed = coordinator(cluster, group)
    cluster.kill(killed)
    eventually(lambda: coordinator(cluster, group) not in (killed, -1), within_s=WITHIN_S)
    assert committed(cluster, group, topic) == 10
    assert read(one, 10) == list(range(10, 20))
    commit(one)
    one.close()
    assert committed(cluster, group, topic) == 20
    cluster.start(killed)
    cluster.wait_until_in_sync()
    assert committed(cluster, group, topic) == 20
    again = consumer(cluster, group, protocol)
    again.subscribe([topic])
    assert read(again, 20) == list(range(20, RECORDS))
    again.close()
