"""Consumers with their offsets in ZooKeeper, on a real one: where they start and commit, owners, and two writers."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from support.brokers import eventually
from support.insides import engine_of
from support.zookeeper_harness import GroupHarness, expire, read

import odradek
from odradek import Consumer
from odradek.client import Admin, CommitFailed, IllegalState, OffsetStoreBehind, PartitionOwned, RequestTimedOut
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.extras import command_of
from odradek.core.ids import OffsetAndMetadata
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.errors import NoPermission, OffsetsChanged, ZooKeeperUnreachable
from odradek.zookeeper.members import check_owners, read_members


@pytest.mark.claim(113, part=True)
def test_a_consumer_starts_and_commits_in_zookeeper(harness: GroupHarness, admin: Admin) -> None:
    harness.put({0: 7})
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        assert len(read(one, 13)) == 13
        one.commit()
        assert one.committed([harness.a, harness.b]) == {
            harness.a: OffsetAndMetadata(10),
            harness.b: OffsetAndMetadata(10),
        }
    assert (harness.offset(0), harness.offset(1)) == (10, 10)
    assert admin.list_group_offsets(harness.group) == {}, "Kafka has no commit"


def test_znodes_are_those_of_an_old_consumer(harness: GroupHarness, connection: ZooKeeperConnection) -> None:
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        read(one, 20)
        (name,) = harness.ids()
        assert name.startswith(f"{harness.group}_{socket.gethostname()}-")
        data, stat = harness.kazoo.get(f"/consumers/{harness.group}/ids/{name}")
        assert stat.ephemeralOwner != 0
        found = json.loads(data)
        assert found == {
            "version": 1, "subscription": {harness.topic: 1}, "pattern": "static", "timestamp": found["timestamp"],
        }  # fmt: skip
        assert (harness.owner(0), harness.owner(1)) == (f"{name}-0", f"{name}-0")
        rows = check_owners(read_members(connection, harness.group), {harness.topic: [0, 1]})
        assert [row.problem for row in rows] == ["", ""]
        one.commit()
    assert harness.ids() == []
    assert (harness.owner(0), harness.owner(1)) == (None, None)
    for parent in ("ids", "owners", f"owners/{harness.topic}", f"offsets/{harness.topic}"):
        data, stat = harness.kazoo.get(f"/consumers/{harness.group}/{parent}")
        assert (data, stat.ephemeralOwner) == (None, 0)


@pytest.mark.parametrize(
    "protocol", [{"heartbeat_interval_ms": 300}, pytest.param({"group_protocol": "consumer"}, marks=pytest.mark.slow)]
)
def test_two_consumers_share_the_partitions(harness: GroupHarness, protocol: dict[str, Any]) -> None:
    """A partition never has two owners: a consumer gives it up before the group assigns it to the other consumer."""
    settings = {"auto_commit_interval_ms": 100, "enable_auto_commit": True} | protocol
    with harness.consumer(**settings) as first:
        first.subscribe([harness.topic])
        assert len(read(first, 20)) == 20
        with harness.consumer(**settings) as second:
            second.subscribe([harness.topic])

            def shared() -> bool:
                records = [*first.poll(0.1).records(), *second.poll(0.1).records()]
                assert records == [], "a revocation commits"
                owners = {harness.owner(0), harness.owner(1)}
                return len(harness.ids()) == 2 and len(owners) == 2 and None not in owners

            eventually(shared, within_s=30)
            assert len(first.assignment()) == len(second.assignment()) == 1
        eventually(lambda: first.poll(0.1) or len(first.assignment()) == 2, within_s=30)
        eventually(lambda: first.poll(0.1) or harness.owner(0) == harness.owner(1) is not None, within_s=30)
    assert (harness.offset(0), harness.offset(1)) == (10, 10)


def test_an_owner_keeps_a_consumer_from_reading_until_it_is_gone(harness: GroupHarness) -> None:
    path = harness.own(1)
    with harness.consumer(default_api_timeout_ms=700) as one:
        one.subscribe([harness.topic])
        with pytest.raises(PartitionOwned) as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert str(refused.value) == (
            f"another consumer owns partitions of the group in ZooKeeper, also after 700 ms: {harness.b} by "
            "old_host-1-0: stop that consumer, or increase default_api_timeout_ms if it is about to end"
        )
        assert (harness.owner(0), harness.ids()) == (None, []), "a consumer owns all its partitions, or none"
        harness.kazoo.delete(path)
        assert len(read(one, 20)) == 20
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"


def test_partitions_assigned_by_hand_get_an_owner_and_are_given_up(harness: GroupHarness) -> None:
    with harness.consumer() as one, harness.consumer(default_api_timeout_ms=700) as two:
        one.assign([harness.a])
        assert read(one, 10) == list(range(10))
        two.assign([harness.a])
        with pytest.raises(PartitionOwned, match=f"{harness.a} by {harness.group}_"):
            eventually(lambda: two.poll(0.2), within_s=30)
        two.seek(harness.a, 4)
        with pytest.raises(PartitionOwned):
            eventually(lambda: two.poll(0.2), within_s=30)
        one.commit()
        one.assign([harness.b])
        assert read(two, 6) == [4, 5, 6, 7, 8, 9]
        two.commit()
        one.unsubscribe()
        assert harness.owner(1) is None
    assert (harness.offset(0), harness.offset(1)) == (10, None)


# --- two writers, sessions that end, lost answers -----------------------------------------------------------------


def test_a_second_writer_gets_commit_failed(harness: GroupHarness) -> None:
    lost: list[list[Tp]] = []
    with harness.consumer() as one:
        one.subscribe([harness.topic], on_lost=lost.append)
        read(one, 20)
        one.commit({harness.a: 3, harness.b: 3})
        harness.put({0: 8})
        with pytest.raises(
            CommitFailed, match=f"offsets/{harness.topic}/0 was changed by another writer to 8"
        ) as refused:
            one.commit({harness.a: 5, harness.b: 5})
        assert "\n" not in str(refused.value)
        assert (harness.offset(0), harness.offset(1)) == (8, 3), "all offsets are written, or none"
        with pytest.raises(CommitFailed):
            one.commit({harness.a: 6})
        assert harness.offset(0) == 8
        assert read(one, 2) == [8, 9], "the consumer continues at the other writer's offset"
        assert lost == [[harness.a]]
        assert one.assignment() == {harness.a, harness.b}
        one.commit()
        assert (harness.offset(0), harness.offset(1)) == (10, 10)


def test_an_offset_that_was_deleted_or_created_meanwhile_is_not_overwritten(harness: GroupHarness) -> None:
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        read(one, 20)
        harness.put({1: 2})
        with pytest.raises(CommitFailed, match="was changed by another writer to 2"):
            one.commit()
        assert (harness.offset(0), harness.offset(1)) == (None, 2)
        assert read(one, 8) == list(range(2, 10))
        one.commit()
        harness.kazoo.delete(f"/consumers/{harness.group}/offsets/{harness.topic}/1")
        with pytest.raises(CommitFailed, match=f"offsets/{harness.topic}/1 was changed by another writer"):
            one.commit()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_expired_session_loses_the_partitions(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper, protocol: str
) -> None:
    """Another consumer takes over a partition. The former owner cannot commit, and later gets the partition back."""
    events: list[tuple[str, list[Tp]]] = []
    with harness.consumer(group_protocol=protocol) as one:
        one.subscribe(
            [harness.topic],
            on_assigned=lambda tps: events.append(("assigned", tps)),
            on_revoked=lambda tps: events.append(("revoked", tps)),
            on_lost=lambda tps: events.append(("lost", tps)),
        )
        read(one, 20)
        one.commit({harness.a: 4, harness.b: 4})
        (before,) = harness.ids()
        expire(zookeeper, one)
        path = harness.own(0)
        for offsets in ({harness.a: 9}, {harness.b: 9}, {harness.a: 2, harness.b: 9}):
            with pytest.raises(CommitFailed, match="in ZooKeeper, because its session has expired") as refused:
                one.commit(offsets)
            assert "\n" not in str(refused.value)
        assert (harness.offset(0), harness.offset(1)) == (4, 4)
        assert one.poll(0.5) == {}
        harness.put({0: 7})
        harness.kazoo.delete(path)
        assert sorted(read(one, 9)) == [4, 5, 6, 7, 7, 8, 8, 9, 9]
        assert [event for event in events if event[1]] == [
            (what, [harness.a, harness.b]) for what in ("assigned", "lost", "assigned")
        ]
        assert harness.ids() != [before]
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
        one.commit()
    assert (harness.offset(0), harness.offset(1)) == (10, 10)


def test_a_commit_between_an_expired_session_and_its_notice_changes_nothing(
    harness: GroupHarness, zookeeper: odradek.ZooKeeper
) -> None:
    """The consumer does not know of the expiry yet. ZooKeeper's transaction checks the consumer's registration."""
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 4})
        store = engine_of(one).group.storage.store
        session = store.session
        harness.kazoo.delete(f"/consumers/{harness.group}/ids/{harness.ids()[0]}")  # as when a session ends
        with pytest.raises(OffsetsChanged, match="is gone, because the session has expired"):
            session.commit({harness.a: 9})
        assert harness.offset(0) == 4


@pytest.mark.parametrize("reached", [True, False])
def test_a_lost_answer_in_the_middle_of_a_commit(
    harness: GroupHarness, monkeypatch: pytest.MonkeyPatch, reached: bool
) -> None:
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 2})
        connection = engine_of(one).group.storage.store.connection
        commit, calls = connection.commit, []

        def lossy(operations: list[object]) -> None:
            calls.append(operations)
            if len(calls) > 2 or reached:
                commit(operations)
            if len(calls) <= 2:
                raise ZooKeeperUnreachable("the answer is lost")

        monkeypatch.setattr(connection, "commit", lossy)
        one.commit({harness.a: 5, harness.b: 6})
        assert (harness.offset(0), harness.offset(1)) == (5, 6)
        one.commit({harness.a: 7})
        assert (harness.offset(0), harness.offset(1)) == (7, 6)


def test_a_commit_without_an_answer_and_a_second_writer(harness: GroupHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer looks for its own write and finds the write of the other writer, which it does not overwrite."""
    with harness.consumer() as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 2})
        connection = engine_of(one).group.storage.store.connection
        commit, lost = connection.commit, []

        def lossy(operations: list[object]) -> None:
            if lost:
                commit(operations)
                return
            lost.append(operations)
            harness.put({0: 8})
            raise ZooKeeperUnreachable("the answer is lost")

        monkeypatch.setattr(connection, "commit", lossy)
        with pytest.raises(CommitFailed, match="was changed by another writer to 8"):
            one.commit({harness.a: 5})
        assert harness.offset(0) == 8


def test_commits_wait_while_the_connection_is_away(harness: GroupHarness, zookeeper: odradek.ZooKeeper) -> None:
    (node,) = zookeeper.nodes
    done: list[Exception | None] = []
    with harness.consumer(zookeeper_session_timeout_ms=20_000) as one:
        one.subscribe([harness.topic])
        read(one, 20)
        node.pause()
        try:
            with pytest.raises(RequestTimedOut, match="committing offsets of group") as refused:
                one.commit({harness.a: 3}, timeout=0.5)
            assert "\n" not in str(refused.value)
            one.commit_async({harness.a: 4}, lambda offsets, error: done.append(error))
            assert one.poll(0.1) == {}
        finally:
            node.resume()
        one.commit({harness.b: 9})
        assert done == [None]
        assert (harness.offset(0), harness.offset(1)) == (4, 9), "commits keep their order"


def test_without_permission_the_error_names_the_path(harness: GroupHarness) -> None:
    harness.put({0: 5})
    acl = [make_digest_acl("kafka", "secret", all=True)]
    harness.kazoo.set_acls(f"/consumers/{harness.group}/offsets/{harness.topic}/0", acl)
    with harness.consumer() as one:
        one.assign([harness.a])
        with pytest.raises(NoPermission, match=f"no permission for /consumers/{harness.group}/offsets") as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert "\n" not in str(refused.value)
        assert "zookeeper.login" in str(refused.value)
    harness.kazoo.set_acls(f"/consumers/{harness.group}/owners/{harness.topic}", acl)
    with harness.consumer() as one:
        one.assign([harness.b])
        with pytest.raises(NoPermission, match=f"/consumers/{harness.group}/owners/{harness.topic}"):
            eventually(lambda: one.poll(0.2), within_s=30)


def test_the_login_of_a_consumer_comes_from_a_file(harness: GroupHarness, tmp_path: Path) -> None:
    harness.put({0: 5})
    path = f"/consumers/{harness.group}/offsets/{harness.topic}/0"
    harness.kazoo.add_auth("digest", "kafka:secret")
    harness.kazoo.set_acls(path, [make_digest_acl("kafka", "secret", all=True)])
    file = tmp_path / "client.properties"
    file.write_text("zookeeper.login=kafka:wrong\n")
    with harness.consumer(zookeeper_config=str(file)) as one:
        one.assign([harness.a])
        with pytest.raises(NoPermission, match=f"no permission for {path} as user kafka: log in as") as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert "wrong" not in str(refused.value)
    file.write_text("zookeeper.login=kafka:secret\n")
    with harness.consumer(zookeeper_config=str(file)) as one:
        one.assign([harness.a])
        assert read(one, 5) == [5, 6, 7, 8, 9]
        one.commit()
    assert harness.offset(0) == 10


def test_a_znode_that_is_no_offset_stops_the_start(harness: GroupHarness) -> None:
    harness.put({0: "abc"})
    with harness.consumer() as one:
        one.assign([harness.a])
        with pytest.raises(
            OdradekError, match=f"/{harness.topic}/0 is no offset .* 'abc' is not a whole number"
        ) as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert "\n" not in str(refused.value)
        with pytest.raises(OdradekError, match="'abc' is not a whole number"):
            one.committed([harness.a])


# --- beside Kafka's commits ---------------------------------------------------------------------------------------


def test_a_consumer_does_not_start_behind_the_commit_in_kafka(harness: GroupHarness, admin: Admin) -> None:
    """A pitfall of dual commit: ZooKeeper kept an old offset."""
    harness.put({0: 3})
    admin.alter_group_offsets(harness.group, {harness.a: 8, harness.b: 2})
    with harness.consumer() as one:
        one.assign([harness.a, harness.b])
        for _ in range(2):
            with pytest.raises(OffsetStoreBehind) as refused:
                eventually(lambda: one.poll(0.2), within_s=30)
        assert str(refused.value) == (
            f"group {harness.group}: ZooKeeper is behind Kafka: {harness.a} has 3, Kafka 8; {harness.b} has no "
            "offset, Kafka 2. "
            "Take Kafka's offsets over with odradek zookeeper migrate --to zookeeper --on-conflict source --execute, "
            "or delete them with odradek groups delete-offsets"
        )
        harness.put({0: 8, 1: 2})
        with contextlib.suppress(OffsetStoreBehind):  # a lookup may have run between the two writes
            one.position(harness.a)
        assert [one.position(harness.a), one.position(harness.b)] == [8, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offsets_storage": "zk"}, "offsets_storage: kafka or zookeeper, not 'zk'"),
        ({"zookeeper_connect": None}, "offsets_storage=zookeeper needs zookeeper_connect"),
        ({"group_id": None}, "offsets_storage=zookeeper needs a group_id"),
        ({"dual_commit_enabled": True}, "it needs offsets_storage=kafka"),
        ({"offsets_storage": "kafka", "dual.commit.enabled": "true", "group_id": None},
         "dual_commit_enabled needs a group_id"),
        ({"group_id": "a/b"}, "group_id 'a/b': no path of ZooKeeper can hold this name: it has a slash"),
        ({"zookeeper_connect": "a:x"}, "'a:x' is not HOST:PORT"),
        ({"zookeeper_session_timeout_ms": 0}, "zookeeper_session_timeout_ms: expected a whole number of at least 1"),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    given = {"bootstrap_servers": "a:1", "group_id": "g", "offsets_storage": "zookeeper", "zookeeper_connect": "z:1"}
    with pytest.raises(ConfigError, match=message):
        Consumer(given | settings)


def test_without_the_extra_the_error_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    settings = {"bootstrap_servers": "a:1", "group_id": "g", "zookeeper_connect": "z:1"}
    hint = re.escape(command_of("zookeeper"))
    for chosen in ({"offsets_storage": "zookeeper"}, {"dual_commit_enabled": True}):
        with pytest.raises(ConfigError, match=f"^offsets in ZooKeeper need kazoo: {hint}$"):
            Consumer(settings | chosen)
    Consumer(settings).close()


def test_offsets_in_zookeeper_are_in_no_transaction(harness: GroupHarness) -> None:
    with harness.consumer() as one, pytest.raises(IllegalState, match="set offsets_storage=kafka"):
        one.group_metadata()
