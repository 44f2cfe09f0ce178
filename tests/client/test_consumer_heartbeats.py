"""Heartbeats of ``group_protocol=consumer`` on the wire, with a scripted broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from support.brokers import eventually
from support.scripted import LIST_OFFSETS, METADATA, ScriptedBroker, ScriptedCluster, scripted

from odradek import Consumer, TopicPartition
from odradek.client.errors import UnsupportedVersion
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CONSUMER_GROUP_HEARTBEAT

T0, T_ID, LATE_ID = TopicPartition("t", 0), UUID(int=7), UUID(int=9)
HOUR_MS = 3_600_000
Make = Callable[..., Consumer]


class Group:
    """The coordinator of one member: it assigns ``target`` and sets the heartbeat interval."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self.target: dict[UUID, list[int]] = {T_ID: [0]}
        self.interval_ms = HOUR_MS
        self.epoch = 1
        self.beats: list[Any] = []
        self.refusals: list[ErrorCode] = []
        self._sent_target: dict[UUID, list[int]] | None = None
        broker.ranges[CONSUMER_GROUP_HEARTBEAT] = (0, 1)
        broker.answers[CONSUMER_GROUP_HEARTBEAT] = self.answer

    def answer(self, message: Any, version: int) -> Any:
        self.beats.append(message)
        if message.member_epoch == 0:
            self._sent_target = None
        refusal = self.refusals.pop(0) if self.refusals and message.member_epoch > 0 else ErrorCode.none
        rows = [{"topic_id": one, "partitions": numbers} for one, numbers in self.target.items()]
        changed = self.target != self._sent_target and message.member_epoch >= 0 and refusal is ErrorCode.none
        self._sent_target = dict(self.target) if changed else self._sent_target
        return {
            "throttle_time": 0, "error_code": refusal.value, "error_message": None, "member_id": message.member_id,
            "member_epoch": self.epoch if message.member_epoch >= 0 else message.member_epoch,
            "heartbeat_interval": self.interval_ms, "assignment": {"topic_partitions": rows} if changed else None,
        }  # fmt: skip

    @property
    def owned(self) -> list[dict[UUID, tuple[int, ...]]]:
        """The partitions that the member has reported as owned, heartbeat by heartbeat."""
        reported = [beat.topic_partitions for beat in self.beats if beat.topic_partitions is not None]
        return [{row.topic_id: row.partitions for row in rows} for rows in reported]


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        yield made


@pytest.fixture
def group(cluster: ScriptedCluster) -> Group:
    return Group(cluster.brokers[1])


@pytest.fixture
def consumer(cluster: ScriptedCluster) -> Iterator[Make]:
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        base = {"group_id": "g", "group_protocol": "consumer", "enable_auto_commit": False, "retry_backoff_ms": 1,
                "retry_backoff_max_ms": 5, "fetch_max_wait_ms": 20, "bootstrap_timeout_ms": 5_000}  # fmt: skip
        made.append(Consumer(cluster.bootstrap, **(base | settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def joined(one: Consumer, group: Group) -> None:
    """Polls until the member owns its partition and has reported it."""
    eventually(lambda: (one.poll(0.01), one.assignment() == {T0} and {T_ID: (0,)} in group.owned)[1])


def test_the_coordinator_sets_the_heartbeat_interval(consumer: Make, group: Group) -> None:
    one = consumer()
    group.interval_ms = 10
    one.subscribe(["t"])
    joined(one, group)
    seen = len(group.beats)
    eventually(lambda: len(group.beats) > seen + 5)
    group.interval_ms = HOUR_MS
    seen = len(group.beats)
    eventually(lambda: len(group.beats) > seen)  # the reply to this heartbeat sets the new interval
    settled = len(group.beats)
    for _ in range(20):
        one.poll(0.01)
    assert len(group.beats) == settled
    assert {beat.rebalance_timeout.total_seconds() for beat in group.beats[2:]} == {-0.001}  # -1 ms: not changed
    assert [beat.subscribed_topic_names for beat in group.beats][:2] == [("t",), None]


def test_members_leave_with_epoch_minus_1_and_static_members_with_minus_2(consumer: Make, group: Group) -> None:
    for instance, epoch in ((None, -1), ("i", -2)):
        one = consumer(group_instance_id=instance)
        one.subscribe(["t"])
        joined(one, group)
        one.close()
        assert (group.beats[-1].member_epoch, group.beats[-1].instance_id) == (epoch, instance)
        group.beats.clear()


def test_after_an_error_the_heartbeat_is_complete(consumer: Make, group: Group) -> None:
    one = consumer()
    group.interval_ms = 5
    one.subscribe(["t"])
    joined(one, group)
    group.refusals = [ErrorCode.coordinator_load_in_progress]
    eventually(lambda: not group.refusals)
    full = eventually(lambda: [beat for beat in group.beats[1:] if beat.subscribed_topic_names == ("t",)])[0]
    assert full.member_epoch == 1
    assert [(row.topic_id, row.partitions) for row in full.topic_partitions] == [(T_ID, (0,))]


def test_a_fenced_member_rejoins_with_its_id(consumer: Make, group: Group) -> None:
    one = consumer()
    lost: list[TopicPartition] = []
    group.interval_ms = 5
    one.subscribe(["t"], on_lost=lost.extend)
    joined(one, group)
    group.refusals = [ErrorCode.fenced_member_epoch]
    group.epoch = 5
    eventually(lambda: (one.poll(0.01), lost == [T0] and one.assignment() == {T0})[1])
    assert len({beat.member_id for beat in group.beats}) == 1
    assert [beat.member_epoch for beat in group.beats].count(0) == 2


def test_a_topic_without_a_name_is_assigned_once_its_name_is_known(
    cluster: ScriptedCluster, consumer: Make, group: Group
) -> None:
    known: list[UUID] = [T_ID]

    def metadata(message: Any, version: int) -> Any:
        reply = cluster.metadata(message)
        (topic,) = reply["topics"]
        if message.topics is not None and any(row.topic_id == LATE_ID for row in message.topics):
            late = topic | {"topic_id": LATE_ID, "name": "late" if LATE_ID in known else None}
            late["error_code"] = 0 if LATE_ID in known else ErrorCode.unknown_topic_id.value
            reply["topics"].append(late)
        return reply

    def offsets(message: Any, version: int) -> Any:
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": 0, "leader_epoch": 0}
        return {"throttle_time": 0, "topics": [{"name": topic.name, "partitions": [row]} for topic in message.topics]}

    cluster.brokers[1].answers |= {METADATA: metadata, LIST_OFFSETS: offsets}
    group.target = {T_ID: [0], LATE_ID: [0]}
    group.interval_ms = 5
    one = consumer()
    one.subscribe(pattern="t|late")
    joined(one, group)
    known.append(LATE_ID)
    eventually(lambda: (one.poll(0.01), len(one.assignment()) == 2)[1])
    eventually(lambda: {T_ID: (0,), LATE_ID: (0,)} in group.owned)
    assert one.subscription() == {"t", "late"}


def test_a_cluster_without_the_protocol_is_an_error(consumer: Make) -> None:
    one = consumer()
    one.subscribe(["t"])
    for _ in range(2):
        with pytest.raises(UnsupportedVersion, match="group_protocol=classic"):
            eventually(lambda: one.poll(0.05))


def test_a_cluster_without_patterns_is_an_error(cluster: ScriptedCluster, consumer: Make, group: Group) -> None:
    cluster.brokers[1].ranges[CONSUMER_GROUP_HEARTBEAT] = (0, 0)
    one = consumer()
    one.subscribe(pattern="t.*")
    with pytest.raises(UnsupportedVersion, match="compiled"):
        eventually(lambda: one.poll(0.05))
    assert group.beats == []
