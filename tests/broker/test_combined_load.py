"""A node with both roles whose broker takes long to open its logs: its controller goes on meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from support.cluster_nodes import SESSION_MS, SHORT, described, logs_of
from support.combined_nodes import SimulatedCombined
from support.simulated_controller import CONTROLLER
from support.simulated_node import HOME
from test_combined_node import NONE, create, join, produce

from odradek.broker.loop.scheduler import Steps
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.catalog.state import Topic
from odradek.core.deferred import Deferred
from odradek.core.ids import TopicPartition
from odradek.wire.api_keys import CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS, INCREMENTAL_ALTER_CONFIGS


@pytest.fixture
def node() -> SimulatedCombined:
    made = SimulatedCombined(SHORT)
    made.run_until_joined()
    return made


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> list[Deferred[None]]:
    """The node that is started next opens no log before the last promise is resolved."""
    gates: list[Deferred[None]] = []
    open_topic = LogDirectory.open_topic

    def slow(self: LogDirectory, topic: Topic, *more: Any) -> Steps[Any]:
        if self.node_id == CONTROLLER and gates:
            yield gates[-1]
        return (yield from open_topic(self, topic, *more))

    monkeypatch.setattr(LogDirectory, "open_topic", slow)
    return gates


def restart_slowly(node: SimulatedCombined, gates: list[Deferred[None]]) -> None:
    """Ends and starts the node, until its broker opens its logs."""
    node.kill()
    gates.append(Deferred())
    node.begin()
    for _ in range(4_000):
        if node.role.has_loaded():
            break
        node.world.advance(5)
    assert node.role.has_loaded()
    node.world.advance(200)
    assert not node.role.joined.resolved


def make(node: Any, name: str, *replicas: list[int]) -> Any:
    """Creates a topic with these replicas of its partitions, at the controller. A fenced broker may be a replica, but
    not the only one."""
    assignments = [{"partition_index": at, "broker_ids": brokers} for at, brokers in enumerate(replicas)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}
    message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    return node.call(CREATE_TOPICS, 7, message, at_controller=True).topics[0].error_code


def delete(node: Any, name: str) -> Any:
    message = {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000}
    return node.call(DELETE_TOPICS, 6, message, at_controller=True).responses[0].error_code


def test_requests_and_heartbeats_are_answered_while_the_broker_opens_its_logs(
    node: SimulatedCombined, gate: list[Deferred[None]]
) -> None:
    other = join(node)
    assert create(node, "t", CONTROLLER, 1) is NONE
    node.world.advance(500)
    assert produce(node, "t", 0) is NONE
    restart_slowly(node, gate)
    assert make(node, "at-controller", [1, CONTROLLER]) is NONE
    assert create(other, "forwarded", 1) is NONE
    assert produce(other, "forwarded", 0) is NONE
    node.world.advance(4 * SESSION_MS)
    assert not node.role.joined.resolved, "it still opens its logs"
    assert not node.broker.catalog.registered_brokers()[1].is_fenced, "the heartbeats of the other broker were heard"
    assert node.broker.controller.waiting == 0
    gate[-1].resolve(None)
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    assert produce(node, "t", 0) is NONE
    assert set(node.broker.partitions) == {("t", 0), ("at-controller", 0)}
    assert described(other.broker.catalog.state) == described(node.broker.catalog.state)


def test_what_changes_while_the_broker_opens_its_logs_reaches_its_logs(
    node: SimulatedCombined, gate: list[Deferred[None]]
) -> None:
    other = join(node)
    for name in ("gone", "again", "set"):
        assert make(node, name, [CONTROLLER]) is NONE
        assert produce(node, name, 0) is NONE
    assert make(node, "grown", [1, CONTROLLER]) is NONE
    restart_slowly(node, gate)
    assert delete(node, "gone") is NONE
    assert delete(node, "again") is NONE
    assert make(node, "again", [1, CONTROLLER], [1, CONTROLLER]) is NONE
    assert make(node, "short", [1, CONTROLLER]) is NONE
    assert delete(node, "short") is NONE
    more = [{"broker_ids": [1, CONTROLLER]}] * 2
    grown = [{"name": "grown", "count": 3, "assignments": more}]
    message = {"topics": grown, "timeout": 10_000, "validate_only": False}
    assert other.call(CREATE_PARTITIONS, 3, message).results[0].error_code is NONE
    change = [{"name": "max.message.bytes", "config_operation": 0, "value": "777"}]
    resources = [{"resource_type": 2, "resource_name": "set", "configs": change}]
    message = {"resources": resources, "validate_only": False}
    assert other.call(INCREMENTAL_ALTER_CONFIGS, 1, message).responses[0].error_code is NONE
    gate[-1].resolve(None)
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    assert set(node.broker.partitions) == {
        ("again", 0), ("again", 1), ("grown", 0), ("grown", 1), ("grown", 2), ("set", 0)
    }  # fmt: skip
    partition = node.broker.partitions["set", 0]
    assert partition.log.config.max_message_bytes == 777
    assert partition.log_end_offset == 3
    node.world.advance(120_000)
    assert node.broker.partitions["again", 0].log_end_offset == 0, "it has no records of the former topic"
    assert produce(node, "set", 0) is NONE
    assert {name for name in logs_of(node) if "delete" not in name} == {  # type: ignore[arg-type]
        str(TopicPartition(*key)) for key in node.broker.partitions
    }
    assert not [name for name in node.files.list(HOME) if name.endswith("-stray")]


def test_a_stop_and_a_kill_while_the_broker_opens_its_logs(node: SimulatedCombined, gate: list[Deferred[None]]) -> None:
    assert create(node, "t", CONTROLLER) is NONE
    assert produce(node, "t", 0) is NONE
    join(node)
    restart_slowly(node, gate)
    assert make(node, "late", [1, CONTROLLER]) is NONE
    restart_slowly(node, gate)
    gate[-1].resolve(None)
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    assert set(node.broker.partitions) == {("t", 0), ("late", 0)}
    assert produce(node, "t", 0) is NONE
    partition = node.broker.partition("t", 0)
    assert partition is not None
    assert partition.log_end_offset == 6
