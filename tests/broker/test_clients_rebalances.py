"""What makes a group rebalance, with members of three clients: each change begins a new generation of the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import NewPartitions
from support.brokers import RunningBroker, Wire, eventually
from support.member import Member, settled
from support.publish import admin, create_topic, numbers, publish

from odradek import Admin
from odradek.client.admin import offsets_topic
from odradek.codecs import offsets_topic as records

METADATA_AGE_MS = 500
SHORT_TIMES = {
    "group_initial_rebalance_delay_ms": "0",
    "group_min_session_timeout_ms": "1000",
    "group_consumer_min_heartbeat_interval_ms": "200",
    "group_consumer_heartbeat_interval_ms": "200",
    "group_consumer_assignment_interval_ms": "0",
    "group_consumer_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "3000",
}


class Subscriber:
    """A confluent-kafka consumer that a test polls. ``records``: (topic, partition, offset) of the polled records."""

    def __init__(self, bootstrap: str, group: str, protocol: str) -> None:
        classic = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 200}
        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": METADATA_AGE_MS,
            "log_level": 2,
        }
        self.consumer = Consumer(settings | (classic if protocol == "classic" else {}))
        self.records: set[tuple[str, int, int]] = set()

    def assigned(self) -> set[tuple[str, int]]:
        """Polls, and returns the assigned partitions."""
        for message in self.consumer.consume(100, timeout=0.05):
            if message.error() is None:
                self.records.add((message.topic(), message.partition(), message.offset()))
        return {(each.topic, each.partition) for each in self.consumer.assignment()}


def generation(bootstrap: str, group: str, protocol: str) -> int:
    """The newest generation of a classic group in the offsets topic, or the group epoch of the consumer protocol."""
    if protocol == "consumer":
        with Wire(bootstrap) as wire:
            request = {"group_ids": [group], "include_authorized_operations": False}
            return int(wire.call(69, 1, request).groups[0].group_epoch)
    with Admin(bootstrap) as own:
        found = [records.decode(entry.key, entry.value) for entry in offsets_topic.entries(own, group)]
    return [one.value.generation for one in found if isinstance(one, records.GroupRecord) and one.value][-1]


def add_partition(bootstrap: str, topic: str, count: int) -> None:
    """Raises the number of partitions to ``count``, and publishes one record to the new one."""
    admin(bootstrap).create_partitions([NewPartitions(topic, count)])[topic].result(30)
    eventually(lambda: len(admin(bootstrap).list_topics(topic, timeout=10).topics[topic].partitions) == count)
    publish(bootstrap, topic, numbers(1), partition=count - 1)


@pytest.mark.claim(64, part="a")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_each_change_of_members_topics_or_partitions_begins_a_generation(
    own_broker: Callable[..., RunningBroker], topic: str, group: str, protocol: str
) -> None:
    """A second member joins and leaves; a third one joins and dies. Then the remaining member subscribes to a second
    topic, and a partition is added to the first topic. Each change begins a generation with another assignment."""
    servers = own_broker(**SHORT_TIMES).bootstrap
    other = f"{topic}-other"
    create_topic(servers, topic, 2)
    create_topic(servers, other)
    one = Subscriber(servers, group, protocol)
    one.consumer.subscribe([topic])
    both = {(topic, 0), (topic, 1)}
    seen: list[int] = []

    def rebalanced(owned: set[tuple[str, int]] | int) -> None:
        """Waits until ``one`` has these partitions, or this number of partitions, and no rebalance is under way.

        Checks that the generation is newer than at the previous call."""

        def settled_group() -> bool:
            now = one.assigned()
            state = admin(servers).describe_consumer_groups([group])[group].result(10).state.name
            return (len(now) == owned if isinstance(owned, int) else now == owned) and state == "STABLE"

        eventually(settled_group, within_s=30, what=f"{owned} in generation {seen}")
        seen.append(generation(servers, group, protocol))
        assert seen == sorted(set(seen)), f"the last change began no generation: {seen}"

    rebalanced(both)
    member = {"protocol": protocol, "session_timeout_ms": 3000}
    with Member("confluent", servers, group, topic, **member) as leaves:
        rebalanced(1)
        eventually(lambda: one.assigned() and leaves.assigned)
        leaves.leave()
        rebalanced(both)
    with Member("confluent", servers, group, topic, **member) as dies:
        rebalanced(1)
        eventually(lambda: one.assigned() and dies.assigned)
        dies.kill()
        rebalanced(both)
    one.consumer.subscribe([topic, other])
    rebalanced(both | {(other, 0)})
    add_partition(servers, topic, 3)
    rebalanced(both | {(other, 0), (topic, 2)})
    eventually(lambda: one.assigned() and (topic, 2, 0) in one.records)
    one.consumer.close()


@pytest.mark.claim(64, part=True)
@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka"])
def test_two_members_rebalance_for_an_added_partition_and_read_it(
    bootstrap: str, topic: str, group: str, client: str
) -> None:
    """The leader of a classic group sees the new partition in its metadata, and joins again."""
    create_topic(bootstrap, topic, 2)
    with (
        Member(client, bootstrap, group, topic, metadata_max_age_ms=METADATA_AGE_MS) as one,
        Member(client, bootstrap, group, topic, metadata_max_age_ms=METADATA_AGE_MS) as two,
    ):
        settled([one, two], 2)
        before = generation(bootstrap, group, "classic")
        add_partition(bootstrap, topic, 3)
        settled([one, two], 3)
        assert generation(bootstrap, group, "classic") > before
        eventually(lambda: (2, 0) in one.records + two.records)
