"""Fixtures of the tests of offsets in ZooKeeper: a chroot of its own for each test on the shared node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.conftest import admin, filled, publish  # noqa: F401  fixtures
from kazoo.client import KazooClient
from support.brokers import unique
from support.zookeeper_harness import GroupHarness

import odradek
from odradek.cli.main import run
from odradek.zookeeper.config import config_of
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.store import OffsetStore


@pytest.fixture
def connect(zookeeper: odradek.ZooKeeper) -> Iterator[str]:
    """A connect string with a new, empty chroot."""
    chroot = "/" + unique("chroot")
    client = KazooClient(zookeeper.connect_string)
    client.start()
    client.create(chroot)
    yield zookeeper.connect_string + chroot
    client.stop()
    client.close()


@pytest.fixture
def kazoo(connect: str) -> Iterator[KazooClient]:
    """A client with the chroot, through which tests write as other programs do."""
    # A node that is starting may accept a connection and not reply. kazoo waits for the reply for the session timeout
    # divided by the number of addresses: with one address the session expires then.
    nodes, _, path = connect.partition("/")
    client = KazooClient(",".join([nodes] * 5) + f"/{path}")
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def connection(connect: str) -> Iterator[ZooKeeperConnection]:
    with ZooKeeperConnection(config_of(connect, environment={})) as opened:
        yield opened


@pytest.fixture
def store(connection: ZooKeeperConnection) -> OffsetStore:
    return OffsetStore(connection)


class Tool:
    """Runs ``odradek zookeeper`` in this process. Returns its exit code; ``out`` and ``err`` have what it printed."""

    def __init__(self, connect: str, bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.connect = connect
        self.bootstrap = bootstrap
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, command: str, *arguments: str, kafka: bool = True) -> int:
        both = ["-b", self.bootstrap] if kafka else []
        code = run(["zookeeper", command, "-z", self.connect, *both, *arguments])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, command: str, *arguments: str, kafka: bool = True) -> Any:
        self.code = self(command, "--json", *arguments, kafka=kafka)
        return json.loads(self.out)


@pytest.fixture
def tool(connect: str, bootstrap: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
         monkeypatch: pytest.MonkeyPatch) -> Tool:  # fmt: skip
    """Undo files are written to an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("ODRADEK_ZOOKEEPER_LOGIN", raising=False)
    return Tool(connect, bootstrap, capsys)


@pytest.fixture
def harness(bootstrap: str, connect: str, kazoo: KazooClient, group: str, filled: str) -> GroupHarness:  # noqa: F811  a fixture
    """A new group, and a topic with ten records in each of two partitions."""
    return GroupHarness(bootstrap, connect, kazoo, group, filled)
