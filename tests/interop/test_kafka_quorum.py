"""The log of a voter and its ``quorum-state``: Apache Kafka 4.3 reads ours, and we read Kafka's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from uuid import UUID

import pytest
from support.jvm import KafkaTools
from support.node_settings import (
    BROKER,
    BROKER_ONLY,
    CLUSTER,
    CONTRADICTIONS,
    CONTROLLER,
    CONTROLLER_ONLY,
    FORMS,
    KAFKAS_PROPERTIES,
    NOT_YET,
    OF_LISTENERS,
)
from support.voters import make_voter

from odradek.batches.header import scan
from odradek.batches.rows import batch_rows
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log import quorum_state
from odradek.broker.metadata_log.check import check_log
from odradek.broker.metadata_log.log import DIRECTORY
from odradek.broker.metadata_log.mark import MetadataMark
from odradek.broker.metadata_log.quorum_state import QuorumState
from odradek.catalog import control_records
from odradek.catalog.control_records import LeaderChange
from odradek.catalog.state import CreateTopic
from odradek.storage.disk.files import OsFiles

T0 = 1_700_000_000_000
KAFKAS = Path(__file__).parent.parent / "data" / "kafka-quorum"
"""``quorum-state`` and the metadata log of Apache Kafka 4.3.0 after its second start, with one voter in
``controller.quorum.voters``, so that kraft.version is 0. Each log was copied after kill -15."""
OWNER = MetadataMark(0, "1", "", "")


def read_by_kafka(kafka_tools: KafkaTools, source: Path, target: Path, level: int) -> str:
    done = kafka_tools.run("QuorumStateFile", str(source), str(target), str(level))
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# --- Kafka's files ----------------------------------------------------------------------------------------------


def check_kafkas(directory: Path, epoch: int) -> None:
    """Our code reads Kafka's files, and writes the same bytes."""
    files = OsFiles()
    state = quorum_state.read(directory, files)
    assert state == QuorumState(1, epoch, voters=(1,))
    assert state.packed() == (directory / "quorum-state").read_bytes()
    quorum_state.check(directory, files, state, OWNER, epoch)
    checked = check_log(directory, files)
    assert (checked.fault, checked.epoch) == (None, epoch)
    data = (directory / "00000000000000000000.log").read_bytes()
    begun = []
    for position, header in scan(data):
        if header.is_control:
            (row,) = batch_rows(data, position, header)
            change = control_records.read(row.key, row.value)
            assert change == LeaderChange(1, (1,), (1,))
            assert control_records.pack_leader_change(change) == (row.key, row.value)
            begun.append(header.leader_epoch)
    assert begun == list(range(1, epoch + 1))


def test_we_read_the_files_of_kafkas_only_voter() -> None:
    check_kafkas(KAFKAS, 2)


@pytest.mark.slow
def test_kafka_still_writes_such_files(kafka_cp: str, tmp_path: Path) -> None:
    from support.jvm import kafka_java_options

    from bench.apache import ApacheBroker

    broker = ApacheBroker(tmp_path / "kafka", {}, cp=kafka_cp, heap="300m", java_options=kafka_java_options())
    for epoch in (1, 2, 3):
        broker.start(120)
        broker.stop() if epoch < 3 else broker.kill()
        check_kafkas(tmp_path / "kafka" / "data" / DIRECTORY, epoch)


# --- our files --------------------------------------------------------------------------------------------------


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """The metadata log of our voter after two starts."""
    make_voter(tmp_path)
    for number in (1, 2):
        catalog = StoredCatalog.open(
            tmp_path, clean=True, node_id=1, directory_id=UUID(int=9), now_ms=lambda: T0, files=OsFiles()
        )
        catalog.lead()
        catalog.apply(CreateTopic(f"t{number}", UUID(int=(1 << 100) + number), 1, 1))
        catalog.close()
    return tmp_path / DIRECTORY


@pytest.mark.slow
def test_kafkas_class_reads_and_writes_our_quorum_state(ours: Path, tmp_path: Path, kafka_tools: KafkaTools) -> None:
    target = tmp_path / "of-kafka"
    election = read_by_kafka(kafka_tools, ours / "quorum-state", target, 0)
    assert election == "Election(epoch=2, leaderId=OptionalInt[1], votedKey=Optional.empty, voters=[1])"
    assert target.read_bytes() == (ours / "quorum-state").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "state",
    [
        QuorumState(-1, 0, voters=(1,)),
        QuorumState(-1, 7, 1, voters=(1,)),
        QuorumState(1, 2_147_483_646, voters=(1,)),
        QuorumState(3, 5, voters=(1, 2, 3)),
        QuorumState(-1, 7, 2, voted_directory="J8aAPcfLQt2bqs1JT_rMgQ", version=1),
        QuorumState(4, 9, version=1),
    ],
)
def test_each_state_has_the_bytes_of_kafkas_class(tmp_path: Path, kafka_tools: KafkaTools, state: QuorumState) -> None:
    quorum_state.write(tmp_path, OsFiles(), state)
    read_by_kafka(kafka_tools, tmp_path / "quorum-state", tmp_path / "of-kafka", state.version)
    assert json.loads((tmp_path / "of-kafka").read_bytes()) == json.loads(state.packed())
    assert (tmp_path / "of-kafka").read_bytes() == state.packed()


@pytest.mark.slow
def test_kafkas_tool_shows_the_changes_of_the_leader(ours: Path, kafka_tools: KafkaTools) -> None:
    log = next(ours.glob("*.log"))
    done = kafka_tools.run("org.apache.kafka.tools.DumpLogSegments", "--files", str(log), "--cluster-metadata-decoder")
    assert done.returncode == 0, done.stderr
    voters = '[{"voterId":1}]'
    change = f'{{"version":0,"leaderId":1,"voters":{voters},"grantingVoters":{voters}}}'
    assert re.findall(r"LeaderChange: (\{.*\})$", done.stdout, re.MULTILINE) == [change] * 2
    epochs = re.findall(r"partitionLeaderEpoch: (\d+) isTransactional: false isControl: (\w+)", done.stdout)
    assert epochs == [("1", "true"), ("1", "false"), ("2", "true"), ("2", "false")]
    kinds = re.findall(r'payload: \{"type":"(\w+)"', done.stdout)
    assert kinds == ["TOPIC_RECORD", "PARTITION_RECORD"] * 2


@pytest.mark.slow
def test_kafkas_tool_shows_our_quorum(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    import odradek

    make_voter(tmp_path / "data", epoch=6)
    with odradek.Broker(data_dir=tmp_path / "data", in_thread=True) as broker:
        where = ("--bootstrap-server", broker.bootstrap_servers)
        done = kafka_tools.run("org.apache.kafka.tools.MetadataQuorumCommand", *where, "describe", "--status")
        assert done.returncode == 0, done.stderr
        lines = {name: value.strip() for name, _, value in (line.partition(":") for line in done.stdout.splitlines())}
        assert (lines["LeaderId"], lines["LeaderEpoch"], lines["MaxFollowerLag"]) == ("1", "7", "0")
        assert int(lines["HighWatermark"]) >= 1


# --- settings of nodes ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kafka_refuses_and_accepts_the_same_settings(kafka_tools: KafkaTools) -> None:
    """Of the settings that this release refuses, Kafka accepts those of a cluster that it would start."""

    def answer(texts: dict[str, str]) -> str:
        properties = "".join(f"{name}={text}\n" for name, text in texts.items())
        done = kafka_tools.run("NodeSettings", stdin=properties)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    for texts in (CLUSTER, BROKER_ONLY, CONTROLLER_ONLY, KAFKAS_PROPERTIES, BROKER, CONTROLLER):
        assert answer(texts) == "accepted"
    for texts, line in NOT_YET:
        if "0.0.0.0" not in line and "SASL" not in line:
            assert answer(texts) == "accepted", line
    for texts, line in (*CONTRADICTIONS, *OF_LISTENERS):
        assert answer(texts) != "accepted", line
    for texts, line in FORMS:
        assert answer(KAFKAS_PROPERTIES | texts) != "accepted", line


# --- formatted directories --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_kafkas_tools_read_a_directory_that_we_have_formatted(tmp_path: Path, kafka_tools: KafkaTools) -> None:
    from odradek.cli.main import run

    node, config = tmp_path / "node", tmp_path / "server.properties"
    cluster_id = "J8aAPcfLQt2bqs1JT_rMgQ"
    assert run(["cluster", "format", "--data-dir", str(node), "--node-id", "100", "--cluster-id", cluster_id]) == 0
    config.write_text("".join(f"{name}={text}\n" for name, text in (CONTROLLER | {"log.dirs": str(node)}).items()))
    info = kafka_tools.run("kafka.tools.StorageTool", "info", "-c", str(config))
    assert info.returncode == 0, info.stdout + info.stderr
    assert f"Found metadata: {{cluster.id={cluster_id}, directory.id=" in info.stdout
    assert "node.id=100, version=1}" in info.stdout
    assert "Found problem" not in info.stdout
    again = kafka_tools.run("kafka.tools.StorageTool", "format", "-g", "-t", cluster_id, "-c", str(config))
    assert again.stdout.strip() == "All of the log directories are already formatted."
    file = node / "bootstrap.checkpoint"
    dump = kafka_tools.run(
        "org.apache.kafka.tools.DumpLogSegments", "--files", str(file), "--cluster-metadata-decoder"
    ).stdout
    levels = re.findall(
        r'"type":"FEATURE_LEVEL_RECORD","version":0,"data":\{"name":"([\w.]+)","featureLevel":(\d+)', dump
    )
    assert levels[0] == ("metadata.version", "30")
    assert len(levels) == 6
    assert "isvalid: false" not in dump
