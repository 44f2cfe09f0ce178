"""Admin with a running broker."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from support.brokers import eventually
from support.publish import commit_raw

import odradek.aio
from odradek.client import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, NewTopic, OffsetAndMetadata, TopicPartition
from odradek.client.errors import GroupIdNotFound, GroupNotEmpty, KafkaError, UnknownTopic
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, ProducerIdentity, partition_for_group
from odradek.history.records.journal import Journal
from odradek.history.records.read import stream_offset_history
from odradek.lag.describe import describe
from odradek.lag.reset import Scenario, plan
from odradek.lag.reset_targets import ResetTarget
from odradek.pipelines.replays.selection import commits_of


def test_topics_are_created_described_and_deleted(admin: Admin, topic: str) -> None:
    with pytest.raises(UnknownTopic, match=f"unknown topic {topic}"):
        admin.describe_topics([topic])
    assert admin.describe_topics([topic], missing_ok=True) == {}
    admin.create_topics([NewTopic(topic, 3, 1, {"retention.ms": "86400000"})])
    found = eventually(lambda: admin.describe_topics([topic])[topic])
    assert [row.partition for row in found.partitions] == [0, 1, 2]
    assert not found.internal
    assert isinstance(found.topic_id, UUID)
    assert all(row.leader in row.replicas == row.isr for row in found.partitions)
    assert eventually(lambda: topic in admin.topics())
    with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 3, 1)])
    admin.delete_topics([topic])
    assert eventually(lambda: admin.describe_topics([topic], missing_ok=True) == {})
    with pytest.raises(UnknownTopic):
        admin.delete_topics([topic])


@pytest.mark.parametrize(
    "values", [(-1, 0, 0), (1 << 63, 0, 0), (0, -1, 0), (0, 1 << 15, 0), (0, 0, -1), (0, 0, 1 << 31)]
)
def test_the_values_of_an_abort_marker_are_checked(admin: Admin, values: tuple[int, int, int]) -> None:
    producer_id, epoch, coordinator_epoch = values
    with pytest.raises(ValueError, match="expected a whole number from 0 to"):
        admin.abort_transaction(TopicPartition("t", 0), ProducerIdentity(producer_id, epoch), coordinator_epoch)


def test_validate_only_creates_no_topic(admin: Admin, topic: str) -> None:
    admin.create_topics([NewTopic(topic, 1, 1)], validate_only=True)
    assert topic not in admin.topics()
    with pytest.raises(KafkaError, match=f"INVALID_PARTITIONS: topic {topic}"):
        admin.create_topics([NewTopic(topic, 0, 1)], validate_only=True)


def test_the_valid_topics_of_a_request_are_created(admin: Admin, topic: str) -> None:
    with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        admin.create_topics([NewTopic("no/slash", 1, 1), NewTopic(topic, 1, 1)])
    assert eventually(lambda: topic in admin.topics())


def test_offsets_are_listed_by_earliest_latest_and_time(admin: Admin, filled: str) -> None:
    first, second = admin.partitions(filled)
    assert admin.list_offsets({first: EARLIEST})[first].offset == 0
    assert admin.list_offsets({first: LATEST, second: LATEST})[second].offset == 10
    by_time = admin.list_offsets({first: 1_700_000_000_004, second: 1_800_000_000_000})
    assert (by_time[first].offset, by_time[first].timestamp_ms) == (4, 1_700_000_000_004)
    assert by_time[second].offset == -1
    assert admin.list_offsets({first: MAX_TIMESTAMP})[first].offset == 9
    with pytest.raises(UnknownTopic, match=f"topic {filled} has no partition 7"):
        admin.list_offsets({TopicPartition(filled, 7): LATEST})
    wrong: Any = {first: "earliest"}
    with pytest.raises(TypeError, match=f"{first}: expected EARLIEST, LATEST or MAX_TIMESTAMP of odradek.client, "):
        admin.list_offsets(wrong)


@pytest.mark.claim(39)
@pytest.mark.claim(43, part=True)
def test_offsets_are_committed_per_partition(admin: Admin, filled: str, group: str) -> None:
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(3, 0, "by hand")})
    assert admin.list_group_offsets(group) == {first: OffsetAndMetadata(3, 0, "by hand")}
    admin.alter_group_offsets(group, {second: OffsetAndMetadata(20)})  # beyond the log end: not checked (claim 43)
    assert admin.list_group_offsets(group) == {
        first: OffsetAndMetadata(3, 0, "by hand"),
        second: OffsetAndMetadata(20),
    }
    assert admin.list_group_offsets(group, [second]) == {second: OffsetAndMetadata(20)}
    assert admin.list_group_offsets(group, []) == {}


def test_an_offset_below_zero_that_another_client_committed_is_no_commit(
    admin: Admin, bootstrap: str, filled: str, group: str
) -> None:
    first, second = admin.partitions(filled)
    # This client refuses such an offset; kafkajs commits -2.
    commit_raw(bootstrap, group, filled, {first.partition: (3, -1, ""), second.partition: (-2, -1, "")})
    assert admin.list_group_offsets(group) == {first: OffsetAndMetadata(3)}
    assert admin.group_commits(group) == {first: OffsetAndMetadata(3), second: None}
    # Kafka's tool prints a row with "-" for it, and resets it with --all-topics.
    rows = {row.partition: (row.current_offset, row.log_end_offset, row.lag) for row in describe(admin, group).rows}
    ends = admin.list_offsets(dict.fromkeys((first, second), LATEST))
    end = ends[second].offset
    assert rows[second.partition] == (None, end, None)
    planned = plan(admin, group, Scenario(ResetTarget.TO_LATEST), all_topics=True).rows
    assert [(row.partition, row.before, row.after) for row in planned] == [
        (first.partition, 3, ends[first].offset), (second.partition, None, end),
    ]  # fmt: skip
    history = pa.Table.from_batches([*stream_offset_history(admin.config, group=group)])
    assert [row["committed_offset"] for row in history.to_pylist()] == [3, -2], "the bytes as they are"
    by_partition = commits_of(history, {})
    assert [one.offset for one in by_partition[second]] == [None]
    journal = Journal()
    for batch in history.to_batches():
        journal.add(batch)
    assert journal.sorted_commits().is_tombstone.tolist() == [False, True]


@pytest.mark.behaviour(25, part=True)
def test_a_group_that_does_not_exist_has_no_offsets(admin: Admin, group: str) -> None:
    assert admin.list_group_offsets(group) == {}
    with pytest.raises(GroupIdNotFound, match=f"group {group} not found"):
        admin.describe_groups([group])
    with pytest.raises(GroupIdNotFound):
        admin.delete_groups([group])


@pytest.mark.behaviour(9, part=True)
def test_a_partition_that_does_not_exist_is_refused(admin: Admin, filled: str, group: str) -> None:
    with pytest.raises(UnknownTopic, match=f"{filled}-9 does not exist"):
        admin.alter_group_offsets(group, {TopicPartition(filled, 9): OffsetAndMetadata(1)})


def test_offsets_and_groups_are_deleted(admin: Admin, filled: str, group: str) -> None:
    first, second = admin.partitions(filled)
    admin.alter_group_offsets(group, {first: OffsetAndMetadata(1), second: OffsetAndMetadata(2)})
    admin.delete_group_offsets(group, [first])
    assert admin.list_group_offsets(group) == {second: OffsetAndMetadata(2)}
    admin.delete_groups([group])
    assert admin.list_group_offsets(group) == {}


@pytest.mark.behaviour(21, 22)
def test_a_group_with_members_is_described_and_cannot_be_changed(
    admin: Admin, bootstrap: str, filled: str, group: str
) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "me", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([filled])
    deadline = time.monotonic() + 20
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    described = admin.describe_groups([group])[group]
    assert (described.state, described.protocol_type, described.protocol) == ("Stable", "consumer", "range")
    (member,) = described.members
    assert (member.client_id, member.host) == ("me", "/127.0.0.1")
    assert set(member.assignment) == set(admin.partitions(filled))
    with pytest.raises(GroupNotEmpty, match=f"group {group} has live members: stop them"):
        admin.alter_group_offsets(group, {TopicPartition(filled, 0): OffsetAndMetadata(1)})
    with pytest.raises(GroupNotEmpty, match="has live members"):
        admin.delete_groups([group])
    with pytest.raises(KafkaError, match="GROUP_SUBSCRIBED_TO_TOPIC"):
        admin.delete_group_offsets(group, [TopicPartition(filled, 0)])
    (listed,) = [row for row in admin.list_groups(states=["Stable"]) if row.group_id == group]
    assert (listed.protocol_type, listed.state, listed.type.lower()) == ("consumer", "Stable", "classic")
    consumer.close()
    assert admin.describe_groups([group])[group].state == "Empty"


@pytest.mark.claim(60, part=True)
def test_the_coordinator_leads_the_groups_partition(admin: Admin, group: str) -> None:
    node = admin.coordinator(group)
    offsets_topic = admin.describe_topics([OFFSETS_TOPIC])[OFFSETS_TOPIC]
    number = partition_for_group(group, len(offsets_topic.partitions))
    assert offsets_topic.partitions[number].leader == node.node_id
    assert offsets_topic.internal


def test_settings_of_topics_and_brokers_are_described_and_changed(admin: Admin, filled: str, group: str) -> None:
    def source(kind: str, name: str, setting: str) -> tuple[str | None, str]:
        found = {row.name: row for row in admin.describe_configs(kind, [name])[name]}[setting]
        return found.value, found.source

    node = admin.describe_cluster().nodes[0]
    assert source("topic", filled, "retention.ms")[1] != "topic"
    admin.alter_configs("topic", filled, {"retention.ms": "77000"})
    assert eventually(lambda: source("topic", filled, "retention.ms") == ("77000", "topic"))
    assert source("broker", str(node.node_id), "num.partitions") == ("4", "static broker")
    with pytest.raises(KafkaError, match="INVALID_CONFIG"):
        admin.alter_configs("topic", filled, {"retention.ms": "long"}, validate_only=True)
    admin.alter_configs("topic", filled, {"retention.ms": None})
    assert eventually(lambda: source("topic", filled, "retention.ms")[1] != "topic")
    with pytest.raises(ValueError, match="expected a broker's id"):
        admin.describe_configs("broker", ["one"])
    with pytest.raises(ValueError, match="topic, broker, group"):
        admin.describe_configs("user", ["one"])


def test_settings_of_a_group_are_described_and_changed(admin: Admin, group: str) -> None:
    def session() -> tuple[str | None, str]:
        found = {row.name: row for row in admin.describe_configs("group", [group])[group]}
        return found["consumer.session.timeout.ms"][1:3]

    try:
        assert session()[1] == "default"
    except KafkaError as error:
        if error.code not in (ErrorCode.unsupported_version, ErrorCode.invalid_request):
            raise
        pytest.skip(f"this broker has no settings of groups: {error}")
    admin.alter_configs("group", group, {"consumer.session.timeout.ms": "50000"})
    assert eventually(lambda: session() == ("50000", "group"))


def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    found = admin.describe_cluster()
    assert found.cluster_id
    assert [f"{node.host}:{node.port}" for node in found.nodes] == [bootstrap]
    assert found.controller == found.nodes[0]


def test_the_async_admin_has_the_same_calls(bootstrap: str, filled: str, group: str) -> None:
    async def main() -> None:
        async with odradek.aio.Admin(bootstrap, default_api_timeout_ms=20_000) as admin:
            first, second = await admin.partitions(filled)
            ends = await admin.list_offsets({first: LATEST, second: LATEST})
            assert [row.offset for row in ends.values()] == [10, 10]
            await admin.alter_group_offsets(group, {first: OffsetAndMetadata(3), second: OffsetAndMetadata(4)})
            await admin.delete_group_offsets(group, [second])
            assert await admin.list_group_offsets(group) == {first: OffsetAndMetadata(3)}
            assert group in [row.group_id for row in await admin.list_groups(states=["Empty"])]
            assert (await admin.describe_groups([group]))[group].coordinator == await admin.coordinator(group)
            assert await admin.delete_records({first: 6}) == {first: 6}
            await admin.alter_configs("topic", filled, {"retention.ms": "-1"})
            assert (await admin.describe_configs("topic", [filled]))[filled]
            await admin.create_partitions({filled: 3})
            await admin.create_topics([NewTopic(filled + "-2", 1, 1)])
            wanted = {filled, filled + "-2"}
            while not wanted <= set(await admin.topics()):
                await asyncio.sleep(0.05)
            assert (await admin.describe_topics([filled + "-2"], missing_ok=True)).keys() == {filled + "-2"}
            assert (await admin.describe_cluster()).nodes
            await admin.delete_topics([filled + "-2"])
            await admin.delete_groups([group])
        with pytest.raises(ValueError, match="closed"):
            await admin.topics()

    asyncio.run(main())


def test_a_lone_broker_needs_no_elections(admin: Admin, bootstrap: str, filled: str) -> None:
    first, second = (TopicPartition(filled, number) for number in (0, 7))
    for kind in ("preferred", "unclean"):
        found = admin.elect_leaders(kind, [first, second, TopicPartition(f"{filled}-unknown", 0)])
        codes = {tp: None if error is None else error.code for tp, error in found.items()}
        unknown = ErrorCode.unknown_topic_or_partition
        assert codes == {
            first: ErrorCode.election_not_needed,
            second: unknown,
            TopicPartition(f"{filled}-unknown", 0): unknown,
        }
        assert admin.elect_leaders(kind) == {}
        assert admin.elect_leaders(kind, []) == {}
    with pytest.raises(ValueError, match="expected preferred, unclean"):
        admin.elect_leaders("clean", [first])

    async def elect() -> dict[TopicPartition, KafkaError | None]:
        async with odradek.aio.Admin(bootstrap) as other:
            described = await other.describe_topics([filled], eligible=True)
            assert [(one.elr, one.last_known_elr) for one in described[filled].partitions][:1] == [((), ())]
            return await other.elect_leaders("preferred", [first])

    (error,) = asyncio.run(elect()).values()
    assert error is not None
    assert "Leader election not needed" in error.message


def test_eligible_replicas_are_described_on_request(admin: Admin, topic: str) -> None:
    """Several pages of partitions, and topics of which one ends on a page."""
    names = [f"{topic}-{number}" for number in range(3)]
    admin.create_topics([NewTopic(names[0], 1200), NewTopic(names[1], 800), NewTopic(names[2], 1500)])
    usual, full = admin.describe_topics(names), admin.describe_topics(names, eligible=True)
    assert {one.elr for topic in usual.values() for one in topic.partitions} == {None}
    assert {one.elr for topic in full.values() for one in topic.partitions} == {()}
    for name in names:
        assert [replace(one, elr=None, last_known_elr=None) for one in full[name].partitions] == list(
            usual[name].partitions
        )
    admin.delete_topics(names)


def test_threads_share_an_admin(admin: Admin, filled: str) -> None:
    partitions = admin.partitions(filled)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: admin.list_offsets(dict.fromkeys(partitions, LATEST)), range(32)))
    assert {rows[partition].offset for rows in found for partition in partitions} == {10}


def test_a_closed_admin_raises(bootstrap: str) -> None:
    with Admin(bootstrap) as made:
        made.topics()
    with pytest.raises(ValueError, match="closed"):
        made.topics()


@pytest.mark.behaviour(7)
def test_metadata_that_is_too_large_fails_for_its_partition_only(admin: Admin, filled: str, group: str) -> None:
    first, second = admin.partitions(filled)
    with pytest.raises(KafkaError) as caught:
        admin.alter_group_offsets(group, {first: OffsetAndMetadata(1, -1, "x" * 5000), second: OffsetAndMetadata(2)})
    assert caught.value.code is ErrorCode.offset_metadata_too_large
    assert admin.list_group_offsets(group) == {second: OffsetAndMetadata(2)}
