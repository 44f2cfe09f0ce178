"""The image's command line, without a container: a broker starts, the health check finds it, and SIGTERM ends it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import odradek
from odradek.client import NewTopic

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["odradek"]
DATA, PORT = "/var/lib/odradek", "9092"
LIMIT_S = 60
ENVIRONMENT = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def instruction(name: str) -> str:
    """The last instruction with this name in the Dockerfile. It belongs to the final stage."""
    return re.findall(rf"^{name} (.*)$", FILE, re.MULTILINE)[-1]


def on_this_machine(words: list[str], folder: Path, port: int, image_port: str = PORT) -> list[str]:
    """A command line of the image with another folder and port, on the loopback interface."""
    changes = {DATA: str(folder), "0.0.0.0": "127.0.0.1", f":{image_port}": f":{port}"}
    changed = words
    for old, new in changes.items():
        changed = [word.replace(old, new) for word in changed]
    assert changed != words
    return changed


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def container(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """The process that a container would run, with the arguments of the compose file."""
    advertised = [
        word.replace("${ODRADEK_ADDRESS:-localhost:9092}", f"127.0.0.1:{port}") for word in COMPOSE["command"]
    ]
    command = on_this_machine(json.loads(instruction("ENTRYPOINT")), tmp_path / "data", port) + advertised
    with subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready 127.0.0.1:{port}\n", process.stderr
        yield process
        process.kill()


def health(folder: Path, port: int) -> subprocess.CompletedProcess[str]:
    command = json.loads(instruction("HEALTHCHECK").partition("CMD ")[2])
    return subprocess.run(
        on_this_machine(command, folder, port),
        env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def test_the_command_line_serves_and_ends_on_sigterm(
    container: subprocess.Popen[str], tmp_path: Path, port: int
) -> None:
    with odradek.Admin(f"127.0.0.1:{port}") as admin:
        admin.create_topics([NewTopic("orders", 1)])
        assert [node.port for node in admin.describe_cluster().nodes] == [port]
    found = health(tmp_path, port)
    assert found.returncode == 0, found.stderr
    assert "orders" in found.stdout.split()
    container.send_signal(getattr(signal, instruction("STOPSIGNAL")))
    assert container.wait(LIMIT_S) == 0
    assert any((tmp_path / "data").iterdir())


def test_the_health_check_fails_without_a_broker(tmp_path: Path, port: int) -> None:
    found = health(tmp_path, port)
    assert found.returncode == 1
    assert len(found.stderr.splitlines()) == 1, found.stderr


def test_the_image_is_not_run_by_root_and_keeps_its_data_in_a_volume() -> None:
    user = instruction("USER")
    assert user == "odradek"
    assert f"useradd --system --uid 1000 --home-dir {DATA} --create-home {user}" in FILE
    assert json.loads(instruction("VOLUME")) == [DATA]
    assert instruction("EXPOSE") == PORT
    entry = json.loads(instruction("ENTRYPOINT"))
    assert entry[entry.index("--data-dir") + 1] == DATA
    assert entry[entry.index("--listen") + 1] == f"0.0.0.0:{PORT}"


def test_the_image_has_only_the_base_install() -> None:
    stage = FILE[FILE.index("AS build") : FILE.index("\nFROM", FILE.index("AS build"))]
    (install,) = re.findall(r"pip install (.*?) &&", stage)
    assert install.split()[-1] == "/source"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert [name for name in ignored if name.startswith("!") and not (ROOT / name[1:]).exists()] == []


def test_the_compose_file_uses_the_image_as_it_is() -> None:
    assert COMPOSE["volumes"] == [f"data:{DATA}"]
    assert COMPOSE["ports"] == [f"127.0.0.1:{PORT}:{PORT}"]
    assert "user" not in COMPOSE
    assert "entrypoint" not in COMPOSE
