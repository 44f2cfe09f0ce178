"""The process of a controller: its start on a formatted directory, restarts, and directories that it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from support.brokers import Wire
from support.controller_process import CLUSTER_ID, CONTROLLER, controller_process, controller_settings, formatted
from support.simulated_controller import SimulatedController
from test_controller_node import FEATURES_OF_A_NODE

from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.process import role_class
from odradek.broker.settings.config import BrokerConfig
from odradek.core.errors import ErrorCode
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerFailed, BrokerProcess

KAFKAS = Path(__file__).parent.parent / "data" / "kafka-quorum"
CREATE_TOPICS, METADATA, REGISTER, BEAT, PRODUCE = 19, 3, 62, 63, 0
LOG = f"{DIRECTORY}/00000000000000000000.log"


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[BrokerProcess]:
    with controller_process(tmp_path) as made:
        yield made


def register(wire: Wire, broker_id: int, incarnation: int) -> int:
    message = {
        "broker_id": broker_id, "cluster_id": CLUSTER_ID, "incarnation_id": UUID(int=incarnation),
        "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9092, "security_protocol": 0}],
        "features": FEATURES_OF_A_NODE, "rack": None, "is_migrating_zk_broker": False,
        "log_dirs": [UUID(int=broker_id << 64)], "previous_broker_epoch": -1,
    }  # fmt: skip
    reply = wire.call(REGISTER, 4, message)
    assert reply.error_code is ErrorCode.none
    beat = {
        "broker_id": broker_id, "broker_epoch": reply.broker_epoch, "current_metadata_offset": 1 << 60,
        "want_fence": False, "want_shut_down": False, "offline_log_dirs": [], "cordoned_log_dirs": None,
    }  # fmt: skip
    assert not wire.call(BEAT, 2, beat).is_fenced
    return int(reply.broker_epoch)


def create(wire: Wire, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    reply = wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 10_000, "validate_only": False})
    code: ErrorCode = reply.topics[0].error_code
    return code


@pytest.mark.parametrize("end", [BrokerProcess.kill, BrokerProcess.stop])
def test_a_controller_keeps_what_it_has_acknowledged(
    controller: BrokerProcess, end: Callable[[BrokerProcess], object]
) -> None:
    with Wire(controller.bootstrap) as wire:
        register(wire, 1, 1)
        assert create(wire, "t") is ErrorCode.none
    for epoch in (2, 3):
        end(controller)
        controller.start()
        state = quorum_state.read(controller.data_dir / DIRECTORY, OsFiles())
        assert state is not None
        assert (state.epoch, state.leader, state.voters) == (epoch, CONTROLLER, (CONTROLLER,))
        with Wire(controller.bootstrap) as wire:
            assert create(wire, "t") is ErrorCode.topic_already_exists


def test_a_listener_of_controllers_serves_no_client(controller: BrokerProcess) -> None:
    with Wire(controller.bootstrap) as wire:
        keys = {
            api.api_key
            for api in wire.call(18, 3, {"client_software_name": "c", "client_software_version": "1"}).api_keys
        }
    assert {REGISTER, BEAT, CREATE_TOPICS} <= keys
    assert PRODUCE not in keys


def refusal(home: Path, node_id: int = CONTROLLER) -> str:
    """Starts a controller, and returns the one line with which it ends."""
    (home / "broker.log").unlink(missing_ok=True)
    (reservation,) = reserve_ports(1)
    config = controller_settings(reservation.port, node_id)
    broker = BrokerProcess(home, config=config, port=reservation.port, data_dir=home / "data")
    with pytest.raises(BrokerFailed):
        broker.start()
    reservation.close()
    lines = broker.log_tail().splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("odradek broker: ")
    return lines[0].removeprefix("odradek broker: ")


def test_a_directory_that_is_not_formatted_is_refused(tmp_path: Path) -> None:
    line = refusal(tmp_path)
    assert line == (
        f"{tmp_path}/data is not formatted, as that of a node of a cluster has to be: run `odradek cluster format "
        f"--data-dir {tmp_path}/data --node-id 100 --cluster-id ID` with the id of the cluster, which meta.properties "
        "of its other nodes has"
    )
    assert not (tmp_path / "data" / "meta.properties").exists()
    assert not (tmp_path / "data" / DIRECTORY).exists()


def test_a_directory_of_another_node_is_refused(tmp_path: Path) -> None:
    formatted(tmp_path / "data", 7)
    remedy = "choose the directory of node 100, or set node.id=7"
    assert refusal(tmp_path) == f"{tmp_path}/data belongs to node.id 7, not 100: {remedy}"


def test_a_metadata_log_of_apache_kafka_is_refused(tmp_path: Path) -> None:
    formatted(tmp_path / "data", 1)
    shutil.copytree(KAFKAS, tmp_path / "data" / DIRECTORY)
    before = (tmp_path / "data" / LOG).read_bytes()
    line = refusal(tmp_path, 1)
    assert str(tmp_path / "data" / DIRECTORY) in line
    assert (tmp_path / "data" / LOG).read_bytes() == before


def test_a_damaged_metadata_log_is_refused(tmp_path: Path, controller: BrokerProcess) -> None:
    with Wire(controller.bootstrap) as wire:
        register(wire, 1, 1)
        for number in range(5):
            create(wire, f"t{number}")
    controller.stop()
    log = tmp_path / "data" / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    line = refusal(tmp_path)
    assert LOG in line
    assert "odradek metadata check" in line
    assert line.endswith("then put its files back from a copy (docs/cluster.md)")
    assert log.read_bytes() == data


def test_a_lost_quorum_state_is_refused(tmp_path: Path, controller: BrokerProcess) -> None:
    controller.stop()
    (tmp_path / "data" / DIRECTORY / "quorum-state").unlink()
    line = refusal(tmp_path)
    assert "quorum-state is missing, but the log beside it has the leader epoch 1" in line
    assert line.endswith("put the files of this directory back from a copy (docs/cluster.md)")


def test_a_lost_identity_is_refused(tmp_path: Path, controller: BrokerProcess) -> None:
    controller.stop()
    (tmp_path / "data" / "meta.properties").unlink()
    line = refusal(tmp_path)
    assert (
        "meta.properties is missing, but a broker has used the directory; put the files of this directory back" in line
    )


def test_a_lost_metadata_log_is_refused(tmp_path: Path, controller: BrokerProcess) -> None:
    """It must not begin with an empty one: the cluster would lose its topics."""
    with Wire(controller.bootstrap) as wire:
        register(wire, 1, 1)
    controller.stop()
    shutil.rmtree(tmp_path / "data" / DIRECTORY)
    assert DIRECTORY in refusal(tmp_path)


def test_a_directory_with_other_levels_is_refused(tmp_path: Path) -> None:
    formatted(tmp_path / "data")
    path = tmp_path / "data" / checkpoints.BOOTSTRAP
    path.write_bytes((Path(__file__).parent.parent / "data" / "kafka-bootstrap-4.0.checkpoint").read_bytes())
    assert refusal(tmp_path) == (
        f"{path}: the directory was formatted with eligible.leader.replicas.version=0, and a cluster has "
        "eligible.leader.replicas.version=1 here: format another directory with `odradek cluster format`"
    )
    path.write_bytes(path.read_bytes()[:-3])
    assert refusal(tmp_path).endswith(
        "bootstrap.checkpoint is damaged: format another directory with `odradek cluster format`"
    )


def test_the_settings_choose_the_kind_of_node() -> None:
    assert role_class(BrokerConfig()) is LoneRole
    assert role_class(BrokerConfig(controller_settings(1))).__name__ == "ControllerRole"


def test_a_formatted_directory_begins_at_the_first_epoch() -> None:
    """The simulated controller has a directory that was prepared by hand; both begin alike."""
    assert SimulatedController().broker.quorum.epoch == 1
