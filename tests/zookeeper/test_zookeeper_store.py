"""Offsets in a real ZooKeeper: reads, one transaction for each write, two writers, lost replies, errors, members,
deletion."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl
from support.brokers import eventually

import odradek
from odradek.core.errors import ConfigError
from odradek.core.ids import TopicPartition as Tp
from odradek.testing.ports import reserve_ports
from odradek.zookeeper.config import config_of
from odradek.zookeeper.connection import ZooKeeperConnection
from odradek.zookeeper.errors import (
    NoPermission,
    SessionExpired,
    TransactionTooLarge,
    ZnodeChanged,
    ZooKeeperUnreachable,
)
from odradek.zookeeper.layout import GroupPartition, OffsetLayout
from odradek.zookeeper.members import broker_partitions, check_owners, read_members
from odradek.zookeeper.store import InvalidZnode, OffsetChange, OffsetStore, StoredOffsets

A, B = Tp("orders", 0), Tp("orders", 1)


def changes(group: str, offsets: dict[Tp, int], found: StoredOffsets) -> list[OffsetChange]:
    return [OffsetChange(GroupPartition(group, tp), offset, found.offsets.get(tp)) for tp, offset in offsets.items()]


def write(store: OffsetStore, group: str, offsets: dict[Tp, int]) -> None:
    store.write(changes(group, offsets, store.read(group)))


def test_offsets_are_written_as_kafka_writes_them(store: OffsetStore, kazoo: KazooClient) -> None:
    write(store, "g", {A: 5, B: 2**40})
    assert kazoo.get("/consumers/g/offsets/orders/0")[0] == b"5"
    assert kazoo.get("/consumers/g/offsets/orders/1")[0] == b"1099511627776"
    for parent in ("/consumers", "/consumers/g", "/consumers/g/offsets", "/consumers/g/offsets/orders"):
        data, stat = kazoo.get(parent)
        assert (data, stat.ephemeralOwner) == (None, 0)
    write(store, "g", {A: 6})
    assert store.read("g").next_offsets() == {A: 6, B: 2**40}
    assert store.read("other") == StoredOffsets("other", {})
    assert store.groups() == ["g"]


def test_each_znode_that_is_no_offset_is_listed(store: OffsetStore, kazoo: KazooClient) -> None:
    for name, data in {"0": b"7", "1": b"abc", "2": b"-3", "1-0": b"812", "x": b"1", "3": b""}.items():
        kazoo.create(f"/consumers/g/offsets/orders/{name}", data, makepath=True)
    kazoo.create("/consumers/g/offsets/other/0", b"?", makepath=True)
    found = store.read("g")
    assert found.next_offsets() == {A: 7}
    reasons = {one.path.removeprefix("/consumers/g/offsets/"): one.reason for one in found.invalid}
    assert reasons == {
        "orders/1": "'abc' is not a whole number",
        "orders/2": "-3 is below 0",
        "orders/3": "it has no data",
        "orders/1-0": "1-0 is a broker and a partition of Kafka 0.7, whose values are byte positions, not offsets",
        "orders/x": "'x' is not the number of a partition",
        "other/0": "'?' is not a whole number",
    }
    assert len(store.read("g", ["orders"]).invalid) == 5
    assert store.read("g", ["other"]) == StoredOffsets(
        "g", {}, (InvalidZnode("/consumers/g/offsets/other/0", "'?' is not a whole number", b"?", 0),)
    )
    assert store.read_partitions("g", [A, B]).next_offsets() == {A: 7}


def test_offsets_in_the_layout_of_another_program_are_read_and_written(
    connection: ZooKeeperConnection, kazoo: KazooClient
) -> None:
    layout = OffsetLayout("/storm/{group}/partition_{partition}", json_field="offset", topic="orders")
    kazoo.create("/storm/billing/partition_0", b'{"offset":3,"broker":{"host":"h"}}', makepath=True)
    kazoo.create("/storm/billing/state", b"{}")
    store = OffsetStore(connection, layout)
    found = store.read("billing")
    assert (store.groups(), found.next_offsets()) == (["billing"], {A: 3})
    assert found.invalid == (InvalidZnode("/storm/billing/state", f"it does not match {layout.template}"),)
    write(store, "billing", {A: 9})
    assert kazoo.get("/storm/billing/partition_0")[0] == b'{"offset":9,"broker":{"host":"h"}}'
    with pytest.raises(ConfigError, match="store its first offset"):
        write(store, "billing", {B: 1})
    deep = OffsetLayout("/deep/{partition}/offset", group="g", topic="orders")
    kazoo.create("/deep/0/offset", b"4", makepath=True)
    kazoo.create("/deep/1")
    found = OffsetStore(connection, deep).read("g")
    assert (found.next_offsets(), found.invalid) == ({A: 4}, (InvalidZnode("/deep/1/offset", "it does not exist"),))


def test_all_offsets_are_written_or_none(store: OffsetStore, kazoo: KazooClient) -> None:
    """The second writer has read the offsets before the first writer wrote."""
    write(store, "g", {A: 5})
    seen = store.read("g")
    kazoo.set("/consumers/g/offsets/orders/0", b"50")
    with pytest.raises(ZnodeChanged, match="/consumers/g/offsets/orders/0 was changed by another writer"):
        store.write(changes("g", {B: 9, A: 6}, seen))
    assert store.read("g").next_offsets() == {A: 50}
    kazoo.create("/consumers/g/offsets/orders/1", b"1")
    with pytest.raises(ZnodeChanged, match="/consumers/g/offsets/orders/1 was created by another writer"):
        store.write(changes("g", {A: 51, B: 9}, StoredOffsets("g", {A: store.read("g").offsets[A]})))
    assert store.read("g").next_offsets() == {A: 50, B: 1}


def test_a_write_whose_answer_is_late_is_written_once(zookeeper: odradek.ZooKeeper, connect: str) -> None:
    with ZooKeeperConnection(config_of(connect, {"zookeeper.connection.timeout.ms": "400"}, {})) as connection:
        store = OffsetStore(connection)
        write(store, "g", {A: 5})
        seen = store.read("g")
        (node,) = zookeeper.nodes
        planned = changes("g", {A: 6, B: 2}, seen)
        made = store.operations(planned)
        store.operations = lambda given: made  # reads nothing from the paused node
        node.pause()
        resuming = threading.Timer(0.6, node.resume)
        resuming.start()
        store.write(planned)
        resuming.join()
        found = store.read("g")
        assert found.next_offsets() == {A: 6, B: 2}
        assert found.offsets[A].version == seen.offsets[A].version + 1


class LossyConnection(ZooKeeperConnection):
    """Loses the answer of the first transaction after ``loses`` was set; the transaction itself if ``reached`` is
    False."""

    loses = False
    reached = True
    sent = 0
    before_commit: Callable[[], object] = staticmethod(lambda: None)

    def commit(self, operations: Any) -> None:
        is_lost, self.loses = self.loses, False
        self.before_commit()
        self.sent += 1
        if self.reached or not is_lost:
            super().commit(operations)
        if is_lost:
            raise ZooKeeperUnreachable("the answer is lost")


@pytest.fixture
def lossy(connect: str) -> Iterator[LossyConnection]:
    with LossyConnection(config_of(connect, environment={})) as opened:
        yield opened


@pytest.mark.parametrize("reached", [True, False])
def test_a_lost_answer_is_looked_up(lossy: LossyConnection, reached: bool) -> None:
    store = OffsetStore(lossy)
    write(store, "g", {A: 5})
    lossy.loses, lossy.reached, lossy.sent = True, reached, 0
    write(store, "g", {A: 6, B: 1})
    assert store.read("g").next_offsets() == {A: 6, B: 1}
    assert lossy.sent == (1 if reached else 2)


def test_a_lost_answer_and_a_second_writer(lossy: LossyConnection, kazoo: KazooClient) -> None:
    store = OffsetStore(lossy)
    write(store, "g", {A: 5})
    lossy.loses, lossy.reached, lossy.sent = True, False, 0
    lossy.before_commit = lambda: kazoo.set("/consumers/g/offsets/orders/0", b"70")
    with pytest.raises(ZooKeeperUnreachable):
        write(store, "g", {A: 6})
    assert store.read("g").next_offsets() == {A: 70}
    assert lossy.sent == 1, "a transaction that cannot succeed any more is not repeated"


def test_an_expired_session_is_an_error_of_one_line(zookeeper: odradek.ZooKeeper, store: OffsetStore) -> None:
    write(store, "g", {A: 5})
    zookeeper.expire_session(store.connection.client)
    reason = ""
    for _ in range(2):
        try:
            found = store.read("g").next_offsets()
            break
        except SessionExpired as error:
            reason = str(error)
            eventually(lambda: store.connection.client.connected, within_s=30)
    assert found == {A: 5}
    assert "\n" not in reason


def test_a_node_that_does_not_answer_is_logged_before_the_error(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        config = config_of(address, {"zookeeper.connection.timeout.ms": "1500"}, {})
        with pytest.raises(ZooKeeperUnreachable):
            ZooKeeperConnection(config).open()
    assert f"{address}: no answer yet; waiting up to 2 s" in caplog.text


def test_without_a_node_the_error_names_the_address(zookeeper: odradek.ZooKeeper) -> None:
    (unused,) = reserve_ports(1)
    config = config_of(f"127.0.0.1:{unused.port}", {"zookeeper.connection.timeout.ms": "300"}, {})
    with pytest.raises(
        ZooKeeperUnreachable, match=rf"no node of ZooKeeper at 127.0.0.1:{unused.port} answered within the 300 ms"
    ):
        ZooKeeperConnection(config).open()
    with pytest.raises(ConfigError, match="the chroot /none does not exist"):
        ZooKeeperConnection(config_of(f"{zookeeper.connect_string}/none", environment={})).open()


def test_a_protected_znode_needs_a_login(connect: str, store: OffsetStore, kazoo: KazooClient) -> None:
    write(store, "g", {A: 5})
    kazoo.set_acls("/consumers/g/offsets/orders/0", [make_digest_acl("kafka", "secret", all=True)])
    with pytest.raises(NoPermission, match="no permission for /consumers/g/offsets/orders/0: log in") as refused:
        store.read("g")
    assert "\n" not in str(refused.value)
    with ZooKeeperConnection(config_of(connect, environment={"ODRADEK_ZOOKEEPER_LOGIN": "kafka:secret"})) as allowed:
        write(OffsetStore(allowed), "g", {A: 6})
        assert OffsetStore(allowed).read("g").next_offsets() == {A: 6}


def test_a_transaction_that_zookeeper_would_refuse_is_not_sent(store: OffsetStore) -> None:
    with pytest.raises(TransactionTooLarge, match="choose fewer topics or groups"):
        write(store, "g" * 100, {Tp("t" * 200, n): n for n in range(3000)})
    assert store.groups() == []
    write(store, "g", {Tp("orders", n): n for n in range(3000)})
    assert store.read("g").next_offsets() == {Tp("orders", n): n for n in range(3000)}


def test_members_are_read_and_owners_without_registration_are_found(
    connection: ZooKeeperConnection, kazoo: KazooClient
) -> None:
    consumer = "g_host-1700000000000-0a1b2c3d"
    subscription = b'{"version":1,"subscription":{"orders":1},"pattern":"static","timestamp":"1700000000000"}'
    kazoo.create(f"/consumers/g/ids/{consumer}", subscription, ephemeral=True, makepath=True)
    kazoo.create("/consumers/g/owners/orders/0", f"{consumer}-0".encode(), ephemeral=True, makepath=True)
    kazoo.create("/consumers/g/owners/orders/1", b"g_gone-0", ephemeral=True)
    kazoo.create("/consumers/g/owners/old/0", b"g_gone-0", ephemeral=True, makepath=True)
    kazoo.create("/brokers/topics/orders", b'{"version":1,"partitions":{"0":[1],"1":[1],"2":[1]}}', makepath=True)
    members = read_members(connection, "g")
    assert [one.consumer_id for one in members.consumers] == [consumer]
    assert members.owners == {A: f"{consumer}-0", B: "g_gone-0", Tp("old", 0): "g_gone-0"}
    assert members.live() == [consumer, "g_gone-0"]
    rows = check_owners(members, broker_partitions(connection))
    assert [(str(row.tp), row.owner, row.problem) for row in rows] == [
        ("orders-0", f"{consumer}-0", ""),
        ("orders-1", "g_gone-0", "the owner has not registered for the topic"),
        ("orders-2", None, "no owner"),
        ("old-0", "g_gone-0", "no registered consumer subscribes to it"),
    ]
    kazoo.create("/consumers/g/ids/odd", b"{}", ephemeral=True)
    assert read_members(connection, "g").live() == [consumer, "odd", "g_gone-0"]


def test_a_group_is_deleted_as_a_whole_or_by_topic(store: OffsetStore, kazoo: KazooClient) -> None:
    write(store, "g", {A: 5, Tp("other", 0): 1})
    kazoo.create("/consumers/g/owners/orders", makepath=True)
    store.delete("g", ["orders"])
    assert store.read("g").next_offsets() == {Tp("other", 0): 1}
    assert kazoo.exists("/consumers/g/owners/orders") is None
    store.delete("g")
    assert (kazoo.exists("/consumers/g"), store.groups()) == (None, [])


@pytest.mark.slow
def test_no_offset_goes_back_when_the_leader_is_killed(zookeeper: odradek.ZooKeeper) -> None:
    """Three nodes: the leader is killed again and again while one writer counts up."""
    with odradek.ZooKeeper(nodes=3) as ensemble, ZooKeeperConnection(config_of(ensemble.connect_string, {
        "zookeeper.session.timeout.ms": "20000", "zookeeper.connection.timeout.ms": "20000"
    }, {})) as connection:  # fmt: skip
        store = OffsetStore(connection)
        write(store, "g", {A: 0, B: 0})
        reached = 0
        for _ in range(3):
            killing = threading.Timer(0.2, ensemble.leader.kill)
            killing.start()
            while killing.is_alive() or reached % 40:
                reached += 1
                write(store, "g", {A: reached, B: reached})
                assert store.read("g").next_offsets() == {A: reached, B: reached}
            killing.join()
            reached += 1
            write(store, "g", {A: reached, B: reached})
            ensemble.start()
        assert store.read("g").offsets[A].version == reached


def test_the_pauses_between_attempts_to_connect_stay_short() -> None:
    """kazoo adds up to 40 % to ``max_delay``: a pause is at most 1.4 s. A longer pause could end after the session."""
    retry = ZooKeeperConnection(config_of("127.0.0.1:1", environment={}))._client._conn_retry
    assert retry.max_delay <= 1
    assert retry.max_tries == -1
