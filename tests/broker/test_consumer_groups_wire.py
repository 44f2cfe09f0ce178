"""KIP-848 groups on a real broker, over the wire: topics that change, settings, kill -9."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from support.brokers import RunningBroker, Wire, eventually, unique
from support.publish import create_topic

from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from odradek.wire.schemas import milliseconds

GROUP_RESOURCE, SET = 32, 0


class Member:
    """A KIP-848 member that sends one heartbeat at a time."""

    def __init__(self, wire: Wire, group: str, name: str, **joins_with: Any) -> None:
        self.wire, self.group, self.name = wire, group, name
        self.joins_with = joins_with
        self.epoch = 0
        self.owned: dict[UUID, list[int]] = {}

    def beat(self) -> Any:
        asked = {
            "group_id": self.group, "member_id": self.name, "member_epoch": self.epoch, "instance_id": None,
            "rack_id": None, "rebalance_timeout": -1, "subscribed_topic_names": None, "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [{"topic_id": key, "partitions": value} for key, value in self.owned.items()],
        }  # fmt: skip
        if self.epoch == 0:
            asked |= {"rebalance_timeout": 30_000, **self.joins_with}
        reply = self.wire.call(CONSUMER_GROUP_HEARTBEAT, 1, asked)
        if reply.error_code is ErrorCode.none:
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                self.owned = {row.topic_id: list(row.partitions) for row in reply.assignment.topic_partitions}
        return reply

    def counts(self) -> list[int]:
        """Sends a heartbeat. Returns how many partitions of each topic the member has, the lowest number first."""
        assert self.beat().error_code is ErrorCode.none
        return sorted(len(partitions) for partitions in self.owned.values())


def described(wire: Wire, group: str) -> Any:
    return wire.call(CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": [group], "include_authorized_operations": False}).groups[
        0
    ]


@pytest.fixture
def wire(bootstrap: str) -> Iterator[Wire]:
    with Wire(bootstrap) as connection:
        find(connection, "any")
        yield connection


def find(wire: Wire, group: str) -> None:
    """Sends FindCoordinator, which creates the offsets topic."""
    wire.call(10, 4, {"key_type": 0, "coordinator_keys": [group]})


def test_the_apis_and_features_of_kip_848_are_advertised(wire: Wire) -> None:
    versions = wire.versions()
    assert (versions[CONSUMER_GROUP_HEARTBEAT], versions[CONSUMER_GROUP_DESCRIBE]) == ((0, 1), (0, 1))
    reply = wire.call(18, 4, {"client_software_name": "t", "client_software_version": "1"})
    finalized = {row.name: (row.min_version_level, row.max_version_level) for row in reply.finalized_features}
    assert finalized["group.version"] == (1, 1)


def test_the_assignment_follows_topics_that_are_created_extended_and_deleted(
    wire: Wire, bootstrap: str, group: str
) -> None:
    name, later = unique("t"), unique("later")
    create_topic(bootstrap, name, 2)
    member = Member(wire, group, "m", subscribed_topic_names=[name, later])
    eventually(lambda: member.counts() == [2])
    wire.call(
        37, 3, {"topics": [{"name": name, "count": 3, "assignments": None}], "timeout": 10_000, "validate_only": False}
    )
    eventually(lambda: member.counts() == [3])
    create_topic(bootstrap, later, 1)
    eventually(lambda: member.counts() == [1, 3])
    wire.call(20, 6, {"topics": [{"name": name, "topic_id": None}], "timeout": 10_000})
    eventually(lambda: member.counts() == [1])
    create_topic(bootstrap, name, 4)
    eventually(lambda: member.counts() == [1, 4])


def test_a_group_uses_its_own_settings(wire: Wire, bootstrap: str, group: str) -> None:
    name = unique("t")
    create_topic(bootstrap, name)
    member = Member(wire, group, "m", subscribed_topic_names=[name])
    assert milliseconds(member.beat().heartbeat_interval) == 5_000
    change = {"name": "consumer.heartbeat.interval.ms", "config_operation": SET, "value": "9000"}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group, "configs": [change]}
    altered = wire.call(44, 1, {"resources": [resource], "validate_only": False})
    assert altered.responses[0].error_code is ErrorCode.none
    assert milliseconds(member.beat().heartbeat_interval) == 9_000


@pytest.mark.behaviour(36, part=True)
def test_a_group_in_a_rebalance_survives_kill_9(own_broker: Callable[..., RunningBroker]) -> None:
    broker = own_broker(group_consumer_assignment_interval_ms="0")
    name, group = unique("t"), unique("g")
    with Wire(broker.bootstrap) as wire:
        find(wire, group)
        create_topic(broker.bootstrap, name, 4)
        first = Member(wire, group, "first", subscribed_topic_names=[name])
        eventually(lambda: first.counts() == [4])
        topic_id = next(iter(first.owned))
        second = Member(wire, group, "second", subscribed_topic_names=[], subscribed_topic_regex=f"{name[:-1]}.")
        second.beat()
        eventually(lambda: described(wire, group).group_epoch == 3)  # the pattern is resolved
        second.beat()
        kept = first.owned
        # The coordinator has asked the member to give up two partitions, and the member still owns them.
        assert first.beat().member_epoch == 2
        first.owned = kept
        before = described(wire, group)
        assert before.group_state == "Reconciling"
    broker.kill()
    broker.start()
    with Wire(broker.bootstrap) as wire:
        eventually(lambda: described(wire, group).error_code is ErrorCode.none)
        after = described(wire, group)
        assert sorted(after.members, key=lambda m: m.member_id) == sorted(before.members, key=lambda m: m.member_id)
        assert (after.group_state, after.group_epoch, after.assignment_epoch) == ("Reconciling", 3, 3)
        first.wire = second.wire = wire
        assert first.beat().member_epoch == 2  # the coordinator repeats its request to give up two partitions
        first.owned = {topic_id: [0, 1]}
        assert first.beat().member_epoch == 3
        eventually(lambda: second.counts() == [2])
        assert second.owned == {topic_id: [2, 3]}
