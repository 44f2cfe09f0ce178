"""Nodes of a cluster that cannot join, on processes: each ends in one line that names the thing and the remedy."""

from __future__ import annotations

import shutil
import struct
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.batches.encode import encode_batch
from odradek.batches.header import scan
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ConfigError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerFailed, BrokerProcess

SESSION_MS = 3_000
SETTINGS = {"broker.session.timeout.ms": SESSION_MS, "broker.heartbeat.interval.ms": 300}
LOG = f"{DIRECTORY}/00000000000000000000.log"
REGISTER, API_VERSIONS = 62, 18


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odradek.Cluster]:
    with odradek.Cluster(2, racks=["a", "b"], data_dir=tmp_path_factory.mktemp("c"), config=SETTINGS) as made:
        with odradek.Admin(made.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 4)])
        yield made


@pytest.fixture
def cluster(shared: odradek.Cluster) -> odradek.Cluster:
    return shared.start()


def settings_of(cluster: odradek.Cluster, node_id: int, port: int, **others: str) -> dict[str, str]:
    return {
        "process.roles": "broker",
        "node.id": str(node_id),
        "controller.quorum.voters": f"100@{cluster.bootstrap_controllers}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        **{name: str(value) for name, value in SETTINGS.items()},
        **{name.replace("_", "."): value for name, value in others.items()},
    }


def node(cluster: odradek.Cluster, home: Path, node_id: int, cluster_id: str = "", **others: str) -> BrokerProcess:
    """Another broker with a formatted directory, ``home/data``, which is not started yet."""
    if not (home / "data").exists():
        words = ["--data-dir", str(home / "data"), "--node-id", str(node_id)]
        assert run(["cluster", "format", *words, "--cluster-id", cluster_id or cluster.cluster_id]) == 0
    (reservation,) = reserve_ports(1)
    made = BrokerProcess(home, config=settings_of(cluster, node_id, reservation.port, **others), port=reservation.port)
    made.reservation = reservation
    return made


def refusal(made: BrokerProcess) -> str:
    """The last line of a node that does not start."""
    with pytest.raises(BrokerFailed) as failed:
        made.start()
    return str(failed.value).strip().splitlines()[-1]


def test_two_processes_with_one_id_wait_for_one_another(cluster: odradek.Cluster, tmp_path: Path) -> None:
    """Kafka's DUPLICATE_BROKER_REGISTRATION until the session of the other one ends."""
    line = refusal(node(cluster, tmp_path, 1, initial_broker_registration_timeout_ms="1500"))
    assert "initial.broker.registration.timeout.ms=1500: it answers duplicate_broker_registration" in line
    assert "node.id" in line
    assert cluster.running()
    twin = node(cluster, tmp_path, 1)
    waiting = threading.Thread(target=twin.start)
    waiting.start()
    try:
        eventually(lambda: "another process with this node.id has a session" in twin.log_tail())
        cluster.kill(1)
        waiting.join(60)
        assert twin.running, "it is registered when the session is over"
    finally:
        twin.kill()
        waiting.join(60)
    cluster.start(1)


def test_the_id_of_another_cluster_is_refused(cluster: odradek.Cluster, tmp_path: Path) -> None:
    """At once, with the default of initial.broker.registration.timeout.ms, and by one line."""
    other = node(cluster, tmp_path, 3, "J8aAPcfLQt2bqs1JT_rMgQ")
    line = refusal(other)
    assert "it answers inconsistent_cluster_id. The directory belongs to another cluster: choose the right one" in line
    assert other.log_tail().count("another cluster") == 1


def test_the_directory_of_another_broker_is_refused(cluster: odradek.Cluster, tmp_path: Path) -> None:
    cluster.stop(2)
    shutil.copytree(cluster.data_dir / "2", tmp_path / "data", ignore=shutil.ignore_patterns(".lock"))
    cluster.start(2)
    assert f"{tmp_path}/data belongs to node.id 2, not 3: choose the directory of node 3, or set node.id=2" in refusal(
        node(cluster, tmp_path, 3)
    )
    properties = checkpoints.read_meta_properties(tmp_path / "data", OsFiles())
    checkpoints.write_meta_properties(tmp_path / "data", properties | {"node.id": "3"}, OsFiles())
    line = refusal(node(cluster, tmp_path, 3, initial_broker_registration_timeout_ms="1500"))
    assert (
        "initial.broker.registration.timeout.ms=1500: it answers invalid_registration. Perhaps another broker has a "
        "directory with the same directory.id in meta.properties: each needs its own" in line
    )
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        assert [one.node_id for one in admin.describe_cluster().nodes] == [1, 2]


@pytest.mark.parametrize(
    ("others", "line"),
    [
        ({"node.id": "100"}, "node.id=100 is a voter, but process.roles is without controller"),
        ({"process.roles": "controller"}, "is without this controller, node.id=3: add 3@HOST:PORT"),
        ({"controller.quorum.voters": "100@h:1,101@h:2"}, "names 2 controllers, and a cluster has one here: name one"),
        ({"controller.quorum.voters": ""}, "set controller.quorum.voters to NODE@HOST:PORT of the controller"),
        ({"controller.listener.names": ""}, "name the listener of the controllers, e.g. CONTROLLER"),
        ({"inter.broker.listener.name": "INSIDE"}, "is not in listeners: set inter.broker.listener.name=PLAINTEXT"),
        ({"advertised.listeners": "OUT://h:1"}, "advertised.listeners: OUT is no listener"),
        ({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT"}, "it has no protocol for the listener CONTROLLER"),
        ({}, "is not formatted, as that of a node of a cluster has to be: run `odradek cluster format"),
    ],
)
def test_settings_and_directories_that_cannot_work_end_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], others: Mapping[str, str], line: str
) -> None:
    texts = {
        "process.roles": "broker", "node.id": "3", "controller.quorum.voters": "100@127.0.0.1:1",
        "controller.listener.names": "CONTROLLER", "listeners": "PLAINTEXT://127.0.0.1:0", **others,
    }  # fmt: skip
    words = [word for name, text in texts.items() for word in ("--config", f"{name}={text}")]
    assert run(["serve", "--data-dir", str(tmp_path / "data"), *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said
    assert not (tmp_path / "data" / "meta.properties").exists()


def test_a_broker_s_listener_serves_no_request_of_nodes(cluster: odradek.Cluster) -> None:
    with Wire(cluster.address(1)) as wire:
        served = {
            row.api_key
            for row in wire.call(
                API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"}
            ).api_keys
        }
    assert served.isdisjoint({52, 53, 54, 58, 59, 62, 63, 67, 70, 82})
    message = {
        "broker_id": 9, "cluster_id": cluster.cluster_id, "incarnation_id": UUID(int=1), "listeners": [],
        "features": [], "rack": None, "is_migrating_zk_broker": False, "log_dirs": [], "previous_broker_epoch": -1,
    }  # fmt: skip
    with Wire(cluster.address(1)) as wire, pytest.raises(ConnectionError):
        wire.call(REGISTER, 4, message)
    with odradek.Admin(cluster.bootstrap_servers) as admin:
        assert [one.node_id for one in admin.describe_cluster().nodes] == [1, 2]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def append_unknown(path: Path) -> int:
    """Appends a batch with a record of an unknown type. Returns its offset."""
    data = path.read_bytes()
    header = list(scan(memoryview(data)))[-1][1]
    batch = bytearray(encode_batch([SimpleRecord(None, b"\x01\x63\x00\x00")], now_ms=1))
    struct.pack_into(">q", batch, 0, header.last_offset + 1)
    struct.pack_into(">i", batch, 12, header.leader_epoch)
    path.write_bytes(data + batch)
    return header.last_offset + 1


def test_the_check_reads_the_directories_of_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"metadata.log.max.record.bytes.between.snapshots": 2_000}
    with (
        odradek.Cluster(1, data_dir=tmp_path / "c", config=settings) as cluster,
        odradek.Admin(cluster.bootstrap_servers) as admin,
    ):
        for number in range(12):
            admin.create_topics([NewTopic(f"t{number}", 2)])
    controller, broker = tmp_path / "c" / "controller", tmp_path / "c" / "1"
    for path in (controller, broker):
        assert run(["metadata", "check", "--data-dir", str(path)]) == 0
        assert capsys.readouterr().out.startswith("The metadata log is whole: 12 topics, end offset ")
    before = {path: (path / LOG).read_bytes() for path in (controller, broker)}

    for path in (controller, broker):
        flip(path / LOG, len(before[path]) // 2)
        assert run(["metadata", "check", "--data-dir", str(path)]) == 1
    said = capsys.readouterr().out
    assert f"{controller / LOG} at offset " in said
    assert "Put its files back from a copy (docs/cluster.md)" in said
    assert "Its next start reads the metadata log from the controller again" in said
    assert "odradek metadata repair" not in said

    made = odradek.Cluster(1, data_dir=tmp_path / "c", config=settings)
    try:
        with pytest.raises(BrokerFailed, match=r"put its files back from a copy \(docs/cluster\.md\)"):
            made.start()
    finally:
        made.close()
    assert (controller / LOG).read_bytes() != before[controller], "nothing was changed"
    (controller / LOG).write_bytes(before[controller])
    with (
        odradek.Cluster(1, data_dir=tmp_path / "c", config=settings) as cluster,
        odradek.Admin(cluster.bootstrap_servers) as admin,
    ):
        # the broker's log is read again
        assert len(admin.describe_topics([f"t{number}" for number in range(12)])) == 12

    offset = append_unknown(controller / LOG)
    made = odradek.Cluster(1, data_dir=tmp_path / "c", config=settings)
    try:
        with pytest.raises(
            BrokerFailed, match=rf"offset {offset}: a record of type 99 .*, which this release does not"
        ):
            made.start()
    finally:
        made.close()


def test_a_damaged_snapshot_of_a_controller_is_refused_if_its_records_are_gone(tmp_path: Path) -> None:
    settings = SETTINGS | {
        "metadata.log.max.record.bytes.between.snapshots": 2_000,
    }  # fmt: skip
    with (
        odradek.Cluster(1, data_dir=tmp_path / "c", config=settings) as cluster,
        odradek.Admin(cluster.bootstrap_servers) as admin,
    ):
        for number in range(12):
            admin.create_topics([NewTopic(f"t{number}", 2)])
    log = tmp_path / "c" / "controller" / DIRECTORY
    snapshots = sorted(path for path in log.glob("*.checkpoint") if not path.name.startswith("0" * 20))
    assert snapshots
    for path in snapshots:
        flip(path, path.stat().st_size // 2)
    with (
        odradek.Cluster(1, data_dir=tmp_path / "c", config=settings) as cluster,
        odradek.Admin(cluster.bootstrap_servers) as admin,
    ):
        # the log has all records
        assert len(admin.describe_topics([f"t{number}" for number in range(12)])) == 12
    for path in log.glob("*.log"):
        path.unlink()
    made = odradek.Cluster(1, data_dir=tmp_path / "c", config=settings)
    try:
        with pytest.raises(BrokerFailed, match="the file is missing beside its index"):
            made.start()
    finally:
        made.close()


def test_racks_of_the_last_start_stay(tmp_path: Path) -> None:
    def racks(cluster: odradek.Cluster) -> list[str | None]:
        with odradek.Admin(cluster.bootstrap_servers) as admin:
            return [one.rack for one in sorted(admin.describe_cluster().nodes, key=lambda one: one.node_id)]

    home = tmp_path / "c"
    with odradek.Cluster(2, racks=["a", "b"], data_dir=home, config=SETTINGS) as cluster:
        assert racks(cluster) == ["a", "b"]
    with odradek.Cluster(2, data_dir=home, config=SETTINGS) as cluster:
        assert racks(cluster) == ["a", "b"]
    with pytest.raises(ConfigError, match="broker 3 has no rack, and broker 1 has a: name the racks"):
        odradek.Cluster(3, data_dir=home, config=SETTINGS)
    with odradek.Cluster(2, racks=["c", "d"], data_dir=home, config=SETTINGS) as cluster:
        assert racks(cluster) == ["c", "d"]
