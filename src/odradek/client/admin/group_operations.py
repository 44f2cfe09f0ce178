"""The admin requests for groups: lists, descriptions, deletions, and commits without a member."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.client.admin.node_operations import at_each_broker
from odradek.client.arguments import as_name, as_names, as_offsets, as_partitions
from odradek.client.cluster import GROUP, TRANSACTIONAL_ID, Cluster
from odradek.client.errors import GroupIdNotFound, GroupNotEmpty, UnknownTopic, error_for, first_row, shown_group
from odradek.client.model import GroupDescription, GroupListing, MemberDescription, Node
from odradek.client.offset_requests import NAMES_CEILING, by_topic
from odradek.codecs.consumer_protocol import decode_assignment
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import OffsetAndMetadata, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
)

if TYPE_CHECKING:
    from kio.schema.consumer_group_describe.v1.response import DescribedGroup
    from kio.schema.describe_groups.v6.response import DescribedGroup as ClassicGroup
    from kio.schema.describe_groups.v6.response import DescribedGroupMember as ClassicMember


def _visible(name: str) -> str:
    """Returns a name, quoted if it has spaces at its ends, which are invisible otherwise."""
    return name if name == name.strip() else repr(name)


async def groups_at(
    cluster: Cluster, node: Node, states: Sequence[str] = (), types: Sequence[str] = ()
) -> list[GroupListing]:
    """Returns the groups that a broker coordinates; those with one of the states and types, if any are given."""
    message = {"states_filter": states, "types_filter": types}
    reply = await (await cluster.connection(node.node_id)).call(LIST_GROUPS, message)
    if reply.error_code is not ErrorCode.none:
        raise error_for(reply.error_code, f"groups of broker {node.node_id}")
    return [
        GroupListing(row.group_id, row.protocol_type, getattr(row, "group_state", ""), getattr(row, "group_type", ""))
        for row in reply.groups
    ]


async def list_groups(cluster: Cluster, states: Iterable[str], types: Iterable[str]) -> list[GroupListing]:
    deadline = cluster.deadline()
    wanted = as_names(states, "states"), as_names(types, "types")

    async def attempt() -> list[GroupListing]:
        parts = await at_each_broker(cluster, "groups", lambda node: groups_at(cluster, node, *wanted))
        return sorted({row.group_id: row for part in parts for row in part}.values(), key=lambda row: row.group_id)

    return await cluster.retry("listing groups", attempt, deadline)


async def find_coordinator(cluster: Cluster, group_id: str | None, transactional_id: str | None) -> Node:
    """Asks the cluster at each call, as Java's Admin does: the coordinator of an earlier reply may be dead."""
    if (group_id is None) == (transactional_id is None):
        raise TypeError("coordinator() takes a group or transactional_id=, and not both")
    key_type = TRANSACTIONAL_ID if group_id is None else GROUP
    key = as_name(group_id if transactional_id is None else transactional_id, "coordinator()")

    async def attempt() -> Node:
        cluster.forget_coordinator(key, key_type)
        return await cluster.coordinator(key, key_type)

    what = "group" if key_type == GROUP else "transactional id"
    return await cluster.retry(f"coordinator of {what} {key}", attempt, cluster.deadline())


async def describe_group(cluster: Cluster, group_id: str) -> GroupDescription:
    """Describes a group as a KIP-848 group or else as a classic or simple one. Raises GroupIdNotFound."""
    what = f"describing group {group_id}"

    async def call(connection: BrokerConnection) -> GroupDescription:
        node = await cluster.coordinator(group_id)
        if connection.supports(CONSUMER_GROUP_DESCRIBE):
            described = await connection.call(
                CONSUMER_GROUP_DESCRIBE, {"group_ids": [group_id], "include_authorized_operations": False}
            )
            new = first_row(described.groups, shown_group(group_id))
            if new.error_code is ErrorCode.none:
                return _kip848_group_description(new, node)
            if new.error_code not in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
                raise error_for(new.error_code, shown_group(group_id))
        reply = await connection.call(DESCRIBE_GROUPS, {"groups": [group_id], "include_authorized_operations": False})
        row = first_row(reply.groups, shown_group(group_id))
        if row.error_code is ErrorCode.group_id_not_found or row.group_state == "Dead":
            raise GroupIdNotFound(f"group {_visible(group_id)} not found", group_id)
        if row.error_code is not ErrorCode.none:
            raise error_for(row.error_code, shown_group(group_id))
        return _classic_group_description(row, node)

    return await cluster.at_coordinator(group_id, what, call, cluster.deadline())


def _classic_group_description(row: ClassicGroup, node: Node) -> GroupDescription:
    is_consumer = row.protocol_type in ("", "consumer")
    members = tuple(
        MemberDescription(
            m.member_id,
            m.client_id,
            m.client_host,
            getattr(m, "group_instance_id", None),
            _assignment(row.group_id, m) if is_consumer else (),
        )
        for m in row.members
    )
    return GroupDescription(
        row.group_id, row.group_state, row.protocol_type, row.protocol_data, "classic", node, members
    )


def _assignment(group_id: str, member: ClassicMember) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(bytes(member.member_assignment))
    except ValueError as error:
        what = f"group {group_id}: the assignment of member {member.member_id} cannot be read: {error}"
        raise error_for(ErrorCode.inconsistent_group_protocol, what) from error


def _kip848_group_description(row: DescribedGroup, node: Node) -> GroupDescription:
    members = tuple(
        MemberDescription(
            m.member_id,
            m.client_id,
            m.client_host,
            m.instance_id,
            tuple(TopicPartition(t.topic_name, p) for t in m.assignment.topic_partitions for p in t.partitions),
        )
        for m in row.members
    )
    return GroupDescription(row.group_id, row.group_state, "consumer", row.assignor_name, "consumer", node, members)


async def alter_group_offsets(
    cluster: Cluster, group_id: str, given: Mapping[TopicPartition, OffsetAndMetadata | int]
) -> None:
    offsets = as_offsets(given)
    if not offsets:
        return
    topics = [
        {
            "name": name,
            "partitions": [_commit_row(index, offsets[TopicPartition(name, index)]) for index in indexes],
        }
        for name, indexes in by_topic(offsets).items()
    ]
    message = {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": topics,
    }

    async def call(connection: BrokerConnection) -> None:
        reply = await connection.call(OFFSET_COMMIT, message, ceiling=NAMES_CEILING)
        for topic in reply.topics:
            for row in topic.partitions:
                if row.error_code is not ErrorCode.none:
                    raise _commit_error(group_id, TopicPartition(topic.name, row.partition_index), row.error_code)

    await cluster.at_coordinator(group_id, f"committing offsets of group {group_id}", call, cluster.deadline())


def _commit_row(index: int, commit: OffsetAndMetadata) -> dict[str, object]:
    return {
        "partition_index": index,
        "committed_offset": commit.offset,
        "committed_leader_epoch": commit.leader_epoch,
        "committed_metadata": commit.metadata,
    }


def _commit_error(group_id: str, tp: TopicPartition, code: ErrorCode) -> KafkaError:
    live = (ErrorCode.unknown_member_id, ErrorCode.rebalance_in_progress, ErrorCode.illegal_generation)
    if code in (*live, ErrorCode.stale_member_epoch):
        return GroupNotEmpty(f"group {group_id} has live members: stop them first, or commit as one of them")
    if code is ErrorCode.unknown_topic_or_partition:
        return UnknownTopic(f"{tp} does not exist, so group {group_id} cannot have an offset there")
    return error_for(code, f"offset of group {group_id} in {tp}")


async def delete_group(cluster: Cluster, group_id: str) -> None:
    async def call(connection: BrokerConnection) -> None:
        reply = await connection.call(DELETE_GROUPS, {"groups_names": [group_id]})
        code = first_row(reply.results, shown_group(group_id)).error_code
        if code is ErrorCode.non_empty_group:
            raise GroupNotEmpty(f"group {group_id} has live members: stop them first")
        if code is ErrorCode.group_id_not_found:
            raise GroupIdNotFound(f"group {_visible(group_id)} not found", group_id)
        if code is not ErrorCode.none:
            raise error_for(code, shown_group(group_id))

    await cluster.at_coordinator(group_id, f"deleting group {group_id}", call, cluster.deadline())


async def delete_group_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in by_topic(as_partitions(partitions)).items()
    ]

    async def call(connection: BrokerConnection) -> None:
        reply = await connection.call(OFFSET_DELETE, {"group_id": group_id, "topics": topics})
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, shown_group(group_id))
        for topic in reply.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is ErrorCode.group_subscribed_to_topic:
                    what = f"group {group_id} has live members that subscribe to {tp.topic}: stop them first"
                    raise error_for(row.error_code, what)
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, f"offset of group {group_id} in {tp}")

    await cluster.at_coordinator(group_id, f"deleting offsets of group {group_id}", call, cluster.deadline())
