"""``odradek cluster format``: what a formatted directory has, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.node_settings import CONTROLLER, KAFKAS_PROPERTIES

from odradek.broker.metadata_log import snapshot
from odradek.cli.main import run
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles

CLUSTER_ID = "J8aAPcfLQt2bqs1JT_rMgQ"
KAFKAS = Path(__file__).parent.parent / "data" / "kafka-bootstrap.checkpoint"
"""The file of ``kafka-storage format`` of Apache Kafka 4.3.0."""


def formatted(path: Path, *options: str, code: int = 0) -> None:
    assert run(["cluster", "format", "--data-dir", str(path), *options]) == code


def identity(path: Path) -> dict[str, str]:
    return checkpoints.read_meta_properties(path, OsFiles())


def test_a_directory_gets_the_content_of_kafkas_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = tmp_path / "new" / "node"
    formatted(node, "--node-id", "7", "--cluster-id", CLUSTER_ID)
    assert capsys.readouterr().out == f"{node} is formatted: node 7 of the cluster {CLUSTER_ID}\n"
    found = identity(node)
    assert list(found) == ["node.id", "directory.id", "version", "cluster.id"]
    assert (found["node.id"], found["version"], found["cluster.id"]) == ("7", "1", CLUSTER_ID)
    checkpoints.decode_uuid(found["directory.id"])
    ours = snapshot.read(node / "bootstrap.checkpoint", OsFiles())
    kafkas = snapshot.read(KAFKAS, OsFiles())
    assert ours is not None
    assert kafkas is not None
    assert (ours[0], list(ours[1])) == (kafkas[0], list(kafkas[1]))
    assert (node / "bootstrap.checkpoint").stat().st_size == KAFKAS.stat().st_size
    assert node.stat().st_mode & 0o777 == 0o700


def test_two_nodes_have_ids_of_their_own(tmp_path: Path) -> None:
    formatted(tmp_path / "a", "--node-id", "1")
    formatted(tmp_path / "b", "--node-id", "1")
    a, b = identity(tmp_path / "a"), identity(tmp_path / "b")
    assert a["cluster.id"] != b["cluster.id"]
    assert a["directory.id"] != b["directory.id"]


def test_a_formatted_directory_is_refused_or_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = ["--node-id", "7"]
    formatted(tmp_path, *node, "--cluster-id", CLUSTER_ID)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"}
    formatted(tmp_path, *node, "--cluster-id", CLUSTER_ID, code=2)
    assert capsys.readouterr().err == (
        f"odradek: {tmp_path} is formatted already: it belongs to node 7 of the cluster {CLUSTER_ID}. Choose an empty "
        "directory, or leave it as it is with --ignore-formatted\n"
    )
    formatted(tmp_path, *node, "--ignore-formatted")
    formatted(tmp_path, *node, "--cluster-id", CLUSTER_ID, "--ignore-formatted")
    formatted(tmp_path, "--node-id", "8", "--ignore-formatted", code=2)
    formatted(tmp_path, *node, "--cluster-id", CLUSTER_ID[::-1], "--ignore-formatted", code=2)
    rest = "choose an empty directory"
    assert capsys.readouterr().err == (
        f"odradek: {tmp_path} belongs to node 7, not to node 8: {rest}\n"
        f"odradek: {tmp_path} belongs to the cluster {CLUSTER_ID}, not to {CLUSTER_ID[::-1]}: {rest}\n"
    )
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".lock"} == before


@pytest.mark.parametrize("text", ["short", "A" * 22, "J8aAPcfLQt2bqs1JT_rM/Q", ""])
def test_a_wrong_cluster_id_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    formatted(tmp_path / "d", "--node-id", "1", "--cluster-id", text, code=2)
    form = "an id of a cluster has 22 characters (letters, digits, - and _): leave it out for a new cluster"
    why = "it is the id of no cluster" if text == "A" * 22 else form
    wanted = f"--cluster-id {text!r}: {why}" if text else "--cluster-id is empty: give ID"
    assert f"odradek: {wanted}" in capsys.readouterr().err
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["t-0", "__cluster_metadata-0"])
def test_a_directory_with_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "00000000000000000000.log").write_bytes(b"x")
    formatted(tmp_path, "--node-id", "1", code=2)
    line = capsys.readouterr().err
    assert line.startswith(f"odradek: {tmp_path} cannot be formatted: it has ")
    assert name in line
    assert not (tmp_path / "meta.properties").exists()


def test_the_settings_of_the_node_are_read_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "server.properties"
    texts = CONTROLLER | {"log.dirs": str(tmp_path / "data")}
    file.write_text("".join(f"{name}={text}\n" for name, text in texts.items()))
    assert run(["cluster", "format", "--config", str(file)]) == 0
    assert identity(tmp_path / "data")["node.id"] == "100"
    assert run(["cluster", "format", "--config", str(file), "--node-id", "3"]) == 2
    assert f"--node-id 3 is not node.id=100 of {file}" in capsys.readouterr().err
    file.write_text("".join(f"{name}={text}\n" for name, text in texts.items() if name != "controller.listener.names"))
    assert run(["cluster", "format", "--config", str(file)]) == 2
    assert "controller.listener.names: name the listener of the controllers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "--node-id N is missing, and no --config FILE has node.id"),
        (["--node-id", "1"], "--data-dir DIR is missing, and no --config FILE has one directory in log.dirs"),
    ],
)
def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], words: list[str], line: str) -> None:
    assert run(["cluster", "format", *words]) == 2
    assert capsys.readouterr().err == f"odradek: {line}\n"


def test_a_directory_in_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import odradek

    with odradek.Broker(data_dir=tmp_path, in_thread=True):
        formatted(tmp_path, "--node-id", "1", "--ignore-formatted", code=2)
    assert "is held by another broker" in capsys.readouterr().err


def test_the_directory_of_a_node_is_not_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A repair would make it that of a lone broker, or of another cluster."""
    formatted(tmp_path, "--node-id", "1", "--cluster-id", CLUSTER_ID)
    (tmp_path / "meta.properties").unlink()
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "00000000000000000000.log").write_bytes(b"")
    capsys.readouterr()
    assert run(["metadata", "repair", "--data-dir", str(tmp_path), "--yes"]) == 2
    assert capsys.readouterr().err == (
        f"odradek: {tmp_path} is the directory of a node of a cluster, and only those of lone brokers are repaired: "
        "put its files back from a copy (docs/cluster.md)\n"
    )
    assert not (tmp_path / "meta.properties").exists()


def test_a_folder_of_more_brokers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1", "2", "3", "controller"):
        (tmp_path / "c" / name).mkdir(parents=True)
        (tmp_path / "c" / name / "meta.properties").write_text("")
    assert run(["serve", "--brokers", "2", "--data-dir", str(tmp_path / "c"), "--listen", "127.0.0.1:0"]) == 2
    assert "has a broker 3: with --brokers 2 its partitions have no leader. Give --brokers 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changed", [{"listeners": "PLAINTEXT://:9092"}, {"controller.quorum.voters": ""}], ids=["no listener", "no voter"]
)
def test_both_roles_may_make_a_lone_broker_and_the_command_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in (KAFKAS_PROPERTIES | changed).items()))
    formatted(tmp_path / "d", "--config", str(file))
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "With process.roles=broker,controller and these settings the node is a lone broker: other nodes cannot join "
        "it. For a cluster, set controller.quorum.voters to this node, and add a listener of controller.listener.names "
        "to listeners"
    )
    assert second.startswith(f"{tmp_path}/d is formatted: node 1 of the cluster ")


def test_the_properties_of_a_node_with_both_roles_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text("".join(f"{name}={text}\n" for name, text in KAFKAS_PROPERTIES.items()))
    formatted(tmp_path / "d", "--config", str(file))
    assert capsys.readouterr().out.startswith(f"{tmp_path}/d is formatted: node 1 of the cluster ")
    file.write_text(file.read_text().replace("CONTROLLER://:9093", "CONTROLLER://:9093,OTHER://:9094"))
    words = ["--data-dir", str(tmp_path / "e"), "--config", str(file)]
    assert run(["cluster", "format", *words]) == 2
    assert "it has no protocol for the listener OTHER" in capsys.readouterr().err
