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

from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.tls_settings import node_security
from odradek.cli.main import run
from odradek.testing.ports import reserve_ports
from odradek.text.properties_file import read_properties_file

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
    made = subprocess.Popen([sys.executable, "-m", "odradek", *words], stdout=subprocess.PIPE, text=True, cwd=folder)
    assert made.stdout is not None
    stack.callback(made.stdout.close)
    stack.callback(made.wait, 60)
    stack.callback(made.send_signal, signal.SIGTERM)
    return made.stdout.readline()


def test_one_command_runs_a_cluster(tmp_path: Path) -> None:
    command, kill, describe = blocks("Run one", "sh no-run")
    assert "127.0.0.1:9092" in command
    with ExitStack() as stack:
        words = command.replace("127.0.0.1:9092", "127.0.0.1:0").split()[1:]
        addresses = served(words, stack, tmp_path).split()[1]
        done = subprocess.run(
            [sys.executable, "-m", "odradek", *describe.replace("127.0.0.1:9092", addresses).split()[1:]],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert [line.split()[:2] for line in done.stdout.splitlines()[1:5]] == [
            ["1", "broker"], ["2", "broker"], ["3", "broker"], ["100", "controller"]
        ]  # fmt: skip
        lock = tmp_path / "cluster" / "2" / ".lock"
        killed = lock.read_text()
        subprocess.run(["sh", "-ec", kill.partition("\n")[0]], cwd=tmp_path, check=True)
        eventually(lambda: lock.read_text() not in ("", killed), what="--restart starts the broker again")
    assert sorted(os.listdir(tmp_path / "cluster")) == ["1", "2", "3", "controller"]


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
    (script,) = blocks("Nodes by hand", "sh no-run")
    controller, broker, _, _ = blocks("Nodes by hand", "properties")
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
    controller, broker, _, secured = blocks("Nodes by hand", "properties")
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
