"""A leader and its address in an error's reply are used at once (KIP-951): no client asks for metadata first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest
from support.brokers import eventually

import odradek
from odradek import aio
from odradek.client import NewTopic, TopicPartition
from odradek.client.reader import PartitionReader

TOPICS = ("consumer", "producer", "reader", "aio-consumer", "aio-producer")


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    """Broker 2 leads each topic, and broker 1 is the preferred leader."""
    with odradek.Cluster(2) as made:
        with odradek.Admin(made.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(name, replica_assignments={0: [1, 2]}) for name in TOPICS])
        made.wait_until_in_sync(TOPICS)
        made.kill(1)
        eventually(lambda: all(made.leader(name) == 2 for name in TOPICS), within_s=60)
        made.start(1)
        made.wait_until_in_sync(TOPICS)
        yield made


def settings(cluster: odradek.Cluster, name: str) -> dict[str, object]:
    return {"bootstrap_servers": cluster.bootstrap_servers, "client_id": name}


def moves(cluster: odradek.Cluster, topic: str) -> Callable[[], list[str]]:
    """Lets broker 1 lead. Returns a function for the Metadata requests of the client since then."""
    assert cluster.leader(topic) == 2
    for broker in cluster.brokers:
        cluster.faults(broker).delay("Metadata", 0.001, times=None, client_id=topic)
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.elect_leaders("preferred", [TopicPartition(topic, 0)])
    for broker in cluster.brokers:
        with odradek.Admin(cluster.address(broker)) as admin:
            eventually(lambda admin=admin: admin.describe_topics([topic])[topic].partitions[0].leader == 1)
    return lambda: [
        one.api for broker in cluster.brokers for one in cluster.faults(broker).fired if one.client_id == topic
    ]


def send(cluster: odradek.Cluster, topic: str, *values: bytes) -> None:
    with odradek.Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        for value in values:
            producer.send(topic, value).result()


def test_a_consumer_goes_on_at_the_leader_that_a_reply_names(cluster: odradek.Cluster) -> None:
    topic = "consumer"
    send(cluster, topic, b"0", b"1")
    with odradek.Consumer(**settings(cluster, topic), auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        seen: list[bytes] = []
        eventually(lambda: seen.extend(one.value for one in consumer.poll(0.5).records()) or len(seen) == 2)
        # A fetch ahead could reach broker 1 before broker 1 knows that it leads. Its reply would name broker 2.
        consumer.pause([TopicPartition(topic, 0)])
        asked = moves(cluster, topic)
        consumer.resume([TopicPartition(topic, 0)])
        send(cluster, topic, b"2", b"3")
        eventually(lambda: seen.extend(one.value for one in consumer.poll(0.5).records()) or len(seen) >= 4)
    assert seen == [b"0", b"1", b"2", b"3"]
    assert asked() == []


def test_a_producer_sends_to_the_leader_that_a_reply_names(cluster: odradek.Cluster) -> None:
    topic = "producer"
    with odradek.Producer(**settings(cluster, topic), linger_ms=0) as producer:
        assert producer.send(topic, b"0").result().offset == 0
        asked = moves(cluster, topic)
        assert [producer.send(topic, b"%d" % one).result().offset for one in (1, 2)] == [1, 2]
    assert asked() == []


def test_a_low_level_reader_reads_from_the_leader_that_a_reply_names(cluster: odradek.Cluster) -> None:
    topic = "reader"
    send(cluster, topic, b"0", b"1")
    reader = PartitionReader(odradek.client.ClientConfig(**settings(cluster, topic)), TopicPartition(topic, 0))
    assert reader.fetch(0).next_offset == 2
    asked = moves(cluster, topic)
    send(cluster, topic, b"2")
    assert [row.value for row in reader.read_rows(0, 3)] == [b"0", b"1", b"2"]
    assert asked() == []


def test_the_clients_of_an_event_loop_do_the_same(cluster: odradek.Cluster) -> None:
    async def consume() -> None:
        topic = "aio-consumer"
        async with aio.Consumer(**settings(cluster, topic), auto_offset_reset="earliest") as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            await consumer.seek(TopicPartition(topic, 0), 0)
            await asyncio.to_thread(send, cluster, topic, b"0")
            seen: list[bytes] = []
            while len(seen) < 1:
                seen += [one.value for one in (await consumer.poll(0.5)).records()]
            consumer.pause([TopicPartition(topic, 0)])
            asked = await asyncio.to_thread(moves, cluster, topic)
            consumer.resume([TopicPartition(topic, 0)])
            await asyncio.to_thread(send, cluster, topic, b"1")
            while len(seen) < 2:
                seen += [one.value for one in (await consumer.poll(0.5)).records()]
            assert seen == [b"0", b"1"]
            assert asked() == []

    async def produce() -> None:
        topic = "aio-producer"
        async with aio.Producer(**settings(cluster, topic), linger_ms=0) as producer:
            assert (await producer.send_and_wait(topic, b"0")).offset == 0
            asked = await asyncio.to_thread(moves, cluster, topic)
            assert (await producer.send_and_wait(topic, b"1")).offset == 1
            assert asked() == []

    asyncio.run(asyncio.wait_for(consume(), 60))
    asyncio.run(asyncio.wait_for(produce(), 60))
