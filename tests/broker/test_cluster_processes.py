"""The processes of a cluster: kill -9 and SIGSTOP of its nodes while topics are created at every broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.cluster_processes import ClusterProcesses
from support.logs import batch

from odradek.core.errors import ErrorCode
from odradek.testing.process import BrokerFailed, BrokerProcess
from odradek.wire.api_keys import CREATE_TOPICS, INIT_PRODUCER_ID, METADATA, PRODUCE, UNREGISTER_BROKER

NONE = ErrorCode.none


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    with ClusterProcesses(tmp_path_factory.mktemp("cluster"), 2) as made:
        yield made


def create(wire: Wire, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    reply = wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    code: ErrorCode = reply.topics[0].error_code
    return code


def topics_at(cluster: ClusterProcesses, broker: int) -> dict[str, tuple[Any, ...]]:
    """Topic → its id and the leaders of its partitions, as a broker knows them."""
    wire = cluster.wire(broker)
    message = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    reply = wire.call(METADATA, 12, message)
    wire.socket.close()
    return {
        topic.name: (topic.topic_id, tuple(sorted((one.partition_index, one.leader_id) for one in topic.partitions)))
        for topic in reply.topics
    }


def produce(cluster: ClusterProcesses, name: str, index: int, leader: int) -> ErrorCode:
    wire = cluster.wire(leader)
    row = {"name": name, "partition_data": [{"index": index, "records": batch(1)}]}
    message = {"transactional_id": None, "acks": -1, "timeout": 9000, "topic_data": [row]}
    code: ErrorCode = wire.call(PRODUCE, 9, message).responses[0].partition_responses[0].error_code
    wire.socket.close()
    return code


class Creations:
    """Threads that create topics, one at each broker, one after another. ``acknowledged``: those with a reply."""

    def __init__(self, cluster: ClusterProcesses, brokers: tuple[int, ...], prefix: str) -> None:
        self.acknowledged: list[str] = []
        self._is_over = threading.Event()
        self._cluster, self._prefix = cluster, prefix
        self._threads = [threading.Thread(target=self._run, args=(broker,)) for broker in brokers]

    def __enter__(self) -> Creations:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self, broker: int) -> None:
        number = 0
        while not self._is_over.wait(0.02):
            number += 1
            name = f"{self._prefix}-{broker}-{number}"
            try:
                wire = self._cluster.wire(broker)
                code = create(wire, name)
                wire.socket.close()
            except OSError:
                continue
            if code in (NONE, ErrorCode.topic_already_exists):
                self.acknowledged.append(name)

    def wait_for_more(self, count: int = 2) -> None:
        wanted = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= wanted, what="topics are created")


def check_agreement(cluster: ClusterProcesses, acknowledged: list[str]) -> None:
    """Waits until both brokers have the same topics, with leaders for all partitions, and all acknowledged ones."""

    def agree() -> bool:
        found = [topics_at(cluster, broker) for broker in cluster.brokers]
        has_leaders = all(leader > 0 for _, leaders in found[0].values() for _, leader in leaders)
        return found[0] == found[1] and has_leaders and set(acknowledged) <= found[0].keys()

    eventually(agree, what="both brokers have all acknowledged topics")
    topics = topics_at(cluster, 1)
    assert len({topic_id for topic_id, _ in topics.values()}) == len(topics)
    name = acknowledged[-1]
    for index, leader in topics[name][1]:
        eventually(lambda index=index, leader=leader: produce(cluster, name, index, leader) is NONE, what=name)


def kill_and_start(node: BrokerProcess, start: Callable[[], object]) -> None:
    node.kill()
    start()


def test_changes_survive_kill_9_of_a_broker_and_of_the_controller(cluster: ClusterProcesses) -> None:
    with Creations(cluster, (1, 2), "k") as creations:
        creations.wait_for_more()
        kill_and_start(cluster.controller, cluster.controller.start)
        creations.wait_for_more()
        kill_and_start(cluster.brokers[1], lambda: cluster.start(1))
        creations.wait_for_more(4)
    check_agreement(cluster, creations.acknowledged)


def test_a_paused_broker_is_fenced_and_comes_back(cluster: ClusterProcesses) -> None:
    pid = cluster.brokers[1].pid
    assert pid is not None
    with Creations(cluster, (2,), "s") as creations:
        creations.wait_for_more()
        os.kill(pid, signal.SIGSTOP)
        try:
            topic = creations.acknowledged[0]
            eventually(
                lambda: 1 not in [leader for _, leader in topics_at(cluster, 2)[topic][1]], what="broker 1 is fenced"
            )
            creations.wait_for_more()
        finally:
            os.kill(pid, signal.SIGCONT)
        creations.wait_for_more()
    check_agreement(cluster, creations.acknowledged)


def test_a_paused_controller_delays_changes_and_loses_none(cluster: ClusterProcesses) -> None:
    pid = cluster.controller.pid
    assert pid is not None
    with Creations(cluster, (1, 2), "p") as creations:
        creations.wait_for_more()
        os.kill(pid, signal.SIGSTOP)
        try:
            before = len(creations.acknowledged)
            topic = creations.acknowledged[0]
            (index, leader), *_ = topics_at(cluster, 1)[topic][1]
            for _ in range(20):
                assert produce(cluster, topic, index, leader) is NONE
            assert len(creations.acknowledged) - before <= 2, "only replies that were under way"
        finally:
            os.kill(pid, signal.SIGCONT)
        creations.wait_for_more(4)
    check_agreement(cluster, creations.acknowledged)


def test_producer_ids_of_all_brokers_are_different(cluster: ClusterProcesses) -> None:
    message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}

    def new_id(broker: int) -> int:
        wire = cluster.wire(broker)
        reply = wire.call(INIT_PRODUCER_ID, 4, message)
        wire.socket.close()
        assert reply.error_code is NONE
        return int(reply.producer_id)

    ids = [new_id(broker) for broker in (1, 2, 1, 2)]
    assert len(set(ids)) == len(ids)


def test_an_unregistered_broker_ends_with_one_line_and_a_stop_is_clean(cluster: ClusterProcesses) -> None:
    """The last test: it ends the brokers."""
    first, second = cluster.brokers.values()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    wire = cluster.wire(2)

    def unregister() -> bool:
        code: ErrorCode = wire.call(UNREGISTER_BROKER, 0, {"broker_id": 1}).error_code
        return code in (NONE, ErrorCode.broker_id_not_registered)

    eventually(unregister, what="broker 1 is unregistered")
    os.kill(first.pid, signal.SIGCONT)
    eventually(lambda: first.failed, what="broker 1 has ended")
    assert first.process is not None
    assert first.process.returncode == 2
    last = first.log_tail().strip().splitlines()[-1]
    assert "broker 1 with the broker epoch" in last
    assert "is not registered any more" in last
    assert second.stop() == 0
    assert cluster.controller.stop() == 0


def test_a_broker_that_waits_for_its_controller_can_be_stopped(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, 1)
    broker = cluster.brokers[1]

    def start() -> None:
        with pytest.raises(BrokerFailed):
            broker.start()

    starting = threading.Thread(target=start)
    starting.start()
    eventually(lambda: broker.running and "cannot be reached" in broker.log_tail(), what="the broker waits")
    process = broker.process
    assert process is not None
    os.kill(process.pid, signal.SIGTERM)
    starting.join(20)
    assert process.returncode == 0
    cluster.kill()
