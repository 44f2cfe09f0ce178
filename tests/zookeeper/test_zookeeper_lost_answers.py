"""Transactions that get lost on the way to a node of ZooKeeper or back, and writers that race."""

from __future__ import annotations

import threading

import pytest
from kazoo.client import KazooClient
from support.lossy_zookeeper import LossyZooKeeper
from support.zookeeper_harness import GroupHarness, OffsetWatcher, read

import odradek
from odradek.client import CommitFailed
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.config import config_of
from odradek.zookeeper.connection import Create, ZooKeeperConnection
from odradek.zookeeper.errors import ZnodeChanged, ZooKeeperUnreachable
from odradek.zookeeper.layout import GroupPartition
from odradek.zookeeper.store import OffsetChange, OffsetStore

A, B = Tp("orders", 0), Tp("orders", 1)
LOST = pytest.mark.parametrize("lost", ["answer", "request"])


def chroot(connect: str) -> str:
    return "/" + connect.partition("/")[2]


@LOST
def test_a_commit_is_lost_on_the_way(harness: GroupHarness, zookeeper: odradek.ZooKeeper, lost: str) -> None:
    with LossyZooKeeper(zookeeper) as lossy:
        address = lossy.connect_string + chroot(harness.connect)
        with harness.consumer(zookeeper_connect=address, zookeeper_session_timeout_ms=20_000) as one:
            one.subscribe([harness.topic])
            read(one, 20)
            one.commit({harness.a: 2, harness.b: 2})
            watcher = OffsetWatcher(harness)
            lossy.lose = lost
            one.commit({harness.a: 5, harness.b: 6})
            assert lossy.lost == 1
            assert (harness.offset(0), harness.offset(1)) == (5, 6)
            one.commit({harness.a: 7})
            watcher.wait_for(7)
            watcher.assert_never_back()
            assert one.assignment() == {harness.a, harness.b}


def test_a_commit_without_an_answer_does_not_overwrite_a_second_writer(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper
) -> None:
    """The node has written the commit, and another program then wrote a larger offset."""
    with LossyZooKeeper(zookeeper) as lossy:
        address = lossy.connect_string + chroot(harness.connect)
        with harness.consumer(zookeeper_connect=address, zookeeper_session_timeout_ms=20_000) as one:
            one.subscribe([harness.topic])
            read(one, 20)
            one.commit({harness.a: 2, harness.b: 2})
            watcher = OffsetWatcher(harness)
            lossy.meanwhile = lambda: harness.put({0: 8})
            lossy.lose = "answer"
            with pytest.raises(CommitFailed, match="was changed by another writer to 8") as refused:
                one.commit({harness.a: 5})
            assert "\n" not in str(refused.value)
            with pytest.raises(CommitFailed):
                one.commit({harness.a: 6})
            assert lossy.lost == 1
            watcher.wait_for(8)
            assert harness.offset(0) == 8
            watcher.assert_never_back()


@LOST
def test_a_write_of_a_command_is_lost_on_the_way(zookeeper: odradek.ZooKeeper, connect: str, lost: str) -> None:
    with LossyZooKeeper(zookeeper) as lossy:
        address = lossy.connect_string + chroot(connect)
        with ZooKeeperConnection(config_of(address, environment={})) as connection:
            store = OffsetStore(connection)
            store.write([OffsetChange(GroupPartition("g", A), 5, None)])
            seen = store.read("g").offsets
            lossy.lose = lost
            store.write([OffsetChange(GroupPartition("g", tp), 6, seen.get(tp)) for tp in (A, B)])
            assert lossy.lost == 1
            found = store.read("g")
            assert found.next_offsets() == {A: 6, B: 6}
            assert [found.offsets[tp].version for tp in (A, B)] == [1, 0], "written once"


def test_two_writers_lose_no_write(zookeeper: odradek.ZooKeeper, connect: str) -> None:
    """Each writer adds 1 to the offset that it has read. With several nodes, the writers use different nodes."""
    rounds = 25
    written: list[int] = []
    refused: list[str] = []
    problems: list[BaseException] = []
    begin = threading.Barrier(2)

    def count_up(number: int) -> None:
        try:
            node = zookeeper.nodes[number % len(zookeeper.nodes)]
            address = node.connect_string + chroot(connect)
            with ZooKeeperConnection(config_of(address, environment={})) as connection:
                store = OffsetStore(connection)
                begin.wait()
                for _ in range(rounds):
                    seen = store.read("g").offsets.get(A)
                    offset = seen.offset + 1 if seen else 1
                    try:
                        store.write([OffsetChange(GroupPartition("g", A), offset, seen)])
                        written.append(offset)
                    except ZnodeChanged as error:
                        refused.append(str(error))
        except BaseException as error:
            problems.append(error)

    writers = [threading.Thread(target=count_up, args=(number,)) for number in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert problems == []
    assert sorted(written) == list(range(1, len(written) + 1)), "the two writers never wrote the same offset"
    assert len(written) + len(refused) == 2 * rounds
    assert [text for text in refused if "\n" in text] == []
    client = KazooClient(connect)
    client.start()
    client.sync("/")
    data, stat = client.get("/consumers/g/offsets/orders/0")
    client.stop()
    client.close()
    assert (int(data), stat.version) == (len(written), len(written) - 1)


def test_a_session_outlives_a_node_that_does_not_reply_to_a_connection(
    zookeeper: odradek.ZooKeeper, connect: str
) -> None:
    """A node that is starting may do this. kazoo with one address waits until the session has expired."""
    with LossyZooKeeper(zookeeper) as lossy:
        address = lossy.connect_string + chroot(connect)
        config = config_of(address, {"zookeeper.session.timeout.ms": "6000"}, environment={})
        with ZooKeeperConnection(config) as connection:
            session = connection.session_id
            lossy.silent = 1
            lossy.lose = "request"
            with pytest.raises(ZooKeeperUnreachable):
                connection.commit([Create("/one", b"", False)])
            assert lossy.lost == 1
            assert connection.exists("/")
            assert connection.session_id == session
            assert lossy.silent == 0
