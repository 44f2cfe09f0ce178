"""The node of a controller: what it keeps over restarts, and which listeners serve its requests."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from support.memory_files import MemoryFiles
from support.simulated_controller import SimulatedController
from support.simulated_node import SimulatedNode
from support.world import World

from odradek.broker.node.controller_role import ControllerRole
from odradek.catalog.features import AT_FIRST
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.core.errors import ErrorCode, StorageError

REGISTER, BEAT, CREATE_TOPICS, UNREGISTER = 62, 63, 19, 64
SESSION_MS = 2000
FEATURES_OF_A_NODE = [
    {"name": name, "min_supported_version": 0, "max_supported_version": level} for name, level in AT_FIRST.items()
]


@pytest.fixture
def controller() -> SimulatedController:
    return SimulatedController({"broker.session.timeout.ms": str(SESSION_MS)})


def catalog_of(controller: SimulatedController) -> ClusterCatalog:
    shard = controller.broker.catalog.state
    assert isinstance(shard, ClusterCatalog)
    return shard


def register(controller: SimulatedController, broker_id: int, incarnation: int = 0) -> Any:
    message = {
        "broker_id": broker_id,
        "cluster_id": controller.broker.cluster_id,
        "incarnation_id": UUID(int=broker_id * 1000 + incarnation),
        "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": 0}],
        "features": FEATURES_OF_A_NODE,
        "rack": None,
        "is_migrating_zk_broker": False,
        "log_dirs": [UUID(int=broker_id << 64)],
        "previous_broker_epoch": -1,
    }
    return controller.connect().call(REGISTER, 4, message)


def beat(controller: SimulatedController, broker_id: int, epoch: int) -> Any:
    message = {
        "broker_id": broker_id, "broker_epoch": epoch, "current_metadata_offset": 1 << 60, "want_fence": False,
        "want_shut_down": False, "offline_log_dirs": [], "cordoned_log_dirs": None,
    }  # fmt: skip
    return controller.connect().call(BEAT, 2, message)


def create(controller: SimulatedController, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    message = {"topics": [topic], "timeout": 10_000, "validate_only": False}
    code: ErrorCode = controller.connect().call(CREATE_TOPICS, 7, message).topics[0].error_code
    return code


@pytest.mark.parametrize("how", ["kill", "clean", "power"])
def test_a_restart_keeps_registrations_and_topics(controller: SimulatedController, how: str) -> None:
    epoch = register(controller, 1).broker_epoch
    assert not beat(controller, 1, epoch).is_fenced
    assert create(controller, "t") is ErrorCode.none
    before = catalog_of(controller)
    if how == "power":
        controller.node.kill()
        controller.files.power_cut(lambda: 0.0)
        controller.begin()
    else:
        controller.restart(cleanly=how == "clean")
    after = catalog_of(controller)
    assert after is not before
    assert after.nodes.brokers == before.nodes.brokers
    assert after.topics == before.topics
    assert controller.broker.quorum.epoch == 2
    assert not beat(controller, 1, epoch).is_fenced  # the incarnation goes on


def test_a_restarted_controller_fences_a_broker_that_is_gone(controller: SimulatedController) -> None:
    epoch = register(controller, 1).broker_epoch
    beat(controller, 1, epoch)
    create(controller, "t")
    controller.restart()
    controller.world.advance(SESSION_MS // 2)
    assert catalog_of(controller).nodes.is_active(1)
    controller.world.advance(SESSION_MS)
    assert not catalog_of(controller).nodes.is_active(1)
    assert catalog_of(controller).topics["t"].partitions[0].leader == -1


@pytest.mark.parametrize("offset_ms", range(0, 250, 50))
def test_a_broker_is_fenced_as_soon_as_its_session_is_over(controller: SimulatedController, offset_ms: int) -> None:
    """Whatever time has passed since the controller's last look: its clients wait for that."""
    epoch = register(controller, 1).broker_epoch
    controller.world.advance(offset_ms)
    beat(controller, 1, epoch)
    controller.world.advance(SESSION_MS - 10)
    assert catalog_of(controller).nodes.is_active(1)
    controller.world.advance(30)
    assert not catalog_of(controller).nodes.is_active(1)


def test_a_snapshot_has_the_registrations(controller: SimulatedController) -> None:
    epoch = register(controller, 1).broker_epoch
    register(controller, 2)
    beat(controller, 1, epoch)
    create(controller, "t")
    before = catalog_of(controller)
    controller.broker.controller.begin_snapshot()
    controller.world.advance(100)
    assert controller.broker.metadata_log.snapshots
    controller.restart()
    after = catalog_of(controller)
    assert (after.nodes.brokers, after.topics) == (before.nodes.brokers, before.topics)
    assert after.nodes.directory_owners == before.nodes.directory_owners


def test_a_moved_clock_ends_no_session(controller: SimulatedController) -> None:
    epoch = register(controller, 1).broker_epoch
    beat(controller, 1, epoch)
    controller.world.jumped_ms += 3_600_000
    controller.world.advance(SESSION_MS // 2)
    assert catalog_of(controller).nodes.is_active(1)


def test_a_fence_that_cannot_be_written_is_tried_again(controller: SimulatedController) -> None:
    epoch = register(controller, 1).broker_epoch
    beat(controller, 1, epoch)
    controller.files.free_bytes = 0
    controller.world.advance(2 * SESSION_MS)
    assert catalog_of(controller).nodes.is_active(1)
    controller.files.free_bytes = None
    controller.world.advance(2 * SESSION_MS)
    assert not catalog_of(controller).nodes.is_active(1)


def test_a_directory_of_a_lone_broker_is_refused() -> None:
    world, files = World(), MemoryFiles()
    lone = SimulatedNode(world, files, {})
    lone.begin()
    lone.kill()
    with pytest.raises(StorageError, match=r"data is the directory of a lone broker, and this node is a controller"):
        SimulatedNode(world, files, {}, new_role=ControllerRole).begin()


@pytest.mark.parametrize(
    ("listener", "code"),
    [("CONTROLLER", ErrorCode.unsupported_version), ("PLAINTEXT", ErrorCode.invalid_request)],
)
def test_a_voter_cannot_be_added_and_needs_the_listener_of_the_quorum(listener: str, code: ErrorCode) -> None:
    """Before, a voter with the controller's own listener was called invalid."""
    controller = SimulatedController({"controller.listener.names": "CONTROLLER"})
    wire = controller.connect()
    reply = wire.call(80, 1, {
        "cluster_id": controller.broker.cluster_id, "timeout": 1000, "voter_id": 9, "voter_directory_id": UUID(int=9),
        "listeners": [{"name": listener, "host": "h", "port": 1}], "ack_when_committed": True,
    })  # fmt: skip
    assert reply.error_code is code


def test_a_voter_with_a_directory_cannot_be_updated(controller: SimulatedController) -> None:
    """Such a request ends the process of Apache Kafka 4.3's controller at ``kraft.version`` 0."""
    voter = {
        "cluster_id": controller.broker.cluster_id,
        "current_leader_epoch": 1,
        "voter_id": controller.broker.node_id,
        "voter_directory_id": UUID(int=77 << 64),
        "listeners": [{"name": "CONTROLLER", "host": "h", "port": 1}],
        "k_raft_version_feature": {"min_supported_version": 0, "max_supported_version": 1},
    }
    assert controller.connect().call(82, 0, voter).error_code is ErrorCode.unsupported_version
    assert register(controller, 1).error_code is ErrorCode.none
