"""Start, stop and kill of the broker, the owner of its directory, the data that survives, and new topics."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from support.brokers import RunningBroker, Wire, eventually, unique
from test_server_frames import create, fetch, produce

from odradek.batches.encode import encode_batch
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import METADATA_TOPIC
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import OsFiles
from odradek.storage.log import Log
from odradek.testing.process import BrokerProcess

PLAIN = pytest.mark.usefixtures("plain_broker")
"""For tests of the process itself; in the others a broker may be a fork."""
SERVE = [sys.executable, "-m", "odradek.broker"]
ON_APACHE = bool(os.environ.get("ODRADEK_TEST_ORACLE"))
"""Whether the tests run with Apache Kafka, which begins a leader epoch at every start."""


def refused(*arguments: str) -> str:
    """Runs a broker that must refuse to start. Returns the one line that it prints."""
    done = subprocess.run([*SERVE, *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2, done
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_a_second_broker_on_a_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as running:
        line = refused(str(running.data_dir), "127.0.0.1:0")
        assert f"process {running.pid}" in line
        assert str(running.data_dir) in line
        with Wire(running.bootstrap) as wire:
            assert wire.versions()


@PLAIN
@pytest.mark.parametrize(
    "command", [[*SERVE], [sys.executable, "-m", "odradek.cli.main", "serve"]], ids=["module", "serve"]
)
def test_the_line_of_a_ready_broker_names_every_listener(tmp_path: Path, command: list[str]) -> None:
    settings = ("listeners=ONE://127.0.0.1:0,TWO://127.0.0.1:0,THREE://[::1]:0",
                "listener.security.protocol.map=ONE:PLAINTEXT,TWO:PLAINTEXT,THREE:PLAINTEXT",
                "inter.broker.listener.name=ONE")  # fmt: skip
    given = [str(tmp_path), "-", *settings]
    if "serve" in command:
        given = ["--data-dir", str(tmp_path), *(part for one in settings for part in ("--config", one))]
    with subprocess.Popen(
        [*command, *given, "--exit-with-parent"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        mark, *addresses = process.stdout.readline().split()
        assert (mark, len(addresses)) == ("ready", 3)
        assert addresses[2].startswith("[::1]:"), "an IPv6 address has brackets"
        for address in addresses:
            with Wire(address.replace("[", "").replace("]", "")) as wire:
                assert wire.versions()
        process.stdin.close()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in refused(str(tmp_path / "data"), f"127.0.0.1:{port}")
    assert not (tmp_path / "data").exists()


def test_invalid_directories_and_settings_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "file" in refused(str(tmp_path / "file"), "127.0.0.1:0")
    assert "did you mean 'num.partitions'" in refused(str(tmp_path / "d"), "127.0.0.1:0", "num.partition=1")
    assert "at least 1" in refused(str(tmp_path / "d"), "127.0.0.1:0", "num.partitions=0")


def test_another_node_id_on_a_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, config={"node.id": "3"}) as running:
        pass
    assert "node.id 3" in refused(str(running.data_dir), "127.0.0.1:0", "node.id=4")
    properties = (running.data_dir / "meta.properties").read_text()
    assert "node.id=3" in properties
    assert "version=1" in properties


@PLAIN
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_stop_the_broker_cleanly(tmp_path: Path, number: int) -> None:
    running = BrokerProcess(tmp_path).start()
    assert running.process is not None
    with Wire(running.bootstrap) as wire:
        create(wire, "flights")
        os.kill(running.process.pid, number)
        assert running.process.wait(10) == 0
    assert (running.data_dir / ".kafka_cleanshutdown").exists()
    running.start()
    assert not (running.data_dir / ".kafka_cleanshutdown").exists()
    running.stop()


@pytest.mark.parametrize("fails", [False, True])
def test_a_clean_stop_is_marked_after_the_catalogue_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The broker marks and unlocks the directory only after it has closed the catalogue. If the close fails, it does
    not mark the directory."""
    mark = tmp_path / ".kafka_cleanshutdown"
    seen = []

    async def life() -> None:
        broker = BrokerServer(BrokerConfig({}), tmp_path, ("127.0.0.1", 0))
        await broker.start()
        close = broker.metadata_log.close

        def watched() -> None:
            with pytest.raises(BlockingIOError):
                OsFiles().lock(tmp_path / ".lock")
            seen.append(mark.exists())
            close()
            if fails:
                raise KafkaError(ErrorCode.kafka_storage_error, "no space")

        monkeypatch.setattr(broker.metadata_log, "close", watched)
        await broker.stop()

    asyncio.run(life())
    assert seen == [False]
    assert mark.exists() != fails
    OsFiles().lock(tmp_path / ".lock").release()


@PLAIN
def test_a_waiting_fetch_does_not_delay_the_stop(tmp_path: Path, topic: str) -> None:
    running = BrokerProcess(tmp_path).start()
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        waiting = wire.send(1, 11, fetch(topic, max_wait_ms=60_000))
        with Wire(running.bootstrap) as other:
            other.versions()
        started = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - started < 5
        assert wire.receive(1, 11, waiting).error_code == 0, "the fetch was answered before the connection closed"


def test_the_broker_ends_with_its_parent_process(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from odradek.testing.process import BrokerProcess\n"
        "broker = BrokerProcess(Path(sys.argv[1])).start(); print(broker.pid, flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    eventually(lambda: not alive(pid), what="the broker of a killed parent ends")
    for pipe in (parent.stdin, parent.stdout):
        assert pipe is not None
        pipe.close()


@pytest.mark.parametrize("command", ["broker", "serve"])
def test_a_broker_whose_parent_ends_before_it_is_ready_stops_cleanly(tmp_path: Path, command: str) -> None:
    serve = [sys.executable, "-m", "odradek.cli.main", "serve", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            serve if command == "serve" else [*SERVE, str(tmp_path), "127.0.0.1:0"],
            stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writing)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "the broker stops: it cannot report that it is ready" in done.stderr
    assert (tmp_path / ".kafka_cleanshutdown").exists()


class SyncsTogether(OsFiles):
    """During a stop, the first four syncs of topic directories wait until all four have begun."""

    def __init__(self, *, fails: str = "") -> None:
        self.together = threading.Barrier(4)
        self.one_at_a_time = threading.Lock()
        self.arrived = 0
        self.fails = fails
        self.stopping = False

    def sync_dir(self, directory: Path) -> None:
        if self.stopping and directory.name.startswith("topic-"):
            with self.one_at_a_time:
                self.arrived += 1
                is_early = self.arrived <= 4
            if is_early:  # only the first four wait for each other
                self.together.wait(60)
            if directory.name == self.fails:
                raise OSError(errno.EIO, "Input/output error", str(directory))
        super().sync_dir(directory)


@pytest.mark.parametrize("fails", ["", "topic-5"])
def test_logs_are_closed_in_parallel(tmp_path: Path, fails: str) -> None:
    files = SyncsTogether(fails=fails)
    data = tmp_path / "data"

    async def life() -> None:
        world = NodeWorld.of_process()._replace(files=files)
        broker = BrokerServer(BrokerConfig(), data, ("127.0.0.1", 0), world)
        await broker.start()
        broker.create_topic("topic", partition_count=8)
        for index in range(8):
            partition = broker.partition("topic", index)
            assert partition is not None
            partition.log.append(encode_batch([SimpleRecord(b"k", b"v", 1)], now_ms=1), now_ms=1, leader_epoch=0)
        files.stopping = True
        await broker.stop()

    asyncio.run(life())
    assert files.arrived >= 8
    assert not files.together.broken, "four syncs ran at the same time"
    assert (data / ".kafka_cleanshutdown").exists() != bool(fails)
    written = (data / "recovery-point-offset-checkpoint").read_text().splitlines()
    topics = [line for line in written[2:] if not line.startswith(METADATA_TOPIC)]
    assert sorted(topics) == [f"topic {index} {0 if fails == f'topic-{index}' else 1}" for index in range(8)]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@PLAIN
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_topics_settings_and_ids_survive_a_restart(own_broker: Callable[..., RunningBroker], how: str) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create(wire, "kept", 3, retention_ms="123456")
        create(wire, "dropped", 2)
        assert delete(wire, "dropped") == 0
        before = describe(wire, "kept")
        producer_ids = {producer_id(wire) for _ in range(3)}
    getattr(running, how)()
    running.start()
    with Wire(running.bootstrap) as wire:
        after = describe(wire, "kept")
        assert (after.topic_id, len(after.partitions)) == (before.topic_id, 3)
        epochs = [one.leader_epoch for one in after.partitions]
        assert epochs == [1 if how == "kill" else 0] * 3 or ON_APACHE
        assert tuple(replace(one, leader_epoch=0) for one in after.partitions) == before.partitions
        assert describe(wire, "dropped").error_code == 3
        assert config_of(wire, "kept", "retention.ms") == "123456"
        # No producer id is allocated twice. Otherwise the broker would mix up the sequences of two producers.
        assert producer_id(wire) not in producer_ids


@pytest.mark.claim(55, part=True)
def test_deletion_removes_directories(tmp_path: Path) -> None:
    # A topic that is created again is a new topic.
    with BrokerProcess(tmp_path) as running, Wire(running.bootstrap) as wire:

        def names() -> list[str]:
            return [name for name in os.listdir(running.data_dir) if name.startswith("flights")]

        create(wire, "flights", 2)
        produce(wire, "flights", [b"a"])
        first = describe(wire, "flights").topic_id
        assert (running.data_dir / "flights-1" / "partition.metadata").exists()
        assert delete(wire, "flights") == 0
        assert len(names()) == 2
        assert all(name.endswith("-delete") for name in names()), "the files stay for log.segment.delete.delay.ms"
        create(wire, "flights", 2)
        assert describe(wire, "flights").topic_id != first
        assert produce(wire, "flights", [b"a"]).base_offset == 0
        running.command("advance", by_ms=59_000)
        assert len(names()) == 4
        running.command("advance", by_ms=60_000)
        eventually(lambda: sorted(names()) == ["flights-0", "flights-1"], what="the end of the first topic's files")
        assert produce(wire, "flights", [b"b"]).base_offset == 1
        assert delete(wire, "flights") == 0
        running.stop()
        assert len(names()) == 2
        running.start()
        assert names() == [], "a start removes the files of deleted topics"


def test_the_start_completes_a_deletion_that_a_crash_interrupted(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path).start()
    with Wire(running.bootstrap) as wire:
        create(wire, "flights")
        produce(wire, "flights", [b"a"])
    running.stop()
    unknown = running.data_dir / "gone-0"
    unknown.mkdir()
    (unknown / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABQ")
    doomed = running.data_dir / "old-0.0123456789abcdef0123456789abcdef-delete"
    doomed.mkdir()
    (doomed / "00000000000000000000.log").write_bytes(b"x")
    others = [running.data_dir / name for name in ("notes-1", "do-not-delete", "notes.0f-delete")]
    for mine in others:
        mine.mkdir()
        (mine / "notes.txt").write_text("not the broker's")
    running.start()
    with Wire(running.bootstrap) as wire:
        assert end_offset(wire, "flights") == 1
    running.stop()
    assert not unknown.exists()
    assert len(list(running.data_dir.glob("gone-0.*-stray/partition.metadata"))) == 1, "no record has removed its topic"
    assert not doomed.exists()
    assert all((mine / "notes.txt").exists() for mine in others), "other files are not changed"


def test_only_the_damaged_partition_is_offline(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path).start()
    with Wire(running.bootstrap) as wire:
        create(wire, "good")
        create(wire, "bad")
    running.kill()
    metadata = running.data_dir / "bad-0" / "partition.metadata"
    metadata.write_text("nonsense")
    running.start()
    with Wire(running.bootstrap) as wire:
        assert produce(wire, "good", [b"a"]).error_code == 0
        assert produce(wire, "bad", [b"a"]).error_code == 56  # KAFKA_STORAGE_ERROR
        assert wire.call(1, 11, fetch("bad", max_wait_ms=0)).responses[0].partitions[0].error_code == 56
    running.stop()
    assert "bad-0" in running.log_path.read_text()


def test_all_requests_to_an_offline_partition_get_its_error(tmp_path: Path) -> None:
    async def life() -> list[int]:
        broker = BrokerServer(BrokerConfig(), tmp_path, ("127.0.0.1", 0))
        await broker.start()
        try:
            broker.create_topic("bad", partition_count=1)
            broker.partition("bad", 0).log.disk.offline = "is offline: the disk is full"
            return await asyncio.to_thread(ask, f"127.0.0.1:{broker.address[1]}")
        finally:
            await broker.stop()

    def ask(bootstrap: str) -> list[int]:
        with Wire(bootstrap) as wire:
            codes = [produce(wire, "bad", [b"a"]).error_code]
            codes.append(wire.call(1, 11, fetch("bad", max_wait_ms=0)).responses[0].partitions[0].error_code)
            for time_ms in (-1, -2, -3, 5):
                part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": time_ms}
                asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "bad", "partitions": [part]}]}
                codes.append(wire.call(2, 7, asked).topics[0].partitions[0].error_code)
            part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
            asked = {"replica_id": -1, "topics": [{"topic": "bad", "partitions": [part]}]}
            codes.append(wire.call(23, 4, asked).topics[0].partitions[0].error_code)
            asked = {"topics": [{"name": "bad", "partition_indexes": [0]}]}
            return [*codes, wire.call(61, 0, asked).topics[0].partitions[0].error_code]

    assert asyncio.run(life()) == [56] * 8  # KAFKA_STORAGE_ERROR


def test_a_directory_of_apache_kafka_is_refused(tmp_path: Path) -> None:
    """Its controller writes records that our metadata log never has."""
    log = Log.open(tmp_path / "__cluster_metadata-0", LogConfig(), 0, clean=True)
    voter = b"\2\0\0\0\1\0"
    leader_change = SimpleRecord(b"\0\0\0\2", b"\0\0\0\0\0\1" + voter + voter + b"\0")
    log.append(encode_batch([leader_change], now_ms=0, control=True), now_ms=0, leader_epoch=1, origin="coordinator")
    register_controller = SimpleRecord(b"", b"\1\x1b\0" + bytes(20))
    log.append(encode_batch([register_controller], now_ms=0), now_ms=0, leader_epoch=1, origin="coordinator")
    log.close()
    properties = "version=1\nnode.id=1\ncluster.id=jx_qj5jYRE6ajGhwQJ8ulg\ndirectory.id=R0fj_ZUkQR-US-t5gdj7yA\n"
    (tmp_path / "meta.properties").write_text(properties)

    async def life() -> None:
        with pytest.raises(StorageError, match="Apache Kafka"):
            await BrokerServer(BrokerConfig(), tmp_path, ("127.0.0.1", 0)).start()

    asyncio.run(life())


def test_damaged_checkpoints_do_not_prevent_the_start(tmp_path: Path) -> None:
    """Checkpoints only save work: without them the broker reads the logs from their start."""
    running = BrokerProcess(tmp_path).start()
    with Wire(running.bootstrap) as wire:
        create(wire, "flights")
        produce(wire, "flights", [b"a", b"b"])
    running.kill()
    damaged = {
        "recovery-point-offset-checkpoint": b"0\n1\nflights 0 many\n",
        "log-start-offset-checkpoint": b"\xff\xfe",
        "cleaner-offset-checkpoint": b"7\n0\n",
    }
    for name, content in damaged.items():
        (running.data_dir / name).write_bytes(content)
    running.start()
    with Wire(running.bootstrap) as wire:
        assert end_offset(wire, "flights") == 2
        assert produce(wire, "flights", [b"c"]).base_offset == 2
    running.stop()
    log_text = running.log_path.read_text()
    assert all(name in log_text for name in damaged)
    assert "Traceback" not in log_text
    running.start()
    running.stop()
    line = "recovery continues without a checkpoint"
    assert running.log_path.read_text().count(line) == log_text.count(line) > 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [("node.id=one", "node.id 'one'"), ("directory.id=!", "directory.id '!'"), ("node.id=\xff", "is not a text file")],
)
def test_damaged_meta_properties_are_reported_in_one_line(tmp_path: Path, line: str, reason: str) -> None:
    with BrokerProcess(tmp_path) as running:
        pass
    path = running.data_dir / "meta.properties"
    name = line.partition("=")[0]
    kept = [old for old in path.read_text().splitlines() if not old.startswith(name)]
    path.write_bytes("\n".join([*kept, line]).encode("latin-1"))
    message = refused(str(running.data_dir), "127.0.0.1:0")
    assert "meta.properties" in message
    assert reason in message


def test_a_start_that_fails_unlocks_the_directory(tmp_path: Path) -> None:
    """If the broker runs in a thread, the process continues after the failure, and may start the broker again."""
    path = tmp_path / "meta.properties"
    path.write_text("node.id=one\n")

    async def start() -> None:
        broker = BrokerServer(BrokerConfig({}), tmp_path, ("127.0.0.1", 0))
        await broker.start()
        await broker.stop()

    with pytest.raises(StorageError, match=r"node\.id 'one'"):
        asyncio.run(start())
    path.write_text("node.id=1\n")
    asyncio.run(start())


def test_a_start_that_fails_closes_the_metadata_log(tmp_path: Path) -> None:
    class FailingRole(LoneRole):
        def follow_catalog(self) -> None:
            raise StorageError("no log can be opened")

    async def run() -> None:
        broker = BrokerServer(BrokerConfig({}), tmp_path, ("127.0.0.1", 0), new_role=FailingRole)
        with pytest.raises(StorageError, match="no log can be opened"):
            await broker.start()
        with pytest.raises(KafkaError, match="was abandoned"):
            broker.metadata_log.begin_epoch(1, 1, (1,))

    asyncio.run(run())


@pytest.mark.claim(2, part=True)
@pytest.mark.behaviour(53, part=True)
def test_deleted_records_stay_deleted_after_a_crash(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    running = own_broker()
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
        for value in (b"a", b"b", b"c"):
            produce(wire, topic, [value])
        part = {"partition_index": 0, "offset": 2}
        reply = wire.call(21, 2, {"topics": [{"name": topic, "partitions": [part]}], "timeout": 1000})
        assert reply.topics[0].partitions[0].low_watermark == 2
    running.kill()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert list_offset(wire, topic, -2) == 2
        assert wire.call(1, 11, fetch(topic, 1, max_wait_ms=0)).responses[0].partitions[0].error_code == 1
        assert produce(wire, topic, [b"d"]).base_offset == 3


@pytest.mark.claim(92, part=True)
def test_kill_9_under_load_loses_no_acknowledged_record(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    running = own_broker()
    acknowledged: dict[int, bytes] = {}
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
    for round_number in range(3):
        with Wire(running.bootstrap) as wire:
            for number in range(40):
                value = f"{round_number}-{number}".encode() * 50
                answer = produce(wire, topic, [value])
                assert answer.error_code == 0
                acknowledged[answer.base_offset] = value
            for _ in range(20):  # some requests are in flight when the broker is killed
                produce(wire, topic, [b"unacknowledged"], acks=0)
        running.kill()
        running.start()
    found: dict[int, bytes] = {}
    with Wire(running.bootstrap) as wire:
        from odradek.batches.rows import iter_records

        end, offset = end_offset(wire, topic), 0
        while offset < end:
            reply = wire.call(1, 11, fetch(topic, offset, max_wait_ms=0))
            for row in iter_records(reply.responses[0].partitions[0].records):
                found[row.offset] = row.value or b""
                offset = row.offset + 1
    assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
    assert sorted(found) == list(range(end)), "the offsets have no gap"


@PLAIN
def test_a_new_broker_has_little_memory_and_no_numeric_libraries(tmp_path: Path) -> None:
    running = BrokerProcess(tmp_path).start()
    assert running.pid is not None
    assert "odradek.broker" in Path(f"/proc/{running.pid}/cmdline").read_text(), "not a fork"
    loaded = Path(f"/proc/{running.pid}/maps").read_text()
    assert not [name for name in ("numba", "llvmlite", "pyarrow", "numpy") if name in loaded]
    status = Path(f"/proc/{running.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 80_000
    running.stop()


# --- requests that test modules share ---------------------------------------------------------------------------


def describe(wire: Wire, topic: str):
    message = {"topics": [{"name": topic, "topic_id": None}], "allow_auto_topic_creation": False,
               "include_topic_authorized_operations": False}  # fmt: skip
    return wire.call(3, 12, message).topics[0]


def delete(wire: Wire, topic: str) -> int:
    return wire.call(20, 5, {"topic_names": [topic], "timeout": 1000}).responses[0].error_code


def producer_id(wire: Wire) -> int:
    return wire.call(22, 1, {"transactional_id": None, "transaction_timeout": 1000}).producer_id


def config_of(wire: Wire, topic: str, name: str) -> str | None:
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": [name]}
    message = {"resources": [resource], "include_synonyms": False, "include_documentation": False}
    return wire.call(32, 4, message).results[0].configs[0].value


def list_offset(wire: Wire, topic: str, timestamp: int) -> int:
    part = {"partition_index": 0, "timestamp": timestamp}
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [part]}]}
    return wire.call(2, 2, message).topics[0].partitions[0].offset


def end_offset(wire: Wire, topic: str) -> int:
    return list_offset(wire, topic, -1)


def test_automatic_topic_creation_depends_on_client_and_broker(own_broker: Callable[..., RunningBroker]) -> None:
    with Wire(own_broker(auto_create_topics_enable="false").bootstrap) as wire:
        message = {"topics": [{"name": unique("t")}], "allow_auto_topic_creation": True}
        assert wire.call(3, 4, message).topics[0].error_code == 3
    with Wire(own_broker().bootstrap) as wire:
        message = {"topics": [{"name": unique("t")}], "allow_auto_topic_creation": False}
        assert wire.call(3, 4, message).topics[0].error_code == 3
        made = wire.call(3, 4, message | {"allow_auto_topic_creation": True}).topics[0]
        assert made.error_code == 0
        assert len(made.partitions) == 4  # num.partitions of these tests
        bad = wire.call(3, 4, {"topics": [{"name": "no good"}], "allow_auto_topic_creation": True}).topics[0]
        assert bad.error_code == 17


@pytest.mark.behaviour(52, part="a")
def test_a_leader_epoch_begins_after_an_unclean_stop(own_broker: Callable[..., RunningBroker], topic: str) -> None:
    # So a consumer that continues has to look up the end offset of the epoch that it has read.
    running = own_broker()

    def epoch(wire: Wire) -> int:
        return int(describe(wire, topic).partitions[0].leader_epoch)

    def ended(wire: Wire, number: int) -> tuple[int, int]:
        part = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": number}
        message = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}
        answer = wire.call(23, 4, message).topics[0].partitions[0]
        return answer.leader_epoch, answer.end_offset

    def stored(wire: Wire, number: int) -> bool:
        return int(produce(wire, topic, [b"%d" % number]).error_code) == 0

    epochs = []
    with Wire(running.bootstrap) as wire:
        create(wire, topic)
    for number in range(3):
        with Wire(running.bootstrap) as wire:
            eventually(partial(stored, wire, number))
            epochs.append(epoch(wire))
        running.kill()
        running.start()
    assert sorted(set(epochs)) == epochs, "each start has a new epoch"
    with Wire(running.bootstrap) as wire:
        assert [ended(wire, number) for number in epochs] == [(number, 1 + at) for at, number in enumerate(epochs)]
        asked = fetch(topic, max_wait_ms=0)
        asked["topics"][0]["partitions"][0]["current_leader_epoch"] = epochs[-1]
        assert wire.call(1, 11, asked).responses[0].partitions[0].error_code == ErrorCode.fenced_leader_epoch.value
        last = epoch(wire)
    running.stop()
    running.start()
    with Wire(running.bootstrap) as wire:
        assert epoch(wire) == last or (ON_APACHE and epoch(wire) > last), "no record can be missing after a clean stop"
        assert ended(wire, epochs[-1]) == (epochs[-1], 3)
