"""A cluster of processes: ``odradek.Cluster`` and ``odradek serve --brokers``, ended in all ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.cli.broker.serve_cluster import replica_defaults, said_of_topics
from odradek.cli.main import run
from odradek.core.errors import ConfigError, ErrorCode, StorageError
from odradek.testing.process import BrokerFailed

SESSION_MS = 3_000
SETTINGS = {"broker.session.timeout.ms": SESSION_MS, "broker.heartbeat.interval.ms": 300}
CREATE_TOPICS, METADATA, QUORUM = 19, 3, 55
NODES = (1, 2, "controller")


@pytest.fixture(scope="module")
def shared() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(brokers=2, racks=["a", "b"], config=SETTINGS) as made:
        yield made


@pytest.fixture
def cluster(shared: odradek.Cluster) -> odradek.Cluster:
    """The shared cluster with all nodes up."""
    for node in NODES:
        shared.resume(node)
    return shared.start()


def create(address: str, name: str) -> ErrorCode:
    topic = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    with Wire(address) as wire:
        reply = wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 20_000, "validate_only": False})
    code: ErrorCode = reply.topics[0].error_code
    return code


def topics(address: str) -> set[str]:
    """The topics that a broker knows."""
    message = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    with Wire(address) as wire:
        return {topic.name for topic in wire.call(METADATA, 12, message).topics}


def state_of(pid: int) -> str:
    """The state of a process: T if it is halted, Z if it has ended; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    return state_of(pid) not in ("", "Z")


def halt(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: state_of(pid) == "T")


def pids(cluster: odradek.Cluster) -> list[int]:
    return [pid for node in NODES if (pid := cluster.pid(node)) is not None]


# --- odradek.Cluster --------------------------------------------------------------------------------------------


def test_a_change_at_one_broker_is_known_to_all(cluster: odradek.Cluster) -> None:
    assert create(cluster.address(2), "seen") is ErrorCode.none
    assert "seen" in topics(cluster.address(2)), "the reply comes when this broker has applied the change"
    eventually(lambda: "seen" in topics(cluster.address(1)))
    assert cluster.brokers == (1, 2)
    assert cluster.bootstrap_servers == f"{cluster.address(1)},{cluster.address(2)}"


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_node_comes_back_with_its_data_and_address(cluster: odradek.Cluster, node: int | str, how: str) -> None:
    name = f"{how}-{node}"
    assert create(cluster.address(1), name) is ErrorCode.none
    address, former = cluster.address(node), cluster.pid(node)
    getattr(cluster, how)(node)
    assert not cluster.running(node)
    cluster.start(node)
    assert (cluster.address(node), cluster.running(node)) == (address, True)
    assert cluster.pid(node) != former
    for broker in cluster.brokers:
        eventually(lambda broker=broker: name in topics(cluster.address(broker)))
    assert create(cluster.address(2), f"after-{name}") is ErrorCode.none
    assert cluster.failed() == []


def test_a_paused_broker_is_fenced_and_goes_on(cluster: odradek.Cluster) -> None:
    def leaders(name: str) -> set[int]:
        message = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": False,
                   "include_topic_authorized_operations": False}  # fmt: skip
        with Wire(cluster.address(1)) as wire:
            return {part.leader_id for part in wire.call(METADATA, 12, message).topics[0].partitions}

    create(cluster.address(1), "spread")
    assert leaders("spread") == {1, 2}
    cluster.pause(2)
    eventually(lambda: leaders("spread") == {1, -1}, what="the broker is fenced")
    cluster.resume(2)
    eventually(lambda: leaders("spread") == {1, 2}, what="the broker leads again")


def test_no_change_is_acknowledged_without_the_controller(cluster: odradek.Cluster) -> None:
    cluster.kill("controller")
    topic = {"name": "lost", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    with Wire(cluster.address(1)) as wire:
        wire.socket.settimeout(2)
        with pytest.raises(TimeoutError):
            wire.call(CREATE_TOPICS, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    cluster.start("controller")
    eventually(lambda: create(cluster.address(1), "found") in (ErrorCode.none, ErrorCode.topic_already_exists))


def test_unknown_nodes_and_wrong_settings_are_refused(cluster: odradek.Cluster, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no node 3: the nodes are 1, 2 and 'controller'"):
        cluster.kill(3)
    with pytest.raises(ValueError, match="there is no node 100"):
        cluster.kill(100)
    with pytest.raises(BrokerFailed, match="running already"):
        cluster.start(1)
    with pytest.raises(ConfigError, match=r"node\.id: each node of the cluster has a value of its own: leave it out"):
        odradek.Cluster(config={"node.id": 4}, data_dir=tmp_path)
    with pytest.raises(ConfigError, match="2 racks for 3 brokers: name one rack for each broker"):
        odradek.Cluster(racks=["a", "b"], data_dir=tmp_path)
    with pytest.raises(ConfigError, match="brokers must be 1 to 99, not 0"):
        odradek.Cluster(0)
    assert list(tmp_path.iterdir()) == []


def test_the_data_of_a_cluster_stay_together(tmp_path: Path) -> None:
    with odradek.Cluster(1, data_dir=tmp_path / "one") as first:
        assert create(first.bootstrap_servers, "kept") is ErrorCode.none
    with odradek.Cluster(1, data_dir=tmp_path / "one") as again:
        assert again.cluster_id == first.cluster_id
        assert "kept" in topics(again.bootstrap_servers)
    (tmp_path / "one" / "controller").rename(tmp_path / "away")
    with pytest.raises(StorageError, match="the only copy of its metadata, is missing: put it back from a copy"):
        odradek.Cluster(1, data_dir=tmp_path / "one")
    odradek.Cluster(1, data_dir=tmp_path / "two").close()
    (tmp_path / "two" / "controller").rename(tmp_path / "one" / "controller")
    with pytest.raises(StorageError, match=r"belongs to the cluster .*put the right directory back"):
        odradek.Cluster(1, data_dir=tmp_path / "one")


def test_the_directory_of_a_lone_broker_is_to_be_converted(tmp_path: Path) -> None:
    for name in ("one/1", "two/2"):
        with odradek.Broker(data_dir=tmp_path / name, in_thread=True):
            pass
    path = tmp_path / "one" / "1"
    with pytest.raises(StorageError) as refused:
        odradek.Cluster(1, data_dir=tmp_path / "one")
    assert str(refused.value) == (
        f"{path} is the directory of a lone broker: `odradek cluster convert --data-dir {path}` makes it that of "
        "broker 1, with all its topics"
    )
    with pytest.raises(StorageError, match=r"two/2 is the .* its node.id is 1: give it the name 1, then run `odradek"):
        odradek.Cluster(2, data_dir=tmp_path / "two")
    assert run(["cluster", "convert", "--data-dir", str(path)]) == 0
    odradek.Cluster(1, data_dir=tmp_path / "one").close()


def test_close_ends_all_processes_and_removes_their_data() -> None:
    with odradek.Cluster(2, config=SETTINGS) as cluster:
        cluster.pause(1)
        running, folder = pids(cluster), cluster.data_dir
        assert len(running) == 3
    assert not any(map(is_alive, running))
    assert not folder.exists()
    with pytest.raises(BrokerFailed, match="was closed"):
        cluster.start()


OWNER = """
import sys, threading, time, odradek
cluster = odradek.Cluster(2, config={"broker.session.timeout.ms": 3000})
if sys.argv[1] == "serving":
    cluster.start()
    cluster.pause(1)
else:  # a broker that waits for a controller that does not answer
    cluster.start("controller")
    cluster.pause("controller")
    threading.Thread(target=lambda: cluster.start(2), daemon=True).start()
    while cluster.pid(2) is None:
        time.sleep(0.01)
    time.sleep(1)
print(*(pid for node in (1, 2, "controller") if (pid := cluster.pid(node))), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("state", ["serving", "starting"])
def test_no_node_outlives_a_killed_program(state: str) -> None:
    """Also not a paused broker, and one that waits for its controller."""
    with subprocess.Popen([sys.executable, "-c", OWNER, state], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        running = [int(word) for word in owner.stdout.readline().split()]
        assert len(running) == (3 if state == "serving" else 2)
        assert all(map(is_alive, running))
        owner.kill()
    eventually(lambda: not any(map(is_alive, running)), within_s=30)


# --- odradek serve --brokers ------------------------------------------------------------------------------------


class Served:
    """``odradek serve --brokers 2`` in a process of its own."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.errors = folder / "stderr"
        words = ["serve", "--brokers", "2", "--data-dir", str(folder / "d"), "--listen", "127.0.0.1:0", *options]
        words += [f"--config={name}={value}" for name, value in SETTINGS.items()]
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "odradek", *words], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().strip()
        self.said_of_topics = self.process.stdout.readline().strip()
        self.addresses = self.line.removeprefix("ready ").split(",")

    def node(self, name: str) -> int:
        """The process id of a node, by the name of its directory; 0 if it does not run."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid and len(words) > 3 and words[3].endswith(f"/d/{name}".encode()):
                    return int(entry.name)
        return 0

    def nodes(self) -> list[int]:
        return [self.node(name) for name in ("1", "2", "controller")]

    def said(self) -> str:
        return self.errors.read_text()

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@pytest.fixture
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(tmp_path, *getattr(request, "param", ()))
    yield made
    if made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def test_three_brokers_have_three_replicas_and_a_minimum_of_two() -> None:
    assert replica_defaults(1) == {"default.replication.factor": "1", "min.insync.replicas": "1"}
    assert replica_defaults(2) == {"default.replication.factor": "2", "min.insync.replicas": "1"}
    three = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    assert replica_defaults(3) == replica_defaults(7) == three
    assert said_of_topics(three) == "new topics: default.replication.factor=3, min.insync.replicas=2"


@pytest.mark.parametrize("served", [["--config=default.replication.factor=1"]], indirect=True)
def test_a_setting_of_the_user_counts(served: Served) -> None:
    assert served.said_of_topics == "new topics: default.replication.factor=1, min.insync.replicas=1"


def test_one_command_runs_a_cluster(served: Served) -> None:
    first, second = (int(address.rpartition(":")[2]) for address in served.addresses)
    assert second == first + 1
    assert served.said_of_topics == "new topics: default.replication.factor=2, min.insync.replicas=1"
    assert create(served.addresses[1], "t") is ErrorCode.none
    eventually(lambda: "t" in topics(served.addresses[0]))
    running = served.nodes()
    assert all(running)
    assert served.end() == 0
    assert not any(map(is_alive, running))
    assert served.said() == ""


def test_a_lone_broker_does_not_begin_in_the_folder_of_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have an empty log and a cluster id of its own beside the directories of the nodes."""
    for name in ("1", "2", "controller"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").write_text("version=1\n")
    before = sorted(tmp_path.rglob("*"))
    for listen in ([], ["--listen", "127.0.0.1:0"]):
        assert run(["serve", "--data-dir", str(tmp_path), *listen]) == 2
        assert f"{tmp_path} is the folder of a cluster of 2 brokers: add --brokers 2" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("served", [["--restart"]], indirect=True)
def test_nodes_that_die_are_named_and_started_again(served: Served) -> None:
    for name, label in (("2", "broker 2"), ("controller", "the controller")):
        former = served.node(name)
        os.kill(former, signal.SIGKILL)
        eventually(lambda label=label: f"odradek: {label} at " in served.said())
        assert "was killed by SIGKILL: it is started again" in served.said()
        eventually(lambda label=label: served.said().count(f"{label} at ") == 2, within_s=60, what="ready again")
        assert served.node(name) not in (0, former)
    eventually(lambda: create(served.addresses[1], "t") is ErrorCode.none)
    assert served.end(signal.SIGINT) == 0


def test_a_broker_that_dies_is_not_started_again_without_the_option(served: Served) -> None:
    os.kill(served.node("2"), signal.SIGKILL)
    eventually(lambda: "partitions without another replica have no leader until it is back" in served.said())
    assert served.node("2") == 0
    assert "was killed by SIGKILL" in served.said()
    os.kill(served.node("1"), signal.SIGKILL)
    assert served.process.wait(60) == 1
    assert served.said().endswith("odradek: no broker is left: the cluster ends\n")
    assert not any(served.nodes())


def test_a_stop_waits_for_no_dead_controller_and_no_paused_broker(served: Served) -> None:
    running = served.nodes()
    halt(running[0])
    os.kill(running[2], signal.SIGKILL)
    begun = time.monotonic()
    assert served.end() == 0
    assert time.monotonic() - begun < 30
    assert not any(map(is_alive, running))


def test_no_node_outlives_a_killed_command(served: Served) -> None:
    running = served.nodes()
    halt(running[0])
    served.end(signal.SIGKILL)
    eventually(lambda: not any(map(is_alive, running)), within_s=30)


def refused(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "odradek", "serve", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr.strip()


def test_wrong_options_are_refused_with_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    where = ("--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0")
    assert refused(capfd, *where, "--restart") == "odradek: --racks and --restart need --brokers N"
    assert refused(capfd, *where, "--brokers", "2", "--racks", "a").startswith("odradek: 1 rack for 2 brokers: ")
    assert refused(capfd, *where, "--brokers", "3", "--racks", "a,b") == (
        "odradek: 2 racks for 3 brokers: name one rack for each broker"
    )
    assert "--listen HOST:PORT is missing" in refused(capfd, "--data-dir", str(tmp_path / "d"), "--brokers", "3")
    assert "the last of 4 ports in a row is above 65535" in refused(
        capfd, "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:65534", "--brokers", "3"
    )
    assert "node.id: each node of the cluster" in refused(capfd, *where, "--brokers", "3", "--config", "node.id=7")
    assert not (tmp_path / "d").exists()
    with odradek.Broker(data_dir=tmp_path / "lone"):
        pass
    lone = ("--data-dir", str(tmp_path / "lone"), "--listen", "127.0.0.1:0")
    assert refused(capfd, *lone, "--brokers", "3") == (
        f"odradek: {tmp_path}/lone is the directory of a lone broker: choose another directory for the cluster. To "
        "make it broker 1, move it into a new one with the name 1, and run `odradek cluster convert` for it"
    )


def test_a_port_in_use_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with odradek.Broker() as broker:
        line = refused(
            capfd, "--brokers", "1", "--data-dir", str(tmp_path), "--listen", broker.bootstrap_servers,
        )  # fmt: skip
    assert line.startswith(f"odradek: broker 1 at {broker.bootstrap_servers} did not start: cannot listen on ")
