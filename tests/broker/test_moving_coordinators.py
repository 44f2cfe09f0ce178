"""Coordinators of groups that move between the brokers of a cluster, in a simulated world."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from support.group_nodes import COMMIT_TIMEOUT_MS, SETTINGS, GroupNodes, code_of, commit_message
from support.replicated_nodes import QUICK, ReplicatedNodes
from support.simulated_brokers import SimulatedBroker

from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.errors import CorruptRecord, ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.wire.api_keys import FIND_COORDINATOR, JOIN_GROUP, LIST_GROUPS, OFFSET_COMMIT, SYNC_GROUP

NONE, ELSEWHERE, LOADING = ErrorCode.none, ErrorCode.not_coordinator, ErrorCode.coordinator_load_in_progress
UNAVAILABLE = ErrorCode.coordinator_not_available


@pytest.fixture
def nodes() -> GroupNodes:
    return GroupNodes()


def never() -> None:
    raise AssertionError("the connection ends")


def elect(nodes: GroupNodes, index: int) -> None:
    """Makes the preferred replica of a partition of the offsets topic its leader."""
    rows = [{"topic": OFFSETS_TOPIC, "partitions": [index]}]
    message = {"election_type": 0, "topic_partitions": rows, "timeout": 9_000}
    assert nodes.controller.connect().call(43, 2, message).error_code is NONE


def moved(nodes: GroupNodes, group: str) -> int:
    """Moves a group away from its preferred coordinator, and returns the present one. All brokers are in sync then."""
    before, index = nodes.coordinator(group), nodes.index_of(group)
    nodes.brokers[before].stop()
    nodes.run_until_led(OFFSETS_TOPIC, index, not_by=before)
    nodes.brokers[before].begin()
    nodes.brokers[before].run_until_joined()
    for at in (0, 1):
        nodes.run_until_in_sync(1, 2, 3, name=OFFSETS_TOPIC, index=at)
    return nodes.run_until_coordinated(group)


def join(group: str, member: str = "", rebalance_ms: int = 9_000) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout": 9_000, "rebalance_timeout": rebalance_ms, "member_id": member,
        "group_instance_id": None, "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b"m"}],
        "reason": None,
    }  # fmt: skip


def sync(group: str, member: str, generation: int, *shares: str) -> dict[str, Any]:
    return {
        "group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None,
        "protocol_type": "consumer", "protocol_name": "range",
        "assignments": [{"member_id": one, "assignment": one.encode()} for one in shares],
    }  # fmt: skip


# --- a new coordinator ------------------------------------------------------------------------------------------


@pytest.mark.claim(112, part=True)
def test_the_next_coordinator_of_a_killed_one_has_the_committed_offsets(nodes: GroupNodes) -> None:
    group = nodes.group_at(2)
    assert [nodes.find(at, group) for at in (1, 2, 3)] == [(NONE, 2)] * 3
    assert nodes.commit(2, group, 5) is NONE
    nodes.brokers[2].kill()
    assert nodes.run_until_coordinated(group, not_by=2) == 3
    nodes.settle()
    assert [nodes.find(at, group) for at in (1, 3)] == [(NONE, 3)] * 2
    assert (nodes.committed(3, group), nodes.committed(1, group)) == (5, ELSEWHERE)
    assert nodes.commit(1, group, 6) is ELSEWHERE
    assert (nodes.commit(3, group, 6), nodes.committed(3, group, stable=True)) == (NONE, 6)


def test_a_change_of_the_isr_is_no_news_for_a_coordinator(nodes: GroupNodes, caplog: pytest.LogCaptureFixture) -> None:
    group = nodes.group_at(1)
    shard = nodes.brokers[1].broker.groups.shard(nodes.index_of(group))
    with caplog.at_level(logging.INFO, "odradek.broker"):
        nodes.brokers[3].kill()
        nodes.run_until_in_sync(1, 2, name=OFFSETS_TOPIC)
    assert nodes.brokers[1].broker.groups.shard(nodes.index_of(group)) is shard
    assert not [line for line in caplog.messages if "is ignored" in line]


def hold_loads(nodes: GroupNodes, broker: int, patch: pytest.MonkeyPatch) -> list[Any]:
    """From now on no load of a group's log begins at this broker. Returns the list of those that wait."""
    held: list[Any] = []
    patch.setattr(nodes.brokers[broker].broker.groups, "drive", held.append)
    return held


def test_requests_during_a_load_are_sent_again(nodes: GroupNodes, monkeypatch: pytest.MonkeyPatch) -> None:
    group = nodes.group_at(2)
    assert nodes.commit(2, group, 5) is NONE
    held = hold_loads(nodes, 3, monkeypatch)
    nodes.brokers[2].kill()
    nodes.run_until_led(OFFSETS_TOPIC, nodes.index_of(group), not_by=2)
    nodes.settle()
    assert nodes.find(1, group) == (NONE, 3)
    assert (nodes.commit(3, group, 6), nodes.committed(3, group)) == (LOADING, LOADING)
    assert nodes.brokers[3].call(JOIN_GROUP, 9, join(group)).error_code is LOADING
    monkeypatch.undo()
    nodes.brokers[3].broker.groups.drive(held.pop())
    nodes.run_until_coordinated(group)
    assert (nodes.committed(3, group), nodes.commit(3, group, 6)) == (5, NONE)


def test_a_load_that_is_overtaken_ends_quietly(
    nodes: GroupNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group = nodes.group_at(2)
    assert nodes.commit(2, group, 5) is NONE
    successor = moved(nodes, group)
    held = hold_loads(nodes, 2, monkeypatch)
    elect(nodes, nodes.index_of(group))
    nodes.run_until_led(OFFSETS_TOPIC, nodes.index_of(group), not_by=successor)
    (load,) = held
    with caplog.at_level(logging.INFO, "odradek.broker"):
        caplog.clear()
        nodes.network.cut_off.add(2)
        nodes.run_until_coordinated(group, not_by=2)
        nodes.network.cut_off.clear()
        nodes.run_until(lambda: nodes.commit(2, group, 9) is ELSEWHERE)
        assert not load.load_step()
    assert nodes.brokers[2].broker.groups.shard(nodes.index_of(group)) is None
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING and OFFSETS_TOPIC in line.message]


def test_a_log_that_cannot_be_read_ends_one_partition_only(
    nodes: GroupNodes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    group, other = nodes.group_at(2), nodes.group_at(1)
    for name, at in ((group, 2), (other, 1)):
        assert nodes.commit(at, name, 5) is NONE
    right, index = ReplicatedPartition.read_bytes, nodes.index_of(group)

    def read_bytes(self: ReplicatedPartition, offset: int, max_bytes: int) -> bytes:
        if (self.topic, self.index) == (OFFSETS_TOPIC, index):
            raise CorruptRecord("the checksum of the batch at offset 0 is wrong")
        return right(self, offset, max_bytes)

    monkeypatch.setattr(ReplicatedPartition, "read_bytes", read_bytes)
    with caplog.at_level(logging.INFO, "odradek.broker"):
        nodes.brokers[2].kill()
        nodes.run_until_led(OFFSETS_TOPIC, index, not_by=2)
        nodes.settle()
        assert [nodes.commit(3, group, 6) for _ in range(3)] == [ELSEWHERE] * 3
        assert nodes.committed(3, group) is ELSEWHERE
    assert (nodes.commit(1, other, 6), nodes.committed(1, other)) == (NONE, 6)
    lines = [line for line in caplog.messages if "cannot be read" in line and OFFSETS_TOPIC in line]
    assert lines == [
        f"{OFFSETS_TOPIC}-{index}: the log cannot be read, all requests get NOT_COORDINATOR: CORRUPT_MESSAGE: the "
        "checksum of the batch at offset 0 is wrong"
    ]


def test_the_offsets_topic_waits_for_brokers(caplog: pytest.LogCaptureFixture) -> None:
    nodes = ReplicatedNodes(SETTINGS, count=2)

    def find(broker: int) -> ErrorCode:
        message = {"key_type": 0, "coordinator_keys": ["g"]}
        found: ErrorCode = (
            nodes.brokers[broker].call(FIND_COORDINATOR, 4, message, answer_ms=9_000).coordinators[0].error_code
        )
        return found

    with caplog.at_level(logging.ERROR, "odradek.broker"):
        assert [find(1) for _ in range(3)] == [UNAVAILABLE] * 3
    (line,) = [line for line in caplog.messages if OFFSETS_TOPIC in line]
    assert line.startswith(f"{OFFSETS_TOPIC} cannot be created, so its clients get COORDINATOR_NOT_AVAILABLE: INVALID")
    assert "replication factor of 3 cannot be reached because only 2 broker(s) are registered" in line
    nodes.brokers[3] = SimulatedBroker(nodes.network, 3, QUICK | SETTINGS)
    nodes.brokers[3].run_until_joined()
    nodes.run_until(lambda: find(1) is NONE)
    assert sorted(nodes.registration(OFFSETS_TOPIC).replicas) == [1, 2, 3]


# --- a former coordinator ---------------------------------------------------------------------------------------


def test_what_waits_at_a_former_coordinator_ends_at_once(nodes: GroupNodes) -> None:
    joined_group = nodes.group_at(2)
    index = nodes.index_of(joined_group)
    successor = moved(nodes, joined_group)
    member, generation = stable(nodes, successor, joined_group)
    synced = nodes.group_at(2, "other")
    others = [nodes.send(successor, JOIN_GROUP, 3, join(synced), never) for _ in range(2)]
    nodes.run_until(lambda: others[0])
    leader = others[0][0].member_id
    nodes.send(successor, JOIN_GROUP, 3, join(synced, leader), never)
    nodes.run_until(lambda: others[1])
    follower = others[1][0]
    waiting = [
        nodes.send(successor, JOIN_GROUP, 3, join(joined_group), never),
        nodes.send(successor, SYNC_GROUP, 5, sync(synced, follower.member_id, follower.generation_id), never),
    ]
    nodes.world.advance(100)
    assert waiting == [[], []]
    elect(nodes, index)
    nodes.run_until(lambda: all(waiting), 1_000)
    assert [reply.error_code for (reply,) in waiting] == [ELSEWHERE] * 2
    assert nodes.run_until_coordinated(joined_group) == 2
    beat = {"group_id": joined_group, "generation_id": generation, "member_id": member, "group_instance_id": None}
    assert nodes.brokers[2].call(12, 4, beat).error_code is NONE


def stable(nodes: GroupNodes, broker: int, group: str) -> tuple[str, int]:
    """Makes a group of one member. Returns its id and generation."""
    joined = nodes.brokers[broker].call(JOIN_GROUP, 3, join(group))
    assert joined.error_code is NONE
    reply = nodes.brokers[broker].call(
        SYNC_GROUP, 5, sync(group, joined.member_id, joined.generation_id, joined.member_id)
    )
    assert reply.error_code is NONE
    return joined.member_id, joined.generation_id


@pytest.mark.parametrize("is_found_out", [True, False])
def test_no_later_watermark_acknowledges_a_commit_of_a_former_term(is_found_out: bool) -> None:
    """KAFKA-20634: the commit's record is cut off, and later records take its offset. ``is_found_out``: the broker
    learns of its successor before the time of the commit is over."""
    nodes = GroupNodes({"offsets.commit.timeout.ms": "20000"} if is_found_out else None)
    group = nodes.group_at(1)
    index = nodes.index_of(group)
    assert nodes.commit(1, group, 5) is NONE
    nodes.network.cut_off.add(1)
    nodes.run_until_led(OFFSETS_TOPIC, index, not_by=1)
    successor = nodes.run_until_coordinated(group)
    assert [nodes.commit(successor, group, offset) for offset in (6, 7, 8)] == [NONE] * 3
    waiting = nodes.send(1, OFFSET_COMMIT, 9, commit_message(group, 77), never)
    nodes.world.advance(1 if is_found_out else COMMIT_TIMEOUT_MS + 1)
    nodes.network.cut_off.clear()
    nodes.run_until_in_sync(1, 2, 3, name=OFFSETS_TOPIC, index=index)
    nodes.run_until_equal(OFFSETS_TOPIC, index)
    assert [code_of(reply) for reply in waiting] == [ELSEWHERE if is_found_out else UNAVAILABLE]
    assert nodes.committed(successor, group) == 8
    nodes.brokers[successor].kill()
    assert nodes.committed(nodes.run_until_coordinated(group, not_by=successor), group) == 8


# --- replicas ---------------------------------------------------------------------------------------------------


def test_a_commit_waits_for_the_replicas(nodes: GroupNodes) -> None:
    group = nodes.group_at(1)
    assert nodes.commit(1, group, 5) is NONE
    nodes.network.cut_off.update((2, 3))
    sent_ms = nodes.world.now_ms
    assert nodes.commit(1, group, 6) is UNAVAILABLE
    assert nodes.world.now_ms - sent_ms == COMMIT_TIMEOUT_MS
    nodes.network.cut_off.clear()
    nodes.run_until_in_sync(1, 2, 3, name=OFFSETS_TOPIC)
    assert nodes.committed(1, group, stable=True) == 6  # the time was over, and the commit stands


def test_below_the_minimum_nothing_is_acknowledged(nodes: GroupNodes) -> None:
    """As in Kafka a commit is written, and stands when the replicas are back. Reads show what is committed."""
    group = nodes.group_at(1)
    assert nodes.commit(1, group, 5) is NONE
    for number in (2, 3):
        nodes.brokers[number].kill()
    nodes.run_until_in_sync(1, name=OFFSETS_TOPIC)
    sent_ms = nodes.world.now_ms
    assert nodes.commit(1, group, 6) is UNAVAILABLE
    assert nodes.world.now_ms - sent_ms == COMMIT_TIMEOUT_MS
    assert (nodes.committed(1, group), nodes.committed(1, group, stable=True)) == (5, ELSEWHERE)
    assert nodes.commit(1, "new" + group, 6) is UNAVAILABLE
    listed = nodes.brokers[1].call(LIST_GROUPS, 4, {"states_filter": []}, answer_ms=100)
    assert (listed.error_code, [row.group_id for row in listed.groups]) == (NONE, [group])
    for number in (2, 3):
        nodes.brokers[number].begin()
    nodes.run_until_in_sync(1, 2, 3, name=OFFSETS_TOPIC)
    assert (nodes.committed(1, group), nodes.commit(1, group, 7), nodes.committed(1, group)) == (6, NONE, 7)


def test_only_the_coordinator_removes_expired_offsets() -> None:
    nodes = GroupNodes({"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"})
    group = nodes.group_at(1)
    index = nodes.index_of(group)
    assert nodes.commit(1, group, 5) is NONE
    end = nodes.partition(1, OFFSETS_TOPIC, index).log_end_offset
    nodes.world.advance(75_000)
    assert nodes.committed(1, group) == -1
    nodes.run_until_equal(OFFSETS_TOPIC, index)
    tombstones = 2  # of the offset and of the group
    assert [nodes.partition(at, OFFSETS_TOPIC, index).log_end_offset for at in (1, 2, 3)] == [end + tombstones] * 3
