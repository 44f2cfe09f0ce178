"""Consumers that say their rack read at the follower there (KIP-392): librdkafka, and ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

import odradek
from odradek.broker.settings.config import RACK_AWARE_SELECTOR, BrokerConfig
from odradek.core.errors import ConfigError

SETTINGS = {
    "broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300,
    "replica.selector.class": RACK_AWARE_SELECTOR,
}  # fmt: skip
SIZE, COUNT = 50_000, 40
READ_ALL = {"auto.offset.reset": "earliest", "client.rack": "b", "enable.auto.commit": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    """A topic whose leader is in rack a, with 2 MB of records."""
    with odradek.Cluster(3, racks=["a", "b", "c"], config=SETTINGS) as made:
        admin = AdminClient({"bootstrap.servers": made.bootstrap_servers})
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result()
        write(made, 0, COUNT)
        yield made


def write(cluster: odradek.Cluster, first: int, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap_servers})
    for number in range(first, first + count):
        producer.produce("t", str(number).ljust(SIZE))
    assert producer.flush(60) == 0


def read(consumer: Any, count: int, is_over: Callable[[], bool] = lambda: True) -> list[int]:
    """Reads some records. Then it polls until the test has seen enough."""
    found: list[int] = []
    while len(found) < count or not is_over():
        message = consumer.poll(0.2 if len(found) == count else 60)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(int(message.value()))
    return found


def test_librdkafka_reads_at_the_follower_in_its_rack_and_at_the_leader_without_one(cluster: odradek.Cluster) -> None:
    """Its statistics have the bytes that each broker has sent."""
    received: dict[int, int] = {}

    def note(text: str) -> None:
        for broker in json.loads(text)["brokers"].values():
            received[broker["nodeid"]] = broker["rxbytes"]

    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "near", "stats_cb": note}
    consumer = confluent_kafka.Consumer(settings | READ_ALL | {"statistics.interval.ms": 200})
    consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
    all_bytes = SIZE * COUNT
    # The statistics follow the records: the last of them may not be counted yet.
    assert read(consumer, COUNT, lambda: received.get(2, 0) > all_bytes) == list(range(COUNT))
    assert received[1] < SIZE
    cluster.kill(2)
    write(cluster, COUNT, 3)
    assert read(consumer, 3) == [COUNT, COUNT + 1, COUNT + 2], "from the leader"
    consumer.close()
    cluster.start(2)
    cluster.wait_until_in_sync()


def test_our_consumer_reads_at_the_follower_in_its_rack(cluster: odradek.Cluster) -> None:
    """Injected faults, which delay nothing, note the fetches that each broker gets from it."""
    for broker in (1, 2):
        cluster.faults(broker).delay("Fetch", 0.0, times=None, client_id="ours")
    near = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "ours", "max.partition.fetch.bytes": 200_000}
    found: list[int] = []
    with odradek.Consumer(near | READ_ALL) as consumer:
        consumer.assign([odradek.TopicPartition("t", 0)])
        for record in consumer:
            found.append(int(record.value or b""))
            if len(found) == COUNT:
                break
    assert found == list(range(COUNT))
    at_leader, at_follower = (len(cluster.faults(broker).fired) for broker in (1, 2))
    assert at_leader == 1
    assert at_follower > 1
    cluster.clear_faults()


def test_another_selector_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"replica\.selector\.class: this broker has no class 'com\.example\.Mine'"):
        BrokerConfig({"replica.selector.class": "com.example.Mine"})
    assert not BrokerConfig({"replica.selector.class": ""}).replica_selector_class
