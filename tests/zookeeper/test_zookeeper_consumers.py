"""Consumers with their offsets in ZooKeeper, on a real one: where they start and commit, owners, and two writers."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from typing import Any

import pytest
from kazoo.security import make_digest_acl
from support.brokers import eventually
from support.zookeeper_rig import Rig, expire, read

import odradek
from odradek import Consumer
from odradek.client import Admin, CommitFailed, IllegalState, OffsetStoreBehind, PartitionOwned, RequestTimedOut
from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import OffsetAndMetadata
from odradek.core.ids import TopicPartition as Tp
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.errors import NoPermission, OffsetsChanged, ZooKeeperUnreachable
from odradek.zookeeper.members import check_owners, read_members


def test_a_consumer_starts_and_commits_in_zookeeper(rig: Rig, admin: Admin) -> None:
    rig.put({0: 7})
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        assert len(read(one, 13)) == 13
        one.commit()
        assert one.committed([rig.a, rig.b]) == {rig.a: OffsetAndMetadata(10), rig.b: OffsetAndMetadata(10)}
    assert (rig.offset(0), rig.offset(1)) == (10, 10)
    assert admin.list_group_offsets(rig.group) == {}, "Kafka has no commit"


def test_znodes_are_those_of_an_old_consumer(rig: Rig, connection: ZooKeeperConnection) -> None:
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        read(one, 20)
        (name,) = rig.ids()
        assert name.startswith(f"{rig.group}_{socket.gethostname()}-")
        data, stat = rig.kazoo.get(f"/consumers/{rig.group}/ids/{name}")
        assert stat.ephemeralOwner != 0
        found = json.loads(data)
        assert found == {
            "version": 1, "subscription": {rig.topic: 1}, "pattern": "static", "timestamp": found["timestamp"],
        }  # fmt: skip
        assert (rig.owner(0), rig.owner(1)) == (f"{name}-0", f"{name}-0")
        rows = check_owners(read_members(connection, rig.group), {rig.topic: [0, 1]})
        assert [row.problem for row in rows] == ["", ""]
        one.commit()
    assert rig.ids() == []
    assert (rig.owner(0), rig.owner(1)) == (None, None)
    for parent in ("ids", "owners", f"owners/{rig.topic}", f"offsets/{rig.topic}"):
        data, stat = rig.kazoo.get(f"/consumers/{rig.group}/{parent}")
        assert (data, stat.ephemeralOwner) == (None, 0)


@pytest.mark.parametrize(
    "protocol", [{"heartbeat_interval_ms": 300}, pytest.param({"group_protocol": "consumer"}, marks=pytest.mark.slow)]
)
def test_two_consumers_share_the_partitions(rig: Rig, protocol: dict[str, Any]) -> None:
    """Each partition has one owner at any time: a consumer gives it up before the group assigns it to another."""
    settings = {"auto_commit_interval_ms": 100, "enable_auto_commit": True} | protocol
    with rig.consumer(**settings) as first:
        first.subscribe([rig.topic])
        assert len(read(first, 20)) == 20
        with rig.consumer(**settings) as second:
            second.subscribe([rig.topic])

            def shared() -> bool:
                records = [*first.poll(0.1).records(), *second.poll(0.1).records()]
                assert records == [], "a revocation commits"
                owners = {rig.owner(0), rig.owner(1)}
                return len(rig.ids()) == 2 and len(owners) == 2 and None not in owners

            eventually(shared, within_s=30)
            assert len(first.assignment()) == len(second.assignment()) == 1
        eventually(lambda: first.poll(0.1) or len(first.assignment()) == 2, within_s=30)
        eventually(lambda: first.poll(0.1) or rig.owner(0) == rig.owner(1) is not None, within_s=30)
    assert (rig.offset(0), rig.offset(1)) == (10, 10)


def test_an_owner_keeps_a_consumer_from_reading_until_it_is_gone(rig: Rig) -> None:
    path = rig.own(1)
    with rig.consumer(default_api_timeout_ms=700) as one:
        one.subscribe([rig.topic])
        with pytest.raises(PartitionOwned) as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert str(refused.value) == (
            f"another consumer owns partitions of the group in ZooKeeper, also after 700 ms: {rig.b} by old_host-1-0: "
            "stop that consumer, or increase default_api_timeout_ms if it is about to end"
        )
        assert (rig.owner(0), rig.ids()) == (None, []), "all partitions are claimed, or none"
        rig.kazoo.delete(path)
        assert len(read(one, 20)) == 20
        assert rig.owner(0) == rig.owner(1) == f"{rig.ids()[0]}-0"


def test_partitions_assigned_by_hand_are_claimed_and_given_up(rig: Rig) -> None:
    with rig.consumer() as one, rig.consumer(default_api_timeout_ms=700) as two:
        one.assign([rig.a])
        assert read(one, 10) == list(range(10))
        two.assign([rig.a])
        with pytest.raises(PartitionOwned, match=f"{rig.a} by {rig.group}_"):
            eventually(lambda: two.poll(0.2), within_s=30)
        two.seek(rig.a, 4)
        with pytest.raises(PartitionOwned):
            eventually(lambda: two.poll(0.2), within_s=30)
        one.commit()
        one.assign([rig.b])
        assert read(two, 6) == [4, 5, 6, 7, 8, 9]
        two.commit()
        one.unsubscribe()
        assert rig.owner(1) is None
    assert (rig.offset(0), rig.offset(1)) == (10, None)


# --- two writers, sessions that end, lost answers -----------------------------------------------------------------


def test_a_second_writer_gets_commit_failed(rig: Rig) -> None:
    lost: list[list[Tp]] = []
    with rig.consumer() as one:
        one.subscribe([rig.topic], on_lost=lost.append)
        read(one, 20)
        one.commit({rig.a: 3, rig.b: 3})
        rig.put({0: 8})
        with pytest.raises(CommitFailed, match=f"offsets/{rig.topic}/0 was changed by another writer to 8") as refused:
            one.commit({rig.a: 5, rig.b: 5})
        assert "\n" not in str(refused.value)
        assert (rig.offset(0), rig.offset(1)) == (8, 3), "all offsets are written, or none"
        with pytest.raises(CommitFailed):
            one.commit({rig.a: 6})
        assert rig.offset(0) == 8
        assert read(one, 2) == [8, 9], "the consumer continues at the other writer's offset"
        assert lost == [[rig.a]]
        assert one.assignment() == {rig.a, rig.b}
        one.commit()
        assert (rig.offset(0), rig.offset(1)) == (10, 10)


def test_an_offset_that_was_deleted_or_created_meanwhile_is_not_overwritten(rig: Rig) -> None:
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        read(one, 20)
        rig.put({1: 2})
        with pytest.raises(CommitFailed, match="was changed by another writer to 2"):
            one.commit()
        assert (rig.offset(0), rig.offset(1)) == (None, 2)
        assert read(one, 8) == list(range(2, 10))
        one.commit()
        rig.kazoo.delete(f"/consumers/{rig.group}/offsets/{rig.topic}/1")
        with pytest.raises(CommitFailed, match=f"offsets/{rig.topic}/1 was changed by another writer"):
            one.commit()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_an_expired_session_loses_the_partitions(rig: Rig, zookeeper: odradek.ZooKeeper, protocol: str) -> None:
    """Another consumer takes a partition over meanwhile. The former owner cannot commit, and gets it back later."""
    events: list[tuple[str, list[Tp]]] = []
    with rig.consumer(group_protocol=protocol) as one:
        one.subscribe(
            [rig.topic],
            on_assigned=lambda tps: events.append(("assigned", tps)),
            on_revoked=lambda tps: events.append(("revoked", tps)),
            on_lost=lambda tps: events.append(("lost", tps)),
        )
        read(one, 20)
        one.commit({rig.a: 4, rig.b: 4})
        (before,) = rig.ids()
        expire(zookeeper, one)
        path = rig.own(0)
        for offsets in ({rig.a: 9}, {rig.b: 9}, {rig.a: 2, rig.b: 9}):
            with pytest.raises(CommitFailed, match="have ended, because the session has expired") as refused:
                one.commit(offsets)
            assert "\n" not in str(refused.value)
        assert (rig.offset(0), rig.offset(1)) == (4, 4)
        assert one.poll(0.5) == {}
        rig.put({0: 7})
        rig.kazoo.delete(path)
        assert sorted(read(one, 9)) == [4, 5, 6, 7, 7, 8, 8, 9, 9]
        assert [event for event in events if event[1]] == [
            (what, [rig.a, rig.b]) for what in ("assigned", "lost", "assigned")
        ]
        assert rig.ids() != [before]
        assert rig.owner(0) == rig.owner(1) == f"{rig.ids()[0]}-0"
        one.commit()
    assert (rig.offset(0), rig.offset(1)) == (10, 10)


def test_a_commit_between_an_expired_session_and_its_notice_changes_nothing(
    rig: Rig, zookeeper: odradek.ZooKeeper
) -> None:
    """The transaction itself has the condition: the consumer does not know of the expiry yet."""
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        read(one, 20)
        one.commit({rig.a: 4})
        store = one._engine.group.storage.store
        session = store._session  # type: ignore[union-attr]
        rig.kazoo.delete(f"/consumers/{rig.group}/ids/{rig.ids()[0]}")  # what the end of a session does
        with pytest.raises(OffsetsChanged, match="is gone, because the session has expired"):
            session.commit({rig.a: 9})
        assert rig.offset(0) == 4


@pytest.mark.parametrize("reached", [True, False])
def test_a_lost_answer_in_the_middle_of_a_commit(rig: Rig, monkeypatch: pytest.MonkeyPatch, reached: bool) -> None:
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        read(one, 20)
        one.commit({rig.a: 2})
        connection = one._engine.group.storage.store._connection  # type: ignore[union-attr]
        commit, calls = connection.commit, []

        def lossy(operations: list[object]) -> None:
            calls.append(operations)
            if len(calls) > 2 or reached:
                commit(operations)
            if len(calls) <= 2:
                raise ZooKeeperUnreachable("the answer is lost")

        monkeypatch.setattr(connection, "commit", lossy)
        one.commit({rig.a: 5, rig.b: 6})
        assert (rig.offset(0), rig.offset(1)) == (5, 6)
        one.commit({rig.a: 7})
        assert (rig.offset(0), rig.offset(1)) == (7, 6)


def test_a_commit_without_an_answer_and_a_second_writer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the next commit finds is not its own write: it does not overwrite it."""
    with rig.consumer() as one:
        one.subscribe([rig.topic])
        read(one, 20)
        one.commit({rig.a: 2})
        connection = one._engine.group.storage.store._connection  # type: ignore[union-attr]
        commit = connection.commit

        def lossy(operations: list[object]) -> None:
            monkeypatch.setattr(connection, "commit", commit)
            rig.put({0: 8})
            raise ZooKeeperUnreachable("the answer is lost")

        monkeypatch.setattr(connection, "commit", lossy)
        with pytest.raises(CommitFailed, match="was changed by another writer to 8"):
            one.commit({rig.a: 5})
        assert rig.offset(0) == 8


def test_commits_wait_while_the_connection_is_away(rig: Rig, zookeeper: odradek.ZooKeeper) -> None:
    (node,) = zookeeper.nodes
    done: list[Exception | None] = []
    with rig.consumer(zookeeper_session_timeout_ms=20_000) as one:
        one.subscribe([rig.topic])
        read(one, 20)
        node.pause()
        try:
            with pytest.raises(RequestTimedOut, match="committing offsets of group") as refused:
                one.commit({rig.a: 3}, timeout=0.5)
            assert "\n" not in str(refused.value)
            one.commit_async({rig.a: 4}, lambda offsets, error: done.append(error))
            assert one.poll(0.1) == {}
        finally:
            node.resume()
        one.commit({rig.b: 9})
        assert done == [None]
        assert (rig.offset(0), rig.offset(1)) == (4, 9), "commits keep their order"


def test_without_permission_the_error_names_the_path(rig: Rig) -> None:
    rig.put({0: 5})
    acl = [make_digest_acl("kafka", "secret", all=True)]
    rig.kazoo.set_acls(f"/consumers/{rig.group}/offsets/{rig.topic}/0", acl)
    with rig.consumer() as one:
        one.assign([rig.a])
        with pytest.raises(NoPermission, match=f"no permission for /consumers/{rig.group}/offsets") as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert "\n" not in str(refused.value)
        assert "zookeeper.login" in str(refused.value)
    rig.kazoo.set_acls(f"/consumers/{rig.group}/owners/{rig.topic}", acl)
    with rig.consumer() as one:
        one.assign([rig.b])
        with pytest.raises(NoPermission, match=f"/consumers/{rig.group}/owners/{rig.topic}"):
            eventually(lambda: one.poll(0.2), within_s=30)


def test_a_znode_that_is_no_offset_stops_the_start(rig: Rig) -> None:
    rig.put({0: "abc"})
    with rig.consumer() as one:
        one.assign([rig.a])
        with pytest.raises(
            OdradekError, match=f"/{rig.topic}/0 is no offset .* 'abc' is not a whole number"
        ) as refused:
            eventually(lambda: one.poll(0.2), within_s=30)
        assert "\n" not in str(refused.value)
        with pytest.raises(OdradekError, match="'abc' is not a whole number"):
            one.committed([rig.a])


# --- beside Kafka's commits ---------------------------------------------------------------------------------------


def test_a_consumer_does_not_start_behind_the_commit_in_kafka(rig: Rig, admin: Admin) -> None:
    """The trap of dual commit: ZooKeeper kept an old offset."""
    rig.put({0: 3})
    admin.alter_group_offsets(rig.group, {rig.a: 8, rig.b: 2})
    with rig.consumer() as one:
        one.assign([rig.a, rig.b])
        for _ in range(2):
            with pytest.raises(OffsetStoreBehind) as refused:
                eventually(lambda: one.poll(0.2), within_s=30)
        assert str(refused.value) == (
            f"group {rig.group}: ZooKeeper is behind Kafka: {rig.a} has 3, Kafka 8; {rig.b} has no offset, Kafka 2. "
            "Take Kafka's offsets over with odradek zookeeper migrate --to zookeeper --on-conflict source --execute, "
            "or delete them with odradek groups delete-offsets"
        )
        rig.put({0: 8, 1: 2})
        with contextlib.suppress(OffsetStoreBehind):  # a lookup between the two writes
            one.poll(0.2)
        assert [one.position(rig.a), one.position(rig.b)] == [8, 2]


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
    for chosen in ({"offsets_storage": "zookeeper"}, {"dual_commit_enabled": True}):
        with pytest.raises(ConfigError, match=r"^offsets in ZooKeeper need kazoo: pip install 'odradek\[zookeeper\]'$"):
            Consumer(settings | chosen)
    Consumer(settings).close()


def test_offsets_in_zookeeper_are_in_no_transaction(rig: Rig) -> None:
    with rig.consumer() as one, pytest.raises(IllegalState, match="set offsets_storage=kafka"):
        one.group_metadata()
