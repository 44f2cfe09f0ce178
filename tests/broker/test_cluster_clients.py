"""Clients of a cluster: topics whose leaders are spread, groups at several coordinators, and a broker that is away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from support.brokers import eventually
from support.cluster_processes import ClusterProcesses

PARTITIONS, RECORDS = 6, 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {"offsets.topic.num.partitions": "6", "group.initial.rebalance.delay.ms": "0"}
    with ClusterProcesses(tmp_path_factory.mktemp("clients"), 3, settings) as made:
        yield made


def create(cluster: ClusterProcesses, name: str, broker: int = 1) -> None:
    """Creates a topic at one broker."""
    admin = AdminClient({"bootstrap.servers": cluster.brokers[broker].bootstrap})
    admin.create_topics([NewTopic(name, PARTITIONS, 1)], operation_timeout=10)[name].result(20)


def leaders(cluster: ClusterProcesses, name: str, broker: int) -> list[int]:
    metadata = AdminClient({"bootstrap.servers": cluster.brokers[broker].bootstrap}).list_topics(name, timeout=10)
    return [metadata.topics[name].partitions[index].leader for index in range(PARTITIONS)]


def publish(cluster: ClusterProcesses, name: str, *, start: int = 0, patience_s: float = 20) -> None:
    failures: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 1})
    for number in range(start, start + RECORDS):
        producer.produce(
            name, str(number).encode(), partition=number % PARTITIONS,
            on_delivery=lambda error, message: failures.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(patience_s) == 0
    assert failures == []


def read(cluster: ClusterProcesses, name: str, group: str, count: int) -> list[int]:
    """Reads and commits records as the only member of a group."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": group, "auto.offset.reset": "earliest",
         "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([name])
    found: list[int] = []

    def poll() -> bool:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found.append(int(message.value() or b""))
        return len(found) >= count

    eventually(poll, within_s=30, what=f"{count} records")
    consumer.commit(asynchronous=False)
    consumer.close()
    return sorted(found)


def test_records_and_groups_are_spread_over_the_brokers(cluster: ClusterProcesses) -> None:
    create(cluster, "spread", broker=2)
    assert set(leaders(cluster, "spread", 2)) == {1, 2, 3}
    publish(cluster, "spread")
    groups = [f"g{number}" for number in range(6)]
    for group in groups:
        assert read(cluster, "spread", group, RECORDS) == list(range(RECORDS))
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups(groups)
    coordinators = {described[group].result(10).coordinator.id for group in groups}
    assert len(coordinators) > 1, "the groups have several coordinators"
    publish(cluster, "spread", start=RECORDS)
    assert read(cluster, "spread", "g0", RECORDS) == list(range(RECORDS, 2 * RECORDS)), "the commits count"
    listed = {one.group_id for one in admin.list_consumer_groups().result(10).valid}
    assert set(groups) <= listed


def test_all_brokers_say_the_same(cluster: ClusterProcesses) -> None:
    create(cluster, "same", broker=3)
    entry = ConfigEntry("retention.ms", "77000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "same", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": cluster.brokers[1].bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(10)
    seen = []
    for broker in cluster.brokers.values():
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        described = admin.describe_cluster().result(10)
        asked = ConfigResource(ResourceType.TOPIC, "same")
        found = admin.describe_configs([asked])[asked].result(10)
        nodes = sorted((node.id, node.host, node.port, node.rack) for node in described.nodes)
        seen.append((described.cluster_id, nodes, found["retention.ms"].value))
    assert seen[0] == seen[1] == seen[2]
    ports = {number: int(broker.bootstrap.split(":")[1]) for number, broker in cluster.brokers.items()}
    assert seen[0][1:] == ([(number, "127.0.0.1", port, f"r{number}") for number, port in ports.items()], "77000")


def test_clients_go_on_while_a_broker_is_away_and_after_it_is_back(cluster: ClusterProcesses) -> None:
    """Records for the partitions of the broker wait in the producer. The others are served meanwhile."""
    create(cluster, "away")
    publish(cluster, "away")
    other = next(index for index, leader in enumerate(leaders(cluster, "away", 2)) if leader != 1)
    cluster.brokers[1].kill()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(publish, cluster, "away", start=RECORDS, patience_s=40)
        consumer = Consumer(
            {"bootstrap.servers": cluster.bootstrap, "group.id": "x", "auto.offset.reset": "earliest",
             "enable.auto.commit": False}  # the group's coordinator may be the broker that is away
        )  # fmt: skip
        consumer.assign([TopicPartition("away", other, 0)])
        found: list[int] = []

        def poll() -> bool:
            found.extend(int(message.value() or b"") for message in consumer.consume(100, 0.2) if not message.error())
            return len(found) >= 2 * RECORDS // PARTITIONS

        eventually(poll, within_s=30, what="the records of another broker")
        consumer.close()
        cluster.start(1)
        waiting.result(60)
    assert read(cluster, "away", "all", 2 * RECORDS) == list(range(2 * RECORDS))
