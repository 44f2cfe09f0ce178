"""Dual commit on a real ZooKeeper: Kafka first, then ZooKeeper for what Kafka took; failures of ZooKeeper only warn."""

from __future__ import annotations

import pytest
from support.brokers import eventually
from support.insides import engine_of
from support.zookeeper_harness import GroupHarness, expire, read

import odradek
from odradek.client import Admin, KafkaError, PartitionOwned
from odradek.core.ids import TopicPartition as Tp
from odradek.testing.ports import reserve_ports

DUAL = {"offsets_storage": "kafka", "dual_commit_enabled": True}


def in_kafka(admin: Admin, harness: GroupHarness) -> dict[Tp, int]:
    return {tp: commit.offset for tp, commit in admin.list_group_offsets(harness.group).items()}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_commit_goes_to_kafka_and_to_zookeeper(
    harness: GroupHarness, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    with harness.consumer(**DUAL) as one:
        one.subscribe([harness.topic])
        read(one, 20)
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
        one.commit({harness.a: 4, harness.b: 10})
        assert (in_kafka(admin, harness), harness.offset(0), harness.offset(1)) == (
            {harness.a: 4, harness.b: 10},
            4,
            10,
        )
        one.commit({harness.a: 2})
        assert (in_kafka(admin, harness)[harness.a], harness.offset(0)) == (2, 2), (
            "a commit of a lower offset moves both"
        )
    assert harness.ids() == []
    assert warnings_of(caplog) == []


def test_zookeeper_gets_what_kafka_took(harness: GroupHarness, admin: Admin) -> None:
    """Kafka refuses one partition of two."""
    with harness.consumer(**DUAL) as one:
        one.assign([harness.a])
        read(one, 10)
        with pytest.raises(KafkaError, match="does not exist"):
            one.commit({harness.a: 6, Tp(harness.topic, 7): 1})
        assert (in_kafka(admin, harness), harness.offset(0), harness.offset(7)) == ({harness.a: 6}, 6, None)


@pytest.mark.parametrize(
    ("in_commit", "in_znode", "start"), [(3, 8, 8), (8, 3, 8), (None, 5, 5), (5, None, 5), (4, 4, 4), (None, None, 0)]
)
def test_reading_starts_at_the_larger_offset(
    harness: GroupHarness,
    admin: Admin,
    caplog: pytest.LogCaptureFixture,
    in_commit: int | None,
    in_znode: int | None,
    start: int,
) -> None:
    if in_commit is not None:
        admin.alter_group_offsets(harness.group, {harness.a: in_commit})
    if in_znode is not None:
        harness.put({0: in_znode})
    with harness.consumer(**DUAL) as one:
        found = one.committed([harness.a])[harness.a]
        assert (found and found.offset) == (start or None)
        caplog.clear()
        one.assign([harness.a])
        assert one.position(harness.a) == start
    shown = "none" if in_commit is None else in_commit
    differ = f"offsets of {harness.a} differ: {shown} in Kafka, {in_znode} in ZooKeeper; the larger one counts"
    assert any(differ in text for text in warnings_of(caplog)) == (in_znode is not None and in_commit != in_znode)


@pytest.mark.claim(118)
def test_a_consumer_starts_and_commits_while_zookeeper_is_down(
    harness: GroupHarness, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    """The consumer warns, and continues with Kafka's offsets."""
    (unused,) = reserve_ports(1)
    admin.alter_group_offsets(harness.group, {harness.a: 4})
    settings = DUAL | {"zookeeper_connect": f"127.0.0.1:{unused.port}", "zookeeper_session_timeout_ms": 500}
    with harness.consumer(**settings) as one:
        one.assign([harness.a])
        assert read(one, 6) == [4, 5, 6, 7, 8, 9]
        one.commit()
        assert in_kafka(admin, harness) == {harness.a: 10}
        assert one.committed([harness.a])[harness.a].offset == 10
    effects = ("reading although this consumer does not own the partitions", "the commit is in Kafka only")
    for effect in effects:
        assert any(text.endswith(effect) and "\n" not in text for text in warnings_of(caplog)), warnings_of(caplog)


def test_zookeeper_catches_up_after_it_was_away(
    harness: GroupHarness, admin: Admin, zookeeper: odradek.ZooKeeper, caplog: pytest.LogCaptureFixture
) -> None:
    (node,) = zookeeper.nodes
    with harness.consumer(zookeeper_session_timeout_ms=1000, **DUAL) as one:
        one.subscribe([harness.topic])
        read(one, 20)
        one.commit({harness.a: 2, harness.b: 2})
        node.pause()
        try:
            one.commit({harness.a: 5})
            one.commit({harness.b: 6})
            assert in_kafka(admin, harness) == {harness.a: 5, harness.b: 6}
        finally:
            node.resume()
        assert any(text.endswith("the commit is in Kafka only") for text in warnings_of(caplog))

        def caught_up() -> bool:
            one.commit({harness.b: 7})
            return (harness.offset(0), harness.offset(1)) == (5, 7)

        eventually(caught_up, within_s=30)
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"


def test_after_a_session_expired_the_next_commit_owns_the_partitions_again(
    harness: GroupHarness, admin: Admin, zookeeper: odradek.ZooKeeper
) -> None:
    lost: list[list[Tp]] = []
    with harness.consumer(**DUAL) as one:
        one.subscribe([harness.topic], on_lost=lost.append)
        read(one, 20)
        one.commit({harness.a: 3})
        expire(zookeeper, one)

        def owned_again() -> bool:
            one.commit({harness.a: 5})
            return harness.offset(0) == 5

        eventually(owned_again, within_s=30)
        assert harness.owner(0) == harness.owner(1) == f"{harness.ids()[0]}-0"
        assert lost == [], "Kafka has the commits: nothing was lost"
        expire(zookeeper, one)
        path = harness.own(0)
        eventually(lambda: one.commit({harness.a: 6}) or engine_of(one).group.has_lost_ownership, within_s=30)
        assert in_kafka(admin, harness)[harness.a] == 6
        assert one.poll(0.3) == {}
        assert lost == [[harness.a, harness.b]], "an old consumer has taken a partition over"
        harness.kazoo.delete(path)
        assert len(read(one, 14)) == 14, "the consumer continues at Kafka's commits"


def test_an_owner_in_zookeeper_keeps_a_consumer_from_reading(harness: GroupHarness) -> None:
    harness.own(0)
    with harness.consumer(default_api_timeout_ms=700, **DUAL) as one:
        one.assign([harness.a])
        with pytest.raises(PartitionOwned):
            eventually(lambda: one.poll(0.2), within_s=30)


def test_a_second_writer_in_zookeeper_is_not_overwritten_by_a_lower_offset(
    harness: GroupHarness, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    with harness.consumer(**DUAL) as one:
        one.assign([harness.a])
        read(one, 10)
        one.commit({harness.a: 2})
        harness.put({0: 8})
        for offset in (3, 4):
            one.commit({harness.a: offset})
            assert (in_kafka(admin, harness)[harness.a], harness.offset(0)) == (offset, 8)
        assert any("was changed by another writer to 8" in text for text in warnings_of(caplog))
        assert any(
            "which is larger than the commit 4 in Kafka: ZooKeeper keeps it" in text for text in warnings_of(caplog)
        )
        one.commit({harness.a: 9})
        assert harness.offset(0) == 9


@pytest.mark.parametrize("data", ["abc", "-1"])
def test_a_znode_that_is_no_offset_only_warns(
    harness: GroupHarness, admin: Admin, caplog: pytest.LogCaptureFixture, data: str
) -> None:
    harness.put({0: data})
    admin.alter_group_offsets(harness.group, {harness.a: 4})
    with harness.consumer(**DUAL) as one:
        one.assign([harness.a])
        assert read(one, 6) == [4, 5, 6, 7, 8, 9]
        one.commit()
        assert in_kafka(admin, harness)[harness.a] == 10
    assert any(f"/{harness.topic}/0 is no offset" in text for text in warnings_of(caplog))
    assert harness.kazoo.get(f"/consumers/{harness.group}/offsets/{harness.topic}/0")[0] == data.encode()
