"""Our client with three nodes of Apache Kafka: partitions move, leaders change, coordinators die."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from support.apache_cluster import ApacheCluster
from support.brokers import Wire, eventually, fetched_at

from bench.apache import Unavailable
from odradek import Admin, Consumer, Producer, TopicPartition
from odradek.client import NewTopic, PartitionReader
from odradek.client.config import as_config
from odradek.client.producer.config import ProducerConfig
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, partition_for_group
from odradek.wire.api_keys import FIND_COORDINATOR

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    try:
        running = ApacheCluster(tmp_path_factory.mktemp("nodes"))
    except Unavailable as error:
        pytest.skip(f"no Apache Kafka: {error}")
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture
def admin(cluster: ApacheCluster) -> Iterator[Admin]:
    with Admin(cluster.bootstrap) as made:
        yield made


def create(admin: Admin, topic: str, assigned: dict[int, list[int]], cluster: ApacheCluster, **config: str) -> None:
    """``assigned``: the replicas of each partition, the leader first."""
    admin.create_topics([NewTopic(topic, len(assigned), len(assigned[0]), config)])
    for number, replicas in assigned.items():
        cluster.reassign(admin, topic, replicas, number)


def fill(cluster: ApacheCluster, topic: str, values: range, partition: int = 0) -> None:
    with Producer(cluster.bootstrap) as producer:
        for value in values:
            producer.send(topic, b"%d" % value, partition=partition)
        producer.flush(60)


def values_of(polled: Any) -> list[int]:
    return [int(record.value) for record in polled.records()]


@pytest.mark.claim(56, part="a")
def test_a_partition_that_moves_keeps_its_offsets(cluster: ApacheCluster, admin: Admin, topic: str, group: str) -> None:
    create(admin, topic, {0: [1]}, cluster)
    fill(cluster, topic, range(10))
    tp = TopicPartition(topic, 0)
    with Consumer(cluster.bootstrap, group_id=group, enable_auto_commit=False) as one:
        one.commit({tp: 4})
    cluster.reassign(admin, topic, [2])
    found = cluster.partition(admin, topic)
    assert (found.leader, found.replicas) == (2, (2,))
    assert {key: row.offset for key, row in admin.list_group_offsets(group).items()} == {tp: 4}
    settings = {"group_id": group, "enable_auto_commit": False, "auto_offset_reset": "none"}
    with Consumer(cluster.bootstrap, **settings) as again:
        again.subscribe([topic])
        assert values_of(eventually(lambda: again.poll(1), within_s=60)) == list(range(4, 10))


@pytest.mark.claim(56, part="b")
def test_latest_misses_the_first_records_of_a_new_partition(
    cluster: ApacheCluster, admin: Admin, topic: str, group: str
) -> None:
    """A new partition has no committed offset. Records arrive before the consumers know the partition. Only
    ``earliest`` reads them."""
    create(admin, topic, {0: [1]}, cluster)
    seen: dict[str, list[int]] = {"latest": [], "earliest": []}
    consumers = {
        reset: Consumer(
            cluster.bootstrap, group_id=f"{group}-{reset}", auto_offset_reset=reset, enable_auto_commit=False,
            metadata_max_age_ms=8_000,
        )
        for reset in seen
    }  # fmt: skip
    try:
        for one in consumers.values():
            one.subscribe([topic])
            eventually(lambda one=one: (one.poll(0.1), len(one.assignment()) == 1)[1], within_s=60)
        admin.create_partitions({topic: 2})
        added = TopicPartition(topic, 1)
        # A node that does not know the new partition yet may reply without it.
        eventually(lambda: [row.leader > 0 for row in admin.describe_topics([topic])[topic].partitions] == [True] * 2)
        fill(cluster, topic, range(3), partition=1)
        assert all(added not in one.assignment() for one in consumers.values())
        for one in consumers.values():
            assert one.committed([added]) == {added: None}

        def both_have_it() -> bool:
            for reset, one in consumers.items():
                seen[reset] += values_of(one.poll(0.1))
            return all(added in one.assignment() for one in consumers.values())

        eventually(both_have_it, within_s=60)
        assert consumers["latest"].position(added) == 3
        fill(cluster, topic, range(3, 6), partition=1)
        eventually(lambda: both_have_it() and all(5 in values for values in seen.values()), within_s=60)
        assert seen == {"latest": [3, 4, 5], "earliest": [0, 1, 2, 3, 4, 5]}
    finally:
        for one in consumers.values():
            one.close()


def coordinator_of(cluster: ApacheCluster, group: str) -> int:
    """The coordinator that a running node reports; -1 if there is none yet."""
    node = next(node for node in cluster.nodes.values() if node.pids)
    with Wire(node.bootstrap) as wire:
        found = wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group]}).coordinators[0]
    return int(found.node_id) if found.error_code == ErrorCode.none else -1


@pytest.mark.claim(60)
def test_the_coordinator_is_the_leader_of_the_group_s_partition(
    cluster: ApacheCluster, admin: Admin, topic: str
) -> None:
    """Checks one group for each partition of the offsets topic, and one of them again after a leader was killed."""
    create(admin, topic, {0: [1, 2, 3]}, cluster)
    eventually(lambda: coordinator_of(cluster, "g") > 0, within_s=60)
    count = len(admin.partitions(OFFSETS_TOPIC))
    groups = {partition_for_group(f"g-{n}", count): f"g-{n}" for n in range(100)}
    assert len(groups) == count
    leaders = {number: cluster.partition(admin, OFFSETS_TOPIC, number).leader for number in groups}
    assert set(leaders.values()) == {1, 2, 3}
    for number, group in groups.items():
        assert coordinator_of(cluster, group) == leaders[number] == admin.coordinator(group).node_id
    number, group = next((number, group) for number, group in groups.items() if leaders[number] == 3)
    tp = TopicPartition(topic, 0)
    with Consumer(cluster.bootstrap, group_id=group, enable_auto_commit=False) as one:
        one.commit({tp: 7})
        cluster.nodes[3].kill()
        try:
            one.commit({tp: 8})
            heir = cluster.partition(admin, OFFSETS_TOPIC, number).leader
            assert heir in (1, 2)
            # A node that does not know of the election yet still reports the dead node.
            eventually(lambda: coordinator_of(cluster, group) == heir)
            with Admin(cluster.bootstrap) as fresh:  # ``admin`` has cached the coordinator
                assert fresh.coordinator(group).node_id == heir
            eventually(lambda: admin.coordinator(group).node_id == heir)
            assert one.committed([tp])[tp].offset == 8
        finally:
            cluster.nodes[3].start(180)
            wait_until_in_sync(cluster, admin, OFFSETS_TOPIC, number)


def wait_until_in_sync(cluster: ApacheCluster, admin: Admin, topic: str, number: int = 0) -> None:
    """Waits until all replicas are in sync again."""
    eventually(lambda: len(cluster.partition(admin, topic, number).isr) == 3, within_s=90)


@pytest.mark.claim(94)
def test_leader_and_followers_are_found_and_followers_refuse_a_fetch(
    cluster: ApacheCluster, admin: Admin, topic: str
) -> None:
    """Metadata has the leader and the replicas. The followers refuse the fetch. After a leader change, the client
    still has the old leader cached, and finds the new one."""
    create(admin, topic, {0: [2, 3, 1]}, cluster)
    fill(cluster, topic, range(10))
    found = cluster.partition(admin, topic)
    assert (found.leader, found.replicas, set(found.isr)) == (2, (2, 3, 1), {1, 2, 3})
    refused = (ErrorCode.not_leader_or_follower, 0)
    assert fetched_at(cluster.nodes[1].bootstrap, topic) == fetched_at(cluster.nodes[3].bootstrap, topic) == refused
    code, size = fetched_at(cluster.nodes[2].bootstrap, topic)
    assert (code, size > 0) == (ErrorCode.none, True)
    tp = TopicPartition(topic, 0)
    settings = {"auto_offset_reset": "earliest", "max_poll_records": 5, "metadata_max_age_ms": 3_600_000}
    with Consumer(cluster.bootstrap, **settings) as one:
        one.assign([tp])
        assert values_of(eventually(lambda: one.poll(1), within_s=60)) == list(range(5))
        cluster.reassign(admin, topic, [3])
        assert fetched_at(cluster.nodes[2].bootstrap, topic)[0] is not ErrorCode.none
        fill(cluster, topic, range(10, 15))
        rest: list[int] = []
        eventually(lambda: (rest.extend(values_of(one.poll(0.5))), len(rest) >= 10)[1], within_s=60)
        assert rest == list(range(5, 15))


@pytest.mark.claim(96)
def test_leader_changes_during_a_read_cause_neither_gaps_nor_repeats(
    cluster: ApacheCluster, admin: Admin, topic: str
) -> None:
    """Elections, and a leader that is killed and restarted, while records are written and read."""
    create(admin, topic, {0: [1, 2, 3]}, cluster, **{"min.insync.replicas": "2"})
    stop = threading.Event()
    sent: list[int] = []

    def send() -> None:
        with Producer(cluster.bootstrap, linger_ms=1, delivery_timeout_ms=120_000) as producer:
            while not stop.is_set():
                sent.append(len(sent))
                producer.send(topic, b"%d" % sent[-1], partition=0)
                if len(sent) % 100 == 0:
                    stop.wait(0.02)
            producer.flush(120)

    sender = threading.Thread(target=send)
    leaders: list[int] = []
    read: list[int] = []
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", max_poll_records=100) as one:
        one.assign([TopicPartition(topic, 0)])
        sender.start()
        try:
            for leader in (2, 3, 1):
                upto = len(read) + 1_000
                eventually(lambda upto=upto: (read.extend(values_of(one.poll(0.5))), len(read) > upto)[1], within_s=60)
                move(cluster, admin, topic, leader)
                leaders.append(cluster.partition(admin, topic).leader)
            upto = len(read) + 1_000
            eventually(lambda upto=upto: (read.extend(values_of(one.poll(0.5))), len(read) > upto)[1], within_s=60)
            cluster.nodes[1].kill()
            eventually(lambda: cluster.partition(admin, topic).leader in (2, 3), within_s=60)
            upto = len(read) + 5_000  # more than the consumer has already fetched
            eventually(lambda upto=upto: (read.extend(values_of(one.poll(0.5))), len(read) > upto)[1], within_s=90)
            leaders.append(cluster.partition(admin, topic).leader)
        finally:
            stop.set()
            sender.join(120)
            if not cluster.nodes[1].pids:
                cluster.nodes[1].start(180)
                wait_until_in_sync(cluster, admin, topic)
        eventually(lambda: (read.extend(values_of(one.poll(0.5))), len(read) >= len(sent))[1], within_s=60)
    assert leaders[:3] == [2, 3, 1]
    assert leaders[3] in (2, 3)
    assert read == list(range(len(sent)))


def move(cluster: ApacheCluster, admin: Admin, topic: str, leader: int) -> None:
    cluster.reassign(admin, topic, [leader, *({1, 2, 3} - {leader})])


@pytest.mark.claim(108, part="ab")
def test_with_retries_a_killed_leader_loses_no_record(cluster: ApacheCluster, admin: Admin, topic: str) -> None:
    """kill -9 of the leader in the middle of 4,000 sends. Each send is acknowledged in the end, and stored once."""
    create(admin, topic, {0: [2, 1, 3]}, cluster, **{"min.insync.replicas": "2"})
    count = 4_000
    acknowledged: list[tuple[int, Exception | None]] = []
    unset = ProducerConfig()
    assert (unset.retries, unset.delivery_timeout_ms) == (2_147_483_647, 120_000)

    def on_delivery(record: Any, error: Exception | None) -> None:
        acknowledged.append((record.offset, error))

    with Producer(cluster.bootstrap, linger_ms=0, batch_size=200) as producer:
        for number in range(count):
            producer.send(topic, b"%d" % number, partition=0, on_delivery=on_delivery)
            if number == count // 2:
                eventually(lambda: len(acknowledged) > count // 4, within_s=60)
                cluster.nodes[2].kill()
        producer.flush(120)
    assert acknowledged == [(offset, None) for offset in range(count)]
    assert cluster.partition(admin, topic).leader in (1, 3)
    cluster.nodes[2].start(180)
    wait_until_in_sync(cluster, admin, topic)
    cluster.elect(admin, topic, 2)
    reader = PartitionReader(as_config(cluster.bootstrap), TopicPartition(topic, 0))
    assert [int(row.value or b"") for row in reader.read_rows(0, count)] == list(range(count))


@pytest.mark.claim(108, part="a", by="by clients")
def test_with_retries_of_confluent_kafka_a_killed_leader_loses_no_record(
    cluster: ApacheCluster, admin: Admin, topic: str
) -> None:
    create(admin, topic, {0: [3, 1, 2]}, cluster, **{"min.insync.replicas": "2"})
    count = 4_000
    acknowledged: list[tuple[int, Any]] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True, "linger.ms": 0, "log_level": 2}
    )
    for number in range(count):
        producer.produce(
            topic,
            b"%d" % number,
            partition=0,
            on_delivery=lambda error, record: acknowledged.append((record.offset(), error)),
        )
        producer.poll(0)
        if number == count // 2:
            eventually(lambda: (producer.poll(0.1), len(acknowledged) > count // 4)[1])
            cluster.nodes[3].kill()
    assert producer.flush(120) == 0
    assert acknowledged == [(offset, None) for offset in range(count)]
    cluster.nodes[3].start(180)
    wait_until_in_sync(cluster, admin, topic)
    reader = PartitionReader(as_config(cluster.bootstrap), TopicPartition(topic, 0))
    assert [int(row.value or b"") for row in reader.read_rows(0, count)] == list(range(count))
