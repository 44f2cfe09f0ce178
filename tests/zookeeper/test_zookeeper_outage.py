"""All nodes of ZooKeeper are killed while consumers run, and come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.brokers import eventually
from support.publish import publish
from support.zookeeper_harness import GroupHarness, OffsetWatcher, read

import odradek
from odradek.client import Admin, RequestTimedOut
from odradek.core.ids import TopicPartition as Tp

DUAL = {"offsets_storage": "kafka", "dual_commit_enabled": True}


@pytest.fixture
def kill(zookeeper: odradek.ZooKeeper) -> Iterator[Callable[[], None]]:
    """A function that kills all nodes. After the test the fixture starts the nodes again."""
    yield zookeeper.kill
    zookeeper.start()


def test_commits_wait_while_no_node_runs(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper, kill: Callable[[], None]
) -> None:
    lost: list[list[Tp]] = []
    done: list[Exception | None] = []
    with harness.consumer(zookeeper_session_timeout_ms=30_000) as one:
        one.subscribe([harness.topic], on_lost=lost.append)
        read(one, 20)
        one.commit({harness.a: 3, harness.b: 3})
        watcher = OffsetWatcher(harness)
        kill()
        with pytest.raises(RequestTimedOut, match="committing offsets of group") as refused:
            one.commit({harness.a: 4}, timeout=0.5)
        assert "\n" not in str(refused.value)
        one.commit_async({harness.a: 5}, lambda offsets, error: done.append(error))
        publish(harness.bootstrap, harness.topic, ["x", "y"], partition=1)
        assert read(one, 2) == [10, 11], "reading goes on"
        assert done == []
        zookeeper.start()
        one.commit({harness.b: 12}, timeout=30)
        assert done == [None]
        assert (harness.offset(0), harness.offset(1)) == (5, 12)
        one.commit({harness.a: 6})
        watcher.wait_for(6)
        watcher.assert_never_back()
        assert lost == []
        assert one.poll(0.2) == {}


def test_a_consumer_that_starts_while_no_node_runs_waits_for_its_offsets(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper, kill: Callable[[], None]
) -> None:
    harness.put({0: 7, 1: 9})
    kill()
    # A node that is starting may accept a connection and not reply. kazoo then waits for one session timeout, here 6 s.
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        eventually(lambda: one.poll(0.1) or one.assignment(), within_s=30)
        assert one.poll(0.5) == {}
        zookeeper.start()
        assert sorted(read(one, 4)) == [7, 8, 9, 9]


def test_dual_commits_go_on_while_no_node_runs(
    harness: GroupHarness, admin: Admin, zookeeper: odradek.ZooKeeper, kill: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Kafka has the commits. ZooKeeper gets the offsets with the first commit after its nodes run again."""
    with harness.consumer(zookeeper_session_timeout_ms=1000, **DUAL) as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 3, harness.b: 3})
        watcher = OffsetWatcher(harness)
        kill()
        one.commit({harness.a: 5})
        publish(harness.bootstrap, harness.topic, ["x", "y"], partition=1)
        assert read(one, 2) == [10, 11]
        one.commit({harness.b: 12})
        in_kafka = {tp: commit.offset for tp, commit in admin.list_group_offsets(harness.group).items()}
        assert in_kafka == {harness.a: 5, harness.b: 12}
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert any(text.endswith("the commit is in Kafka only") for text in warned), warned
        assert [text for text in warned if "\n" in text] == []
        zookeeper.start()

        def caught_up() -> bool:
            one.commit({harness.b: 12})
            return (harness.offset(0), harness.offset(1)) == (5, 12)

        eventually(caught_up, within_s=30)
        watcher.wait_for(5)
        watcher.assert_never_back()
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
