"""``odradek.Cluster``: coordinators, the controller, the clock of all nodes, and the faults of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition as ConfluentPartition
from support.brokers import eventually, fetched_at, unique

import odradek
from odradek.client import NewTopic, TopicPartition
from odradek.client.errors import BrokerUnreachable, UnknownTopic
from odradek.core.errors import ErrorCode
from odradek.testing.broker import BrokerFailed
from odradek.testing.cluster import SHORT_SESSIONS
from odradek.testing.process import BrokerProcess

GROUP = "billing"


@pytest.fixture(scope="module")
def shared() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(3) as made:
        yield made


@pytest.fixture
def cluster(shared: odradek.Cluster) -> Iterator[odradek.Cluster]:
    yield shared
    for node in shared.nodes:
        shared.resume(node)
    shared.start()
    for node in shared.nodes:
        shared.faults(node).clear()


@pytest.fixture
def topic(cluster: odradek.Cluster) -> str:
    name = unique("t")
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(name, 1)])
    return name


def commit(cluster: odradek.Cluster, topic: str, offset: int, group: str = GROUP) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group})
    consumer.commit(offsets=[ConfluentPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def committed(cluster: odradek.Cluster, topic: str, group: str = GROUP) -> int | None:
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        found = admin.list_group_offsets(group).get(TopicPartition(topic, 0))
    return None if found is None else found.offset


@pytest.mark.claim(60)
@pytest.mark.claim(112)
def test_the_coordinator_leads_the_partition_of_the_group_and_its_death_loses_no_offset(
    cluster: odradek.Cluster, topic: str
) -> None:
    commit(cluster, topic, 7)
    partition = partition_of(GROUP)
    cluster.wait_until_in_sync(["__consumer_offsets"])
    first = cluster.coordinator(GROUP)
    assert first is not None
    assert first == cluster.leader("__consumer_offsets", partition)
    cluster.kill(first)
    eventually(lambda: cluster.coordinator(GROUP) not in (first, None), within_s=60)
    eventually(lambda: cluster.coordinator(GROUP) == cluster.leader("__consumer_offsets", partition), within_s=20)
    assert committed(cluster, topic) == 7
    commit(cluster, topic, 8)
    assert committed(cluster, topic) == 8


def partition_of(group: str) -> int:
    """The size of Java's hash of the name, modulo the 50 partitions."""
    value = 0
    for letter in group:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return min(value, (1 << 32) - value) % 50


def test_a_coordinator_is_of_a_group_or_of_a_transactional_id(cluster: odradek.Cluster) -> None:
    with pytest.raises(TypeError, match="takes a group or transactional_id="):
        cluster.coordinator()
    with pytest.raises(TypeError, match="takes a group or transactional_id="):
        cluster.coordinator("a", transactional_id="b")
    number: Any = 5
    with pytest.raises(TypeError, match="expected a name, not 5"):
        cluster.coordinator(number)


def test_there_is_a_controller_while_it_works(cluster: odradek.Cluster) -> None:
    assert cluster.controller == "controller"
    cluster.pause("controller")
    assert cluster.controller is None
    cluster.resume("controller")
    assert cluster.controller == "controller"
    cluster.kill("controller")
    assert cluster.controller is None
    cluster.start("controller")
    assert cluster.controller == "controller"


def test_each_broker_has_faults_of_its_own(cluster: odradek.Cluster, topic: str) -> None:
    leader = cluster.leader(topic)
    assert leader is not None
    other = leader % 3 + 1
    cluster.faults(leader).error("Produce", "NOT_ENOUGH_REPLICAS", times=2, topic=topic)
    cluster.faults(other).error("Produce", "NOT_ENOUGH_REPLICAS", topic=topic)
    with odradek.Producer(cluster.bootstrap_servers, linger_ms=0) as producer:
        assert producer.send(topic, b"x").result().offset == 0
    assert [one.api for one in cluster.faults(leader).fired] == ["Produce", "Produce"]
    assert cluster.faults(other).fired == []
    assert len(cluster.faults(other).pending) == 1


def test_the_controller_has_faults(cluster: odradek.Cluster) -> None:
    cluster.faults("controller").drop("BrokerHeartbeat", times=1)
    eventually(lambda: cluster.faults("controller").fired, within_s=30)
    assert cluster.running()


def test_one_clock_expires_offsets_and_members_and_fences_no_broker(cluster: odradek.Cluster, topic: str) -> None:
    group = unique("g")
    commit(cluster, topic, 3, group)
    sizes = cluster.log_sizes()
    before = cluster.clock.now_ms()
    cluster.clock.advance(days=8)  # offsets.retention.minutes is 7 days
    assert cluster.clock.now_ms() - before >= 8 * 86_400_000
    eventually(lambda: committed(cluster, topic, group) is None, within_s=60)
    assert fences(cluster, sizes) == []


def fences(cluster: odradek.Cluster, sizes: Mapping[int | str, int]) -> list[str]:
    text = cluster.log_tail("controller", sizes["controller"])
    return [line for line in text.splitlines() if "fence" in line.lower()]


def test_the_clock_ends_the_session_of_a_member(cluster: odradek.Cluster, topic: str) -> None:
    group, generations = unique("g"), []
    settings = {
        "bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "session.timeout.ms": 45_000,
        "heartbeat.interval.ms": 40_000,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic], on_assign=lambda *_: generations.append(1))
    eventually(lambda: consumer.poll(0.1) or generations, within_s=30)
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        assert len(admin.describe_groups([group])[group].members) == 1
        cluster.clock.advance(minutes=1)
        eventually(lambda: not admin.describe_groups([group])[group].members, within_s=30)
    consumer.close()


def test_a_paused_node_and_a_dead_one_follow_the_clock(cluster: odradek.Cluster) -> None:
    cluster.pause(2)
    cluster.kill(3)
    before = cluster.clock.now_ms()
    cluster.clock.advance(hours=5)
    cluster.resume(2)
    cluster.start(3)
    for node in cluster.nodes:
        alone = cluster._nodes[100 if node == "controller" else int(node)].command("now_ms")
        assert alone - before >= 5 * 3_600_000, node


def test_wrong_nodes_and_topics_are_refused_at_once_with_those_that_exist(
    cluster: odradek.Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_nodes: list[Callable[[int], object]] = [
        cluster.kill, cluster.pause, cluster.faults, cluster.address, cluster.isolate, cluster.hold_back
    ]  # fmt: skip
    for call in of_nodes:
        with pytest.raises(ValueError, match="there is no node 4: the nodes are 1, 2, 3 and 'controller'"):
            call(4)
        for equal_to_1 in (True, 1.0):
            with pytest.raises(ValueError, match=f"there is no node {equal_to_1}"):
                call(cast("int", equal_to_1))
    monkeypatch.setattr("odradek.client.cluster.UNKNOWN_TOPIC_GRACE_MS", 600_000)  # the calls do not wait for a topic
    for call in (cluster.leader, lambda name: cluster.wait_until_in_sync([name])):
        with pytest.raises(UnknownTopic, match=rf"nope.*the topics are .*{topic}"):
            call("nope")
    with pytest.raises(TypeError, match="the partition is a whole number, not '0'"):
        cluster.leader(topic, cast("int", "0"))
    with pytest.raises(ValueError, match="has no partition 9"):
        cluster.leader(topic, 9)
    assert cluster.running()


def test_a_broker_is_not_started_without_the_controller(cluster: odradek.Cluster) -> None:
    """The node would wait for ``initial.broker.registration.timeout.ms``, a minute."""
    cluster.kill("controller")
    cluster.kill(2)
    with pytest.raises(
        BrokerFailed, match=r'broker 2 cannot start without the controller: start\("controller"\) first'
    ):
        cluster.start(2)
    cluster.start("controller")
    cluster.start(2)
    assert cluster.running()


def test_a_list_that_lacks_a_dead_broker_says_which_and_how_long(cluster: odradek.Cluster) -> None:
    with odradek.Admin(cluster.bootstrap_servers, default_api_timeout_ms=1_000) as admin:
        admin.list_groups()
        cluster.kill(2)
        for list_all, what in ((admin.list_groups, "groups"), (admin.list_transactions, "transactions")):
            with pytest.raises(BrokerUnreachable, match=f"only broker 2 has its {what}, and the other 2 have answered"):
                list_all()
        cluster.start(2)
        assert admin.list_groups() == admin.list_groups()


def test_a_killed_broker_is_back_after_a_short_session(cluster: odradek.Cluster) -> None:
    """The default session of Kafka is 9 s."""
    cluster.kill(2)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (cluster.start(2), done.set()), daemon=True)
    thread.start()
    assert done.wait(8)
    thread.join()


def test_a_cluster_has_the_session_that_is_set() -> None:
    cluster = odradek.Cluster(1, config={"broker.session.timeout.ms": 6000})
    try:
        assert cluster._nodes[1].config["broker.session.timeout.ms"] == "6000"
        assert SHORT_SESSIONS["broker.session.timeout.ms"] == "3000"
    finally:
        cluster.close()


def test_all_nodes_start_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = odradek.Cluster(3)
    begun = threading.Barrier(4, timeout=60)
    with monkeypatch.context() as patch:
        patch.setattr(BrokerProcess, "start", lambda self: begun.wait())
        cluster.start()
    cluster.close()


def test_a_controller_that_does_not_start_ends_the_start_of_the_brokers(tmp_path: Path) -> None:
    """They would wait for it for a minute. The error is that of the controller."""
    cluster = odradek.Cluster(3, data_dir=tmp_path)
    try:
        (tmp_path / "controller" / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=another\n")
        begun = time.monotonic()
        with pytest.raises(BrokerFailed) as failure:
            cluster.start()
        assert "belongs to node.id 7" in str(failure.value)
        assert time.monotonic() < begun + 30
        assert [node for node in cluster.nodes if cluster.running(node)] == []
    finally:
        cluster.close()


@pytest.mark.claim(94)
def test_leader_and_followers_are_found_and_followers_refuse_a_fetch(cluster: odradek.Cluster) -> None:
    """As tests/client/test_three_nodes.py has it for Apache Kafka. The consumer keeps its metadata for an hour, so it
    learns of the new leader from the refusals of the old one."""
    topic = unique("t")
    tp = TopicPartition(topic, 0)
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, replica_assignments=[[2, 3, 1]])])
        with odradek.Producer(cluster.bootstrap_servers) as producer:
            for number in range(10):
                producer.send(topic, b"%d" % number, partition=0)
        (found,) = admin.describe_topics([topic])[topic].partitions
        assert (found.leader, found.replicas, set(found.isr)) == (2, (2, 3, 1), {1, 2, 3})
        refused = (ErrorCode.not_leader_or_follower, 0)
        assert fetched_at(cluster.address(1), topic) == fetched_at(cluster.address(3), topic) == refused
        code, size = fetched_at(cluster.address(2), topic)
        assert (code, size > 0) == (ErrorCode.none, True)
        settings = {"auto_offset_reset": "earliest", "max_poll_records": 5, "metadata_max_age_ms": 3_600_000}
        with odradek.Consumer(cluster.bootstrap_servers, **settings) as one:
            one.assign([tp])
            read = [int(record.value) for record in eventually(lambda: one.poll(1).records())]
            assert read == list(range(5))
            cluster.stop(2)  # hands its partitions over
            assert cluster.leader(topic) in (1, 3)
            cluster.start(2)
            assert fetched_at(cluster.address(2), topic) == refused
            with odradek.Producer(cluster.bootstrap_servers) as producer:
                for number in range(10, 15):
                    producer.send(topic, b"%d" % number, partition=0)
            eventually(lambda: (read.extend(int(r.value) for r in one.poll(0.5).records()), len(read) >= 15)[1])
            assert read == list(range(15))
