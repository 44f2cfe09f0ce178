"""docs/cluster.md: its programs and commands run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.brokers import eventually
from support.certificates import Authority
from support.pages import DOCS

import odradek
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.tls_settings import node_security
from odradek.cli.main import run
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles
from odradek.testing.ports import reserve_ports
from odradek.text.properties_file import read_properties_file

pytestmark = pytest.mark.usefixtures("forked_commands")
PAGE = (DOCS / "cluster.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]}


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", SECTIONS[section], re.MULTILINE | re.DOTALL)


def test_the_program_runs(tmp_path: Path) -> None:
    (program,) = blocks("In a test", "python")
    done = subprocess.run(
        [sys.executable, "-c", "import odradek.client\n" + program], capture_output=True, text=True, timeout=120,
        check=False, cwd=tmp_path,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if "; waiting up to " not in line]  # of a busy machine
    assert (done.returncode, lines) == (0, [])
    assert list(tmp_path.iterdir()) == []


def served(words: list[str], stack: ExitStack, folder: Path) -> str:
    """Starts a command that serves until the end of the test. Returns its first line."""
    return Serving(words, stack, folder).ready


class Serving:
    """A command that serves, until ``stop`` or the end of the test. ``ready``: its first line."""

    def __init__(self, words: list[str], stack: ExitStack, folder: Path) -> None:
        self._log = folder / f"log-{len(list(folder.glob('log-*')))}"
        with self._log.open("w") as log:
            made = subprocess.Popen(
                [sys.executable, "-m", "odradek", *words], stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder
            )
        assert made.stdout is not None
        self._process = made
        stack.callback(made.stdout.close)
        stack.callback(self.stop)
        self.ready = made.stdout.readline()

    @property
    def addresses(self) -> list[str]:
        return self.ready.split()[1].split(",")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(120) == 0, self.said()

    def said(self) -> str:
        return self._log.read_text()

    def run(self, script: str, folder: Path) -> str:
        """Runs lines of the page with the addresses of these brokers. Returns what they print."""
        for number, address in enumerate(self.addresses):
            script = script.replace(f"127.0.0.1:{9092 + number}", address)
        command = f'odradek() {{ "{sys.executable}" -m odradek "$@"; }}\n{script}'
        done = subprocess.run(["sh", "-ec", command], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}\n{self.said()}"
        return done.stdout


def free_port(command: str) -> list[str]:
    """Returns the arguments of a command of the page at ports that are free."""
    assert "127.0.0.1:9092" in command
    return command.replace("127.0.0.1:9092", "127.0.0.1:0").split()[1:]


def test_one_command_runs_a_cluster(tmp_path: Path) -> None:
    """With ``--restart``, a broker that is killed comes back."""
    command, kill, _, describe = blocks("Run one", "sh no-run")
    with ExitStack() as stack:
        cluster = Serving(free_port(command), stack, tmp_path)
        assert [line.split()[:2] for line in cluster.run(describe, tmp_path).splitlines()[1:5]] == [
            ["1", "broker"], ["2", "broker"], ["3", "broker"], ["100", "controller"]
        ]  # fmt: skip
        lock = tmp_path / "cluster" / "2" / ".lock"
        killed = lock.read_text()
        cluster.run(kill, tmp_path)
        eventually(lambda: lock.read_text() not in ("", killed), what="--restart starts the broker again")
        assert "broker 2 at " in cluster.said()
        assert "was killed by SIGKILL: it is started again" in cluster.said()
    assert sorted(os.listdir(tmp_path / "cluster")) == ["1", "2", "3", "controller"]


def test_a_broker_dies_another_is_added_and_removed(tmp_path: Path) -> None:
    """The commands of "Run one" without ``--restart``, then those of "Grow it", with a topic on all brokers."""
    command, kill, under_replicated, _ = blocks("Run one", "sh no-run")
    grow, stop, remove = blocks("Grow it", "sh no-run")

    def in_sync(cluster: Serving) -> set[int]:
        """The brokers that are in the ISR of each partition of the first topic."""
        with odradek.Admin(",".join(cluster.addresses)) as admin:
            return set.intersection(*(set(one.isr) for one in admin.describe_topics(["t"])["t"].partitions))

    def rows(cluster: Serving) -> list[list[str]]:
        """Partition, leader, replicas and ISR of each under-replicated partition, as the page's command shows them."""
        lines = cluster.run(under_replicated, tmp_path).splitlines()
        return [line.split() for line in lines if line.strip()[:1].isdigit()]

    with ExitStack() as stack:
        cluster = Serving(free_port(command.replace(" --restart", "")), stack, tmp_path)
        cluster.run("odradek topics create t --partitions 2 -b 127.0.0.1:9092", tmp_path)
        cluster.run(kill, tmp_path)
        eventually(lambda: in_sync(cluster) == {1, 3}, within_s=60, what="the end of the session of broker 2")
        found = rows(cluster)
        assert [row[0] for row in found] == ["0", "1"]
        assert all("2" in row[2] and "2" not in row[3] for row in found)
        assert "was killed by SIGKILL: partitions without another replica have no leader" in cluster.said()
        cluster.stop()
        cluster = Serving(free_port(grow), stack, tmp_path)
        assert len(cluster.addresses) == 4
        cluster.run("odradek topics create u --partitions 4 -b 127.0.0.1:9092", tmp_path)
        shown = cluster.run("odradek topics describe u -b 127.0.0.1:9092", tmp_path)
        assert re.search(r"^ +\d +\d +\S*4", shown, re.MULTILINE), shown
        cluster.run(stop, tmp_path)
        eventually(lambda: "broker 4 at " in cluster.said(), within_s=60, what="the line of broker 4")
        assert "has ended with code 0" in cluster.said()
        cluster.run(remove, tmp_path)
        left = cluster.run("odradek cluster describe -b 127.0.0.1:9092", tmp_path).splitlines()
        assert [line.split()[0] for line in left[1:5]] == ["1", "2", "3", "100"]
        cluster.stop()
        cluster = Serving(free_port(command), stack, tmp_path)
        assert len(cluster.addresses) == 3
        eventually(lambda: in_sync(cluster) == {1, 2, 3}, within_s=60, what="broker 2 in sync")

        def only_broker_4_lacks() -> bool:
            """Whether the other brokers are in sync, also in the partitions of the second topic."""
            found = rows(cluster)
            return bool(found) and all("4" in row[2] and set(row[3].split(",")) < {"1", "2", "3"} for row in found)

        eventually(only_broker_4_lacks, within_s=60, what="all but broker 4 in sync")
    assert sorted(os.listdir(tmp_path / "cluster")) == ["1", "2", "3", "controller"]
    assert (tmp_path / "removed-broker-4" / "meta.properties").exists()


def test_a_lone_broker_becomes_broker_1(tmp_path: Path) -> None:
    """The tests of tests/broker/test_converted_cluster.py look at the records."""
    (script,) = blocks("From a lone broker", "sh no-run")
    (address,) = [f"127.0.0.1:{one.port}" for one in reserve_ports(1)]
    with ExitStack() as stack:
        words = ["serve", "--data-dir", "./kafka-data", "--listen", address]
        assert served(words, stack, tmp_path) == f"ready {address}\n"
        assert run(["topics", "create", "kept", "-b", address]) == 0
    with ExitStack() as stack:
        for line in script.splitlines():
            words = line.split()
            if words[1] == "serve":
                found = served(line.replace("127.0.0.1:9092", "127.0.0.1:0").split()[1:], stack, tmp_path).split()[1]
            else:
                program = [sys.executable, "-m", "odradek"] if words[0] == "odradek" else words[:1]
                subprocess.run([*program, *words[1:]], check=True, cwd=tmp_path, capture_output=True)
        assert run(["topics", "describe", "kept", "-b", found]) == 0


def test_nodes_are_started_by_hand(tmp_path: Path) -> None:
    script, _ = blocks("Nodes by hand", "sh no-run")
    controller, broker, _, _, _ = blocks("Nodes by hand", "properties")
    reservations = reserve_ports(2)
    ports = {str(19092 + number): str(one.port) for number, one in enumerate(reservations)}
    for name, texts in (("controller", controller), ("node-1", broker)):
        for old, new in ports.items():
            texts = texts.replace(old, new)
        (tmp_path / f"{name}.properties").write_text(texts)
    with ExitStack() as stack:
        for reservation in reservations:
            stack.callback(reservation.close)
        for line in script.splitlines():
            words = line.removesuffix(" &").split()[1:]
            if words[0] == "serve":
                assert served(words, stack, tmp_path).startswith("ready 127.0.0.1:")
            else:
                subprocess.run([sys.executable, "-m", "odradek", *words], check=True, cwd=tmp_path, capture_output=True)
        assert run(["topics", "create", "t", "-b", f"127.0.0.1:{ports['19092']}"]) == 0


def test_a_broker_of_another_machine_joins_moved_nodes(tmp_path: Path) -> None:
    """The folders of ``serve --brokers`` are started by hand, at addresses of two machines: both are this one, by other
    addresses of the loopback. Then a broker joins by the lines of the page."""
    (command, *_) = blocks("Run one", "sh no-run")
    controller, broker, other, *_ = blocks("Nodes by hand", "properties")
    _, join = blocks("Nodes by hand", "sh no-run")
    with ExitStack() as stack:
        words = free_port(command.replace("--brokers 3", "--brokers 1").replace(" --racks a,b,c --restart", ""))
        cluster = Serving(words, stack, tmp_path)
        cluster.run("odradek topics create kept -b 127.0.0.1:9092", tmp_path)
        cluster.stop()
    cluster_id = checkpoints.read_meta_properties(tmp_path / "cluster" / "1", OsFiles())["cluster.id"]
    reservations = reserve_ports(3)
    here = {str(19092 + number): str(one.port) for number, one in enumerate(reservations)}
    here |= {"controller.example.org": "127.0.0.2", "broker-2.example.org": "127.0.0.3"}
    for name, text in (("controller", controller), ("1", broker), ("node-2", other)):
        text = text.replace("100@127.0.0.1", "100@controller.example.org")
        text = text.replace("CONTROLLER://127.0.0.1", "CONTROLLER://controller.example.org")
        for old, new in here.items():
            text = text.replace(old, new)
        (tmp_path / f"{name}.properties").write_text(text)
    with ExitStack() as stack:
        for reservation in reservations:
            stack.callback(reservation.close)
        for name in ("controller", "1"):
            words = ["serve", "--data-dir", f"./cluster/{name}", "--config-file", f"{name}.properties"]
            first = Serving(words, stack, tmp_path)
        form, serve = join.replace("J8aAPcfLQt2bqs1JT_rMgQ", cluster_id).splitlines()
        first.run(form, tmp_path)
        second = Serving(serve.split()[1:], stack, tmp_path)
        assert second.ready, second.said()
        shown = first.run(f"odradek cluster describe -b 127.0.0.1:{here['19092']}", tmp_path)
        assert f"127.0.0.3:{here['19094']}" in shown
        assert cluster_id in shown
        first.run(f"odradek topics describe kept -b 127.0.0.3:{here['19094']}", tmp_path)


def test_a_node_with_both_roles_is_started(tmp_path: Path) -> None:
    *_, both, _ = blocks("Nodes by hand", "properties")
    own, controller = reserve_ports(2)
    texts = both.replace("19092", str(own.port)).replace("19093", str(controller.port))
    (tmp_path / "both.properties").write_text(texts)
    with ExitStack() as stack:
        for reservation in (own, controller):
            stack.callback(reservation.close)
        words = ["--data-dir", "./both", "--config", "both.properties"]
        program = [sys.executable, "-m", "odradek", "cluster", "format", *words]
        subprocess.run(program, check=True, cwd=tmp_path, capture_output=True)
        words = ["serve", "--data-dir", "./both", "--config-file", "both.properties"]
        assert served(words, stack, tmp_path) == f"ready 127.0.0.1:{own.port}\n"
        assert run(["topics", "create", "t", "-b", f"127.0.0.1:{own.port}"]) == 0


def test_the_settings_of_logins_between_nodes_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/security/test_secured_nodes.py starts such nodes."""
    controller, broker, _, _, secured = blocks("Nodes by hand", "properties")
    Authority(tmp_path).issue("node")
    (tmp_path / "ca.pem").rename(tmp_path / "authority.pem")
    monkeypatch.chdir(tmp_path)
    inner = secured.replace("listener.name.controller.", "listener.name.inner.")
    for number, own in enumerate((controller, broker)):
        path = tmp_path / f"{number}.properties"
        own = own.replace("PLAINTEXT://127.0.0.1:19092", "INNER://127.0.0.1:19092,OUTER://127.0.0.1:19094")
        outer = "listener.name.outer.ssl.keystore.type=PEM\nlistener.name.outer.ssl.keystore.location=node.pem\n"
        outer += "listener.name.outer.sasl.enabled.mechanisms=SCRAM-SHA-256\n"
        path.write_text(own + secured + (inner + outer if number else ""))
        texts = {name: one.value for name, one in read_properties_file(path, "--config-file").items()}
        if not number:
            texts = {name: text for name, text in texts.items() if "inter.broker" not in name}
            texts["listener.security.protocol.map"] = "CONTROLLER:SASL_SSL"
        config = BrokerConfig(texts)
        assert config.roles is not None
        if number:
            for at_controller in (True, False):
                found = node_security(config, at_controller=at_controller)
                assert (found.protocol, found.mechanism) == ("SASL_SSL", "PLAIN")
