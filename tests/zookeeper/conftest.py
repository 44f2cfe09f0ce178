"""Fixtures of the tests of offsets in ZooKeeper: a chroot of its own for each test on the shared node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from support.brokers import unique

import odradek
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
    """A client below the chroot, for what other programs write."""
    client = KazooClient(connect)
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
