"""A node with both roles in a simulated world: its own broker, one that joins, restarts, and what it refuses."""

from __future__ import annotations

from typing import Any, cast

import pytest
from support.cluster_nodes import SESSION_MS, SHORT, described, logs_of
from support.combined_nodes import SimulatedCombined
from support.logs import batch
from support.simulated_brokers import SimulatedBroker, SimulatedNetwork
from support.simulated_controller import CONTROLLER
from support.simulated_node import HOME

from odradek.broker.handlers import handler_files
from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.wire.api_keys import (
    CREATE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    FIND_COORDINATOR,
    INCREMENTAL_ALTER_CONFIGS,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
)  # fmt: skip

NONE = ErrorCode.none


@pytest.fixture
def node() -> SimulatedCombined:
    made = SimulatedCombined(SHORT)
    made.run_until_joined()
    return made


def create(node: Any, name: str, *leaders: int, **where: bool) -> Any:
    assignments = [{"partition_index": at, "broker_ids": [leader]} for at, leader in enumerate(leaders)]
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": []}
    message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    return node.call(CREATE_TOPICS, 7, message, **where).topics[0].error_code


def produce(node: Any, topic: str, partition: int) -> Any:
    row = {"name": topic, "partition_data": [{"index": partition, "records": batch(3)}]}
    message = {"transactional_id": None, "acks": -1, "timeout": 9000, "topic_data": [row]}
    return node.call(PRODUCE, 9, message).responses[0].partition_responses[0].error_code


def join(node: SimulatedCombined, number: int = 1) -> SimulatedBroker:
    broker = SimulatedBroker(SimulatedNetwork(node), number, SHORT)
    broker.run_until_joined()
    return broker


def test_one_node_serves_clients_and_has_one_metadata_log(node: SimulatedCombined) -> None:
    assert create(node, "t", CONTROLLER, CONTROLLER) is NONE
    assert [produce(node, "t", at) for at in (0, 1)] == [NONE, NONE]
    assert logs_of(cast(Any, node)) == {"t-0", "t-1"}
    names = [name for name in node.files.list(HOME) if name.startswith("__cluster_metadata")]
    assert names == ["__cluster_metadata-0"]
    registered = node.broker.catalog.registered_brokers()
    assert {number: one.is_fenced for number, one in registered.items()} == {CONTROLLER: False}
    ids = {node.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1,
                                           "producer_epoch": -1}).producer_id for _ in range(3)}  # fmt: skip
    assert len(ids) == 3
    assert min(ids) >= 0


def test_a_topic_of_the_controllers_listener_is_served_at_once(node: SimulatedCombined) -> None:
    assert create(node, "t", CONTROLLER, at_controller=True) is NONE
    assert produce(node, "t", 0) is NONE


def test_each_kind_of_listener_has_its_own_apis(node: SimulatedCombined) -> None:
    def keys(at_controller: bool) -> set[int]:
        reply = node.call(18, 0, {}, at_controller=at_controller)
        return {one.api_key for one in reply.api_keys}

    assert keys(False) == {one.key for one in handler_files("client")}
    assert keys(True) == {one.key for one in handler_files("controller")}
    asked = {"include_cluster_authorized_operations": False, "endpoint_type": 2, "include_fenced_brokers": True}
    controllers = node.call(DESCRIBE_CLUSTER, 2, asked, at_controller=True)
    assert [(one.broker_id, one.port) for one in controllers.brokers] == [(CONTROLLER, 9093)]
    brokers = node.call(DESCRIBE_CLUSTER, 2, asked | {"endpoint_type": 1})
    assert [(one.broker_id, one.host, one.port) for one in brokers.brokers] == [(CONTROLLER, f"b{CONTROLLER}", 9092)]
    with pytest.raises(ConnectionError):
        node.call(PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout": 1, "topic_data": []}, at_controller=True)


def test_settings_of_brokers_are_checked_as_at_a_broker_and_as_at_a_controller(node: SimulatedCombined) -> None:
    join(node)

    def change(broker: str, **where: bool) -> ErrorCode:
        config = {"name": "message.max.bytes", "config_operation": 0, "value": "2000000"}
        resources = [{"resource_type": 4, "resource_name": broker, "configs": [config]}]
        reply = node.call(INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False}, **where)
        code: ErrorCode = reply.responses[0].error_code
        return code

    assert change(str(CONTROLLER)) is NONE
    assert change("1") is ErrorCode.invalid_request, "a broker knows only its own settings"
    assert change("1", at_controller=True) is NONE
    assert change("7", at_controller=True) is ErrorCode.broker_id_not_registered
    assert node.broker.config.message_max_bytes == 2_000_000
    asked = {"resource_type": 4, "resource_name": str(CONTROLLER), "configuration_keys": ["message.max.bytes"]}
    message = {"resources": [asked], "include_synonyms": False, "include_documentation": False}
    assert node.call(DESCRIBE_CONFIGS, 4, message).results[0].configs[0].value == "2000000"


def test_a_broker_joins_and_follows(node: SimulatedCombined) -> None:
    other = join(node)
    assert create(node, "t", CONTROLLER, 1) is NONE
    assert create(other, "u", 1, CONTROLLER) is NONE, "forwarded to the node with both roles"
    node.world.advance(500)
    assert described(other.broker.catalog.state) == described(node.broker.catalog.state)
    assert [produce(node, "t", 0), produce(other, "t", 1), produce(other, "u", 0), produce(node, "u", 1)] == [NONE] * 4
    assert [produce(node, "t", 1), produce(other, "t", 0)] == [ErrorCode.not_leader_or_follower] * 2
    asked = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    assert {one.node_id for one in node.call(METADATA, 12, asked).brokers} == {1, CONTROLLER}
    assert {one.node_id for one in other.call(METADATA, 12, asked).brokers} == {1, CONTROLLER}


def test_groups_have_a_coordinator(node: SimulatedCombined) -> None:
    asked = {"key_type": 0, "coordinator_keys": ["g"]}
    for _ in range(100):
        found = node.call(FIND_COORDINATOR, 4, asked).coordinators[0]
        if not found.error_code:
            break
        node.world.advance(50)
    assert (found.error_code, found.node_id, found.port) == (NONE, CONTROLLER, 9092)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restart_keeps_records_and_metadata(node: SimulatedCombined, how: str) -> None:
    other = join(node)
    assert create(node, "t", CONTROLLER, 1) is NONE
    node.world.advance(500)
    assert [produce(node, "t", 0), produce(other, "t", 1)] == [NONE, NONE]
    epoch = node.role.membership.lifecycle.epoch
    getattr(node, how)()
    if how == "stop":
        assert checkpoints.read_clean_epoch(HOME, node.files) == epoch
    stopped_ms = node.world.now_ms
    assert produce(other, "t", 1) is NONE, "live brokers go on"
    node.begin()
    node.run_until_joined()
    if how == "kill":
        assert node.world.now_ms - stopped_ms >= SESSION_MS - 500, "the session of the former incarnation ends first"
    assert node.role.membership.lifecycle.epoch > epoch
    node.world.advance(3 * SESSION_MS)
    assert produce(node, "t", 0) is NONE
    partition = node.broker.partition("t", 0)
    assert partition is not None
    assert partition.log_end_offset == 6
    assert create(other, "u", CONTROLLER) is NONE
    assert produce(node, "u", 0) is NONE
    assert described(other.broker.catalog.state) == described(node.broker.catalog.state)
    assert not node.broker.catalog.registered_brokers()[1].is_fenced


def test_a_power_cut_loses_no_acknowledged_topic(node: SimulatedCombined) -> None:
    for number in range(5):
        assert create(node, f"t{number}", CONTROLLER) is NONE
    node.kill()
    node.files.power_cut(lambda: 0.0)
    node.begin()
    node.run_until_joined()
    assert {topic.name for topic in node.broker.catalog.topics()} == {f"t{number}" for number in range(5)}
    node.world.advance(SESSION_MS)
    assert [produce(node, f"t{number}", 0) for number in range(5)] == [NONE] * 5


def test_topics_that_come_before_the_broker_serves_get_their_logs(node: SimulatedCombined) -> None:
    """The controller serves while its own broker waits for the end of its former session, and a second kill comes."""
    node.kill()
    node.begin()
    node.world.advance(100)
    assert not node.role.joined.resolved
    assert create(node, "early", CONTROLLER, at_controller=True) is NONE
    node.kill()
    node.begin()
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    assert produce(node, "early", 0) is NONE


def test_a_stop_before_the_broker_serves_leaves_logs_and_checkpoints(node: SimulatedCombined) -> None:
    assert create(node, "t", CONTROLLER) is NONE
    assert produce(node, "t", 0) is NONE
    node.kill()
    node.begin()
    node.world.advance(100)
    assert not node.role.has_loaded()
    node.stop()
    node.begin()
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    partition = node.broker.partition("t", 0)
    assert partition is not None
    assert partition.log_end_offset == 3


def test_a_snapshot_has_the_state_of_both_roles() -> None:
    node = SimulatedCombined(SHORT | {"metadata.log.max.record.bytes.between.snapshots": "2000"})
    node.run_until_joined()
    for number in range(40):
        assert create(node, f"t{number}", CONTROLLER) is NONE
    node.world.advance(1_000)
    assert node.broker.metadata_log.snapshots
    before = described(node.broker.catalog.state)
    node.kill()
    node.begin()
    node.run_until_joined()
    node.world.advance(SESSION_MS)
    assert len(described(node.broker.catalog.state)) == len(before)
    assert produce(node, "t39", 0) is NONE
