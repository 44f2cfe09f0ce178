"""confluent-kafka (librdkafka) in KIP-848 groups: ``group.protocol=consumer``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from support.brokers import RunningBroker, Wire, eventually, unique
from support.publish import admin, committed, consumer, create_topic, log_end, publish, read

from odradek.core.ids import OFFSETS_TOPIC, partition_for_group

PARTITIONS = 4

# Heartbeats are frequent, so that no test waits for one.
SHORT_INTERVALS = {
    "group_consumer_min_heartbeat_interval_ms": "200",
    "group_consumer_heartbeat_interval_ms": "200",
    "group_consumer_assignment_interval_ms": "100",
}


@pytest.fixture
def broker(own_broker: Callable[..., RunningBroker]) -> RunningBroker:
    return own_broker(**SHORT_INTERVALS)


def fill(bootstrap: str, topic: str, first: int, end: int) -> None:
    """Publishes the values from ``first`` to ``end - 1``, spread over all partitions."""
    for partition in range(PARTITIONS):
        publish(bootstrap, topic, map(str, range(first + partition, end, PARTITIONS)), partition=partition)


class Reader:
    """A consumer that a test polls. ``values``: those of all polled records. ``revoked``: the number of revocations."""

    def __init__(self, bootstrap: str, group: str, *topics: str, **settings: Any) -> None:
        how = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 2,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        self.consumer = Consumer(how)
        self.values: list[int] = []
        self.revoked = 0
        self.consumer.subscribe(list(topics), on_revoke=self._on_revoke)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.revoked += bool(partitions)

    def poll(self) -> Reader:
        for message in self.consumer.consume(100, timeout=0.05):
            if message.error() is None:
                self.values.append(int(message.value()))
        return self

    @property
    def assigned(self) -> set[tuple[str, int]]:
        return {(each.topic, each.partition) for each in self.consumer.assignment()}


def shared(readers: list[Reader], topics: dict[str, int]) -> Callable[[], bool]:
    """Returns a function that polls once and returns whether the readers share all partitions.

    Each partition must have one reader, and each reader at least one partition.
    """

    def look() -> bool:
        has = [reader.poll().assigned for reader in readers]
        every = {(topic, number) for topic, count in topics.items() for number in range(count)}
        return all(has) and sum(map(len, has)) == len(every) and set().union(*has) == every

    return look


def _commits(reader: Reader) -> bool:
    try:
        reader.poll().consumer.commit(asynchronous=False)
    except KafkaException:
        return False
    return True


def group_of(bootstrap: str, group: str) -> Any:
    with Wire(bootstrap) as wire:
        return wire.call(69, 1, {"group_ids": [group], "include_authorized_operations": False}).groups[0]


def test_members_share_and_take_over(broker: RunningBroker) -> None:
    topic, group = unique("t"), unique("g")
    create_topic(broker.bootstrap, topic, PARTITIONS)
    fill(broker.bootstrap, topic, 0, 40)
    first = Reader(broker.bootstrap, group, topic)
    eventually(shared([first], {topic: PARTITIONS}))
    second = Reader(broker.bootstrap, group, topic)
    eventually(shared([first, second], {topic: PARTITIONS}))
    assert {len(first.assigned), len(second.assigned)} == {2}
    eventually(lambda: set(first.poll().values) | set(second.poll().values) == set(range(40)))
    first.consumer.commit(asynchronous=False)
    first.consumer.close()
    eventually(shared([second], {topic: PARTITIONS}))
    eventually(lambda: _commits(second) and sum(committed(broker.bootstrap, group).values()) == 40)
    second.consumer.close()
    eventually(lambda: group_of(broker.bootstrap, group).group_state == "Empty")


def test_a_pattern_is_resolved_by_the_broker(broker: RunningBroker) -> None:
    start, group = unique("p"), unique("g")
    for end in ("a", "b"):
        create_topic(broker.bootstrap, f"{start}-{end}", 1)
    create_topic(broker.bootstrap, f"x{start}", 1)
    reader = Reader(broker.bootstrap, group, f"^{start}-.*")
    eventually(shared([reader], {f"{start}-a": 1, f"{start}-b": 1}))
    (member,) = group_of(broker.bootstrap, group).members
    assert start in member.subscribed_topic_regex
    reader.consumer.close()


@pytest.mark.behaviour(36, part=True)
def test_members_keep_their_positions_when_the_broker_is_killed(broker: RunningBroker) -> None:
    topic, group = unique("t"), unique("g")
    create_topic(broker.bootstrap, topic, PARTITIONS)
    fill(broker.bootstrap, topic, 0, 20)
    readers = [Reader(broker.bootstrap, group, topic) for _ in range(2)]
    eventually(shared(readers, {topic: PARTITIONS}))
    eventually(lambda: {v for reader in readers for v in reader.poll().values} == set(range(20)))
    eventually(lambda: all(map(_commits, readers)))
    before = group_of(broker.bootstrap, group)
    had = [(reader.assigned, reader.revoked) for reader in readers]
    broker.kill()
    broker.start()
    eventually(lambda: group_of(broker.bootstrap, group).error_code.name == "none", within_s=30)
    after = group_of(broker.bootstrap, group)
    assert (after.group_epoch, after.assignment_epoch) == (before.group_epoch, before.assignment_epoch)
    assert sorted(after.members, key=lambda m: m.member_id) == sorted(before.members, key=lambda m: m.member_id)
    fill(broker.bootstrap, topic, 20, 40)
    eventually(lambda: {v for reader in readers for v in reader.poll().values} == set(range(40)), within_s=60)
    assert [(reader.assigned, reader.revoked) for reader in readers] == had  # no partition moved
    eventually(lambda: all(map(_commits, readers)) and sum(committed(broker.bootstrap, group).values()) == 40)
    for reader in readers:
        reader.consumer.close()


@pytest.mark.behaviour(38, part=True)
def test_classic_and_kip_848_members_share_one_group(broker: RunningBroker) -> None:
    topic, group = unique("t"), unique("g")
    create_topic(broker.bootstrap, topic, PARTITIONS)
    old = Reader(
        broker.bootstrap, group, topic, group_protocol="classic",
        partition_assignment_strategy="cooperative-sticky", session_timeout_ms=6000, heartbeat_interval_ms=200,
    )  # fmt: skip
    eventually(shared([old], {topic: PARTITIONS}))
    new = Reader(broker.bootstrap, group, topic)
    eventually(shared([old, new], {topic: PARTITIONS}), within_s=40)
    assert sorted(member.member_type for member in group_of(broker.bootstrap, group).members) == [0, 1]
    new.consumer.close()
    eventually(shared([old], {topic: PARTITIONS}), within_s=40)
    assert group_of(broker.bootstrap, group).error_code.name == "group_id_not_found"  # the group is classic again
    fill(broker.bootstrap, topic, 0, 8)
    eventually(lambda: set(old.poll().values) == set(range(8)))
    old.consumer.commit(asynchronous=False)
    old.consumer.close()


@pytest.mark.claim(66)
def test_the_broker_s_range_assignor_gives_five_partitions_to_two_members(
    broker: RunningBroker, topic: str, group: str
) -> None:
    create_topic(broker.bootstrap, topic, 5)
    readers = [Reader(broker.bootstrap, group, topic, group_remote_assignor="range") for _ in range(2)]
    eventually(shared(readers, {topic: 5}))
    assert sorted([{number for _, number in one.assigned} for one in readers], key=min) == [{0, 1, 2}, {3, 4}]
    for one in readers:
        one.consumer.close()


@pytest.mark.claim(86, part="a")
def test_a_group_writes_records_of_the_types_3_to_8(broker: RunningBroker, topic: str, group: str) -> None:
    """A group with a member writes records of the types 3 and 5 to 8. The deletion of the group writes tombstones of
    these types and of type 4; Kafka 4.3 writes type 4 only as such a tombstone."""
    create_topic(broker.bootstrap, topic, PARTITIONS)
    partition = partition_for_group(group, 50)
    reader = Reader(broker.bootstrap, group, topic)
    eventually(lambda: len(reader.poll().assigned) == PARTITIONS)
    # Each key begins with its type. A tombstone has no value.
    found = kinds(broker.bootstrap, partition)
    assert {kind for kind, is_tombstone in found if not is_tombstone} == {3, 5, 6, 7, 8}
    reader.consumer.close()
    eventually(lambda: _deletes(broker.bootstrap, group))
    found = kinds(broker.bootstrap, partition)
    assert {kind for kind, is_tombstone in found if is_tombstone} == {3, 4, 5, 6, 7, 8}


def kinds(bootstrap: str, partition: int) -> list[tuple[int, bool]]:
    """The types of the records in a partition of the offsets topic, and whether each is a tombstone."""
    source = consumer(bootstrap, unique("reader"))
    source.assign([TopicPartition(OFFSETS_TOPIC, partition, 0)])
    messages = read(source, log_end(bootstrap, OFFSETS_TOPIC, partition))
    source.close()
    return [(int.from_bytes(message.key()[:2], "big"), message.value() is None) for message in messages]


def _deletes(bootstrap: str, group: str) -> bool:
    try:
        admin(bootstrap).delete_consumer_groups([group])[group].result(10)
    except KafkaException:
        return False  # the member is still in the group
    return True
