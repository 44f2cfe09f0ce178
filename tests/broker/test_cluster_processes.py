"""The processes of a cluster: kill -9 and SIGSTOP of its nodes while topics are created at every broker."""

from __future__ import annotations

import os
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually
from support.cluster_processes import ClusterProcesses
from support.logs import batch

from odradek.core.errors import ErrorCode
from odradek.testing.process import BrokerFailed
from odradek.wire.api_keys import (
    ALTER_CLIENT_QUOTAS,
    CREATE_TOPICS,
    DESCRIBE_CLIENT_QUOTAS,
    DESCRIBE_CONFIGS,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    UNREGISTER_BROKER,
)

NONE = ErrorCode.none
TOPIC = 2
_ids: defaultdict[int, list[int]] = defaultdict(list)
"""The producer ids of each cluster."""


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


def is_served(cluster: ClusterProcesses, name: str, index: int) -> bool:
    """Produces a record to the leader of a partition, and returns whether that succeeds. On a busy machine, the session
    of a leader may end at any time: then the partition has no leader until it is back."""
    leader = dict(topics_at(cluster, 1)[name][1])[index]
    return leader > 0 and produce(cluster, name, index, leader) is NONE


def alter(wire: Wire, name: str, value: int) -> ErrorCode:
    change = {"name": "retention.ms", "config_operation": 0, "value": str(value)}
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": [change]}]
    reply = wire.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
    code: ErrorCode = reply.responses[0].error_code
    return code


def limit(wire: Wire, name: str, value: int) -> ErrorCode:
    entry = {
        "entity": [{"entity_type": "user", "entity_name": name}],
        "ops": [{"key": "producer_byte_rate", "value": float(value), "remove": False}],
    }
    reply = wire.call(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    code: ErrorCode = reply.entries[0].error_code
    return code


def new_id(wire: Wire) -> int:
    """Returns a producer id, or −1 if there is none now."""
    message = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}
    reply = wire.call(INIT_PRODUCER_ID, 4, message)
    return int(reply.producer_id) if reply.error_code is NONE else -1


class Changes:
    """Threads that change the catalogue, one at each broker: a topic, its setting, a quota of a user of its name, and
    a producer id, again and again. ``topics``, ``settings``, ``quotas``: those with a reply."""

    def __init__(self, cluster: ClusterProcesses, brokers: tuple[int, ...], prefix: str) -> None:
        self.topics: list[str] = []
        self.settings: dict[str, str] = {}
        self.quotas: dict[str, float] = {}
        self.ids: list[int] = []
        self._is_over = threading.Event()
        self._cluster, self._prefix = cluster, prefix
        self._threads = [threading.Thread(target=self._run, args=(broker,)) for broker in brokers]

    def __enter__(self) -> Changes:
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
                self._change(wire, name, 1_000 + number)
                wire.socket.close()
            except OSError:
                continue

    def _change(self, wire: Wire, name: str, value: int) -> None:
        if (producer_id := new_id(wire)) >= 0:
            self.ids.append(producer_id)
        if create(wire, name) not in (NONE, ErrorCode.topic_already_exists):
            return
        self.topics.append(name)
        if alter(wire, name, value) is NONE:
            self.settings[name] = str(value)
        if limit(wire, name, value) is NONE:
            self.quotas[name] = float(value)

    def wait_for_more(self, count: int = 2) -> None:
        wanted = len(self.topics) + count
        eventually(lambda: len(self.topics) >= wanted, within_s=40, what="topics are created")


def settings_at(cluster: ClusterProcesses, broker: int, names: list[str]) -> dict[str, str]:
    wire = cluster.wire(broker)
    resources = [
        {"resource_type": TOPIC, "resource_name": name, "configuration_keys": ["retention.ms"]} for name in names
    ]
    message = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    reply = wire.call(DESCRIBE_CONFIGS, 4, message)
    wire.socket.close()
    return {row.resource_name: row.configs[0].value for row in reply.results}


def quotas_at(cluster: ClusterProcesses, broker: int) -> dict[str, float]:
    wire = cluster.wire(broker)
    reply = wire.call(DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})
    wire.socket.close()
    return {row.entity[0].entity_name: row.values[0].value for row in reply.entries or ()}


def check_agreement(cluster: ClusterProcesses, changes: Changes) -> None:
    """Waits until both brokers have the same topics, with leaders for all partitions, and all acknowledged changes."""

    def agree() -> bool:
        found = [topics_at(cluster, broker) for broker in cluster.brokers]
        has_leaders = all(leader > 0 for _, leaders in found[0].values() for _, leader in leaders)
        return found[0] == found[1] and has_leaders and set(changes.topics) <= found[0].keys()

    eventually(agree, within_s=40, what="both brokers have all acknowledged topics")
    topics = topics_at(cluster, 1)
    assert len({topic_id for topic_id, _ in topics.values()}) == len(topics)
    for broker in cluster.brokers:
        assert settings_at(cluster, broker, list(changes.settings)) == changes.settings
        found = quotas_at(cluster, broker)
        assert {name: found.get(name) for name in changes.quotas} == changes.quotas
    _ids[id(cluster)] += changes.ids
    assert len(set(_ids[id(cluster)])) == len(_ids[id(cluster)]), "no producer id is given twice"
    name = changes.topics[-1]
    for index, _ in topics[name][1]:
        eventually(lambda index=index: is_served(cluster, name, index), within_s=40, what=name)


def kill_controller(cluster: ClusterProcesses, changes: Changes) -> None:
    cluster.controller.kill()
    cluster.controller.start()
    changes.wait_for_more()


def kill_broker(cluster: ClusterProcesses, changes: Changes) -> None:
    cluster.brokers[1].kill()
    cluster.start(1)
    changes.wait_for_more(4)


def pause_broker(cluster: ClusterProcesses, changes: Changes) -> None:
    """A broker is paused until it is fenced. Changes at the other one go on."""
    pid = cluster.brokers[1].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        topic = changes.topics[0]

        def is_fenced() -> bool:
            return 1 not in [leader for _, leader in topics_at(cluster, 2)[topic][1]]

        eventually(is_fenced, what="broker 1 is fenced")
        changes.wait_for_more()
    finally:
        os.kill(pid, signal.SIGCONT)
    changes.wait_for_more()


def pause_controller(cluster: ClusterProcesses, changes: Changes) -> None:
    """Without the controller no change is acknowledged, and records are."""
    pid = cluster.controller.pid
    assert pid is not None

    def led() -> list[tuple[int, int]]:
        return [(index, leader) for index, leader in topics_at(cluster, 1)[changes.topics[0]][1] if leader > 0]

    eventually(led, what="a partition with a leader")
    index, leader = led()[0]
    os.kill(pid, signal.SIGSTOP)
    try:
        before = len(changes.topics)
        for _ in range(20):
            assert produce(cluster, changes.topics[0], index, leader) is NONE
        assert len(changes.topics) - before <= 2, "only replies that were under way"
    finally:
        os.kill(pid, signal.SIGCONT)
    changes.wait_for_more(4)


FAULTS = [kill_controller, kill_broker, pause_broker, pause_controller]
MORE_ROUNDS = 24


@pytest.mark.parametrize("fault", FAULTS)
def test_acknowledged_changes_are_on_every_node(
    cluster: ClusterProcesses, fault: Callable[[ClusterProcesses, Changes], None]
) -> None:
    play(cluster, fault, "a")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(MORE_ROUNDS))
@pytest.mark.parametrize("fault", FAULTS)
def test_acknowledged_changes_are_on_every_node_in_many_rounds(
    cluster: ClusterProcesses, fault: Callable[[ClusterProcesses, Changes], None], number: int
) -> None:
    play(cluster, fault, f"m{number}")


def play(cluster: ClusterProcesses, fault: Callable[[ClusterProcesses, Changes], None], prefix: str) -> None:
    brokers = (2,) if fault is pause_broker else (1, 2)
    with Changes(cluster, brokers, f"{prefix}-{fault.__name__}") as changes:
        changes.wait_for_more()
        fault(cluster, changes)
    check_agreement(cluster, changes)


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
