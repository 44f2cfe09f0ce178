"""The admin requests for topics, offsets and groups, asynchronous: one request per broker, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from odradek.client.arguments import as_name, as_names, as_offsets, as_partitions, as_setting
from odradek.client.cluster import Cluster, Deadline, worth_retrying
from odradek.client.errors import GroupIdNotFound, GroupNotEmpty, UnknownTopic, error_for, first_row
from odradek.client.model import (
    EARLIEST_LOCAL,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    EpochEnd,
    GroupDescription,
    GroupListing,
    ListedOffset,
    MemberDescription,
    NewTopic,
    Node,
    TopicDescription,
)
from odradek.core.consumer_protocol import decode_assignment
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_OFFSET, OffsetAndMetadata, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    CREATE_TOPICS,
    DELETE_GROUPS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
)

T = TypeVar("T")


READ_UNCOMMITTED = 0
READ_COMMITTED = 1
_TOPIC_RESOURCE = 2
# Later versions have topic ids instead of names. Callers have names, and every broker supports this version.
NAMES_CEILING = 9


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, partition in partitions:
        found.setdefault(topic, []).append(partition)
    return found


# --- topics ---------------------------------------------------------------------------------------------------------


async def at_controller(
    cluster: Cluster, what: str, call: Callable[[BrokerConnection], Awaitable[Any]], deadline: Deadline
) -> Any:
    """Runs ``call`` on a connection to the controller, or to any broker if the controller is unknown."""

    async def attempt() -> Any:
        await cluster.refresh([])
        controller = cluster.controller_id
        connection = await (cluster.connection(controller) if controller >= 0 else cluster.any_connection())
        return await call(connection)

    return await cluster.retrying(what, attempt, deadline)


async def create_topics(cluster: Cluster, topics: Sequence[NewTopic], *, validate_only: bool = False) -> None:
    deadline = cluster.deadline()
    for topic in topics:
        if not isinstance(topic, NewTopic):
            raise TypeError(f"topics: expected a list of NewTopic(name, partitions, replicas), not {topics!r}")
    rows = [
        {
            "name": as_name(topic.name, "topics"),
            "num_partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "assignments": [],
            "configs": [{"name": name, "value": as_setting(value)} for name, value in topic.configs.items()],
        }
        for topic in topics
    ]
    left = {topic.name for topic in topics}

    async def call(connection: BrokerConnection) -> None:
        chosen = [row for row in rows if row["name"] in left]
        reply = await connection.call(
            CREATE_TOPICS, {"topics": chosen, "timeout": max(deadline.left_ms, 1), "validate_only": validate_only}
        )
        left.difference_update(row.name for row in reply.topics if row.error_code is ErrorCode.none)
        for row in reply.topics:
            if row.error_code is not ErrorCode.none:
                raise error_for(row.error_code, f"topic {row.name}: {row.error_message or 'not created'}")

    await at_controller(cluster, "creating topics", call, deadline)
    cluster.forget_topics(topic.name for topic in topics)


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> None:
    deadline = cluster.deadline()
    left = set(as_names(names, "topics"))

    async def call(connection: BrokerConnection) -> None:
        message = {
            "topics": [{"name": name, "topic_id": None} for name in sorted(left)],
            "topic_names": sorted(left),
            "timeout": max(deadline.left_ms, 1),
        }
        reply = await connection.call(DELETE_TOPICS, message)
        left.difference_update(row.name for row in reply.responses if row.error_code is ErrorCode.none)
        for row in reply.responses:
            if row.error_code is not ErrorCode.none:
                raise error_for(
                    row.error_code, f"topic {row.name}: {getattr(row, 'error_message', '') or 'not deleted'}"
                )

    await at_controller(cluster, "deleting topics", call, deadline)
    cluster.forget_topics(names)


async def is_compacted(cluster: Cluster, topic: str, deadline: Deadline) -> bool:
    """Whether the topic's cleanup.policy has compact. Also False if the broker does not report it."""
    wanted = {"resource_type": _TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": ["cleanup.policy"]}

    async def attempt() -> bool:
        connection = await cluster.any_connection()
        if not connection.supports(DESCRIBE_CONFIGS):
            return False
        reply = await connection.call(
            DESCRIBE_CONFIGS, {"resources": [wanted], "include_synonyms": False, "include_documentation": False}
        )
        row = first_row(reply.results, f"settings of topic {topic}")
        if row.error_code is not ErrorCode.none:
            failure = error_for(row.error_code, f"settings of topic {topic}: {row.error_message or ''}")
            if worth_retrying(failure):
                raise failure
            return False  # TOPIC_AUTHORIZATION_FAILED: this client may have the right to read the topic
        return any("compact" in (config.value or "") for config in row.configs if config.name == "cleanup.policy")

    return await cluster.retrying(f"settings of topic {topic}", attempt, deadline)


# --- offsets of partitions ------------------------------------------------------------------------------------------


def _oldest_for(timestamp: int) -> int:
    """The first ListOffsets version with a special timestamp."""
    return {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}.get(timestamp, 1)


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, ListedOffset]:
    deadline = cluster.deadline(timeout_ms)
    found: dict[TopicPartition, ListedOffset] = {}
    for timestamp in wanted.values():
        if timestamp < LATEST_TIERED:
            raise ValueError(f"time {timestamp}: expected ms since 1970, or EARLIEST, LATEST, MAX_TIMESTAMP")

    async def attempt() -> None:
        left = {tp: when for tp, when in wanted.items() if tp not in found}
        await try_list_offsets(cluster, left, isolation_level, found, deadline)

    await cluster.retrying("listing offsets", attempt, deadline)
    return {tp: found[tp] for tp in wanted}


async def try_list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int,
    found: dict[TopicPartition, ListedOffset],
    deadline: Deadline,
) -> None:
    """Sends one request to each leader. Puts all results into ``found``, then raises the first error.

    A partition that a reply lacks is a retriable error."""
    per_leader = await _by_leader(cluster, wanted, deadline)
    calls = [_list_offsets_at(cluster, leader, part, isolation_level, found) for leader, part in per_leader.items()]
    await _all_of(cluster, calls, wanted, found)


async def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[int, dict[TopicPartition, int]]:
    found: dict[int, dict[TopicPartition, int]] = {}
    for tp, leader in (await cluster.leaders(wanted, deadline)).items():
        found.setdefault(leader, {})[tp] = wanted[tp]
    return found


async def _all_of(
    cluster: Cluster,
    calls: Iterable[Awaitable[None]],
    wanted: Iterable[TopicPartition],
    found: Mapping[TopicPartition, Any],
) -> None:
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if outcome is not None]
    missing = [tp for tp in wanted if tp not in found]
    if missing and not failures:
        text = f"a broker's reply lacks {', '.join(map(str, missing))}"
        failures.append(KafkaError(ErrorCode.leader_not_available, text))
    if failures:
        cluster.forget_topics({tp.topic for tp in missing})
        raise failures[0]


async def _list_offsets_at(
    cluster: Cluster,
    leader: int,
    part: Mapping[TopicPartition, int],
    isolation_level: int,
    found: dict[TopicPartition, ListedOffset],
) -> None:
    connection = await cluster.connection(leader)
    needed = max(_oldest_for(when) for when in part.values())
    if connection.version(LIST_OFFSETS) < needed:
        raise error_for(
            ErrorCode.unsupported_version, f"{connection.address} is too old for this lookup (ListOffsets v{needed})"
        )
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "current_leader_epoch": -1,
                    "timestamp": part[TopicPartition(name, index)],
                    "max_num_offsets": 1,
                }
                for index in indexes
            ],
        }
        for name, indexes in by_topic(part).items()
    ]
    reply = await connection.call(
        LIST_OFFSETS,
        {
            "replica_id": -1,
            "isolation_level": isolation_level,
            "topics": topics,
            "timeout": cluster.config.request_timeout_ms,
        },
    )
    rows = [
        (TopicPartition(topic.name, row.partition_index), row) for topic in reply.topics for row in topic.partitions
    ]
    _take_rows(rows, part, found, _listed_offset)


def _listed_offset(row: Any) -> ListedOffset:
    return ListedOffset(row.offset, -1 if row.timestamp is None else row.timestamp, getattr(row, "leader_epoch", -1))


def _take_rows(
    rows: Iterable[tuple[TopicPartition, Any]],
    asked: Container[TopicPartition],
    found: dict[TopicPartition, T],
    made_of: Callable[[Any], T],
) -> None:
    """Puts the rows of requested partitions into ``found``, then raises the first error in the reply."""
    failure: KafkaError | None = None
    for tp, row in rows:
        if tp not in asked:
            continue
        if row.error_code is ErrorCode.none:
            found[tp] = made_of(row)
        else:
            failure = failure or _partition_error(row.error_code, tp)
    if failure is not None:
        raise failure


def _partition_error(code: ErrorCode, tp: TopicPartition) -> KafkaError:
    if code is ErrorCode.unknown_topic_or_partition:
        # The metadata has the partition, so retry; `leaders` raises UnknownTopic if it is deleted.
        return KafkaError(ErrorCode.leader_not_available, f"{tp} is unknown to its leader")
    return error_for(code, str(tp))


async def epoch_ends(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], timeout_ms: int | None = None
) -> dict[TopicPartition, EpochEnd]:
    """Looks up the end offset of a leader epoch in each leader's log (KIP-320)."""
    deadline = cluster.deadline(timeout_ms)
    found: dict[TopicPartition, EpochEnd] = {}

    async def attempt() -> None:
        left = {tp: epoch for tp, epoch in wanted.items() if tp not in found}
        await try_epoch_ends(cluster, left, found, deadline)

    await cluster.retrying("looking up leader epochs", attempt, deadline)
    return {tp: found[tp] for tp in wanted}


async def try_epoch_ends(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, EpochEnd], deadline: Deadline
) -> None:
    """Sends one request to each leader. Puts all results into ``found``, then raises the first error.

    A partition that a reply lacks is a retriable error."""
    per_leader = await _by_leader(cluster, wanted, deadline)
    # The current epochs are read before a connection opens, since the topic's metadata may be removed meanwhile. A
    # request without a current epoch would be answered by a former leader, too.
    current = {tp: cluster.leader_epoch(tp) for tp in wanted}
    calls = [_epoch_ends_at(cluster, leader, part, current, found) for leader, part in per_leader.items()]
    await _all_of(cluster, calls, wanted, found)


async def _epoch_ends_at(
    cluster: Cluster,
    leader: int,
    part: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int],
    found: dict[TopicPartition, EpochEnd],
) -> None:
    connection = await cluster.connection(leader)
    topics = [
        {
            "topic": name,
            "partitions": [
                {
                    "partition": index,
                    # a former leader refuses this epoch
                    "current_leader_epoch": current[TopicPartition(name, index)],
                    "leader_epoch": part[TopicPartition(name, index)],
                }
                for index in indexes
            ],
        }
        for name, indexes in by_topic(part).items()
    ]
    reply = await connection.call(OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": topics})
    rows = [(TopicPartition(topic.topic, row.partition), row) for topic in reply.topics for row in topic.partitions]
    _take_rows(rows, part, found, lambda row: EpochEnd(row.leader_epoch, row.end_offset))


async def divergence(
    cluster: Cluster, tp: TopicPartition, offset: int, leader_epoch: int, timeout_ms: int | None = None
) -> EpochEnd | None:
    """Returns where the leader's log diverges from a log read up to ``offset`` under ``leader_epoch``, if it does."""
    end = (await epoch_ends(cluster, {tp: leader_epoch}, timeout_ms))[tp]
    return end if end.is_before(offset) else None


# --- groups ---------------------------------------------------------------------------------------------------------


async def list_groups(cluster: Cluster, states: Iterable[str], types: Iterable[str]) -> list[GroupListing]:
    deadline = cluster.deadline()
    message = {"states_filter": as_names(states, "states"), "types_filter": as_names(types, "types")}

    async def at(node: Node) -> list[GroupListing]:
        reply = await (await cluster.connection(node.node_id)).call(LIST_GROUPS, message)
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"groups of broker {node.node_id}")
        return [
            GroupListing(
                row.group_id, row.protocol_type, getattr(row, "group_state", ""), getattr(row, "group_type", "")
            )
            for row in reply.groups
        ]

    async def attempt() -> list[GroupListing]:
        await cluster.refresh([])
        parts = await asyncio.gather(*(at(node) for node in cluster.nodes()))
        return sorted({row.group_id: row for part in parts for row in part}.values(), key=lambda row: row.group_id)

    return await cluster.retrying("listing groups", attempt, deadline)


async def describe_group(cluster: Cluster, group_id: str) -> GroupDescription:
    """Describes a group as a KIP-848 group or else as a classic or simple one. Raises GroupIdNotFound."""
    what = f"describing group {group_id}"

    async def call(connection: BrokerConnection) -> GroupDescription:
        node = await cluster.coordinator(group_id)
        if connection.supports(CONSUMER_GROUP_DESCRIBE):
            reply = await connection.call(
                CONSUMER_GROUP_DESCRIBE, {"group_ids": [group_id], "include_authorized_operations": False}
            )
            row = first_row(reply.groups, f"group {group_id}")
            if row.error_code is ErrorCode.none:
                return _described_consumer_group(row, node)
            if row.error_code not in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
                raise error_for(row.error_code, f"group {group_id}")
        reply = await connection.call(DESCRIBE_GROUPS, {"groups": [group_id], "include_authorized_operations": False})
        row = first_row(reply.groups, f"group {group_id}")
        if row.error_code is ErrorCode.group_id_not_found or row.group_state == "Dead":
            raise GroupIdNotFound(f"group {group_id} not found")
        if row.error_code is not ErrorCode.none:
            raise error_for(row.error_code, f"group {group_id}")
        return _described_classic_group(row, node)

    return await cluster.at_coordinator(group_id, what, call, cluster.deadline())


def _described_classic_group(row: Any, node: Node) -> GroupDescription:
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


def _assignment(group_id: str, member: Any) -> tuple[TopicPartition, ...]:
    try:
        return decode_assignment(bytes(member.member_assignment))
    except ValueError as error:
        what = f"group {group_id}: the assignment of member {member.member_id} cannot be read: {error}"
        raise error_for(ErrorCode.inconsistent_group_protocol, what) from error


def _described_consumer_group(row: Any, node: Node) -> GroupDescription:
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


async def list_group_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool,
    member_of: Callable[[], tuple[str | None, int]] = lambda: (None, -1),
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Looks up committed offsets. ``member_of`` returns the KIP-848 member's id and epoch for each attempt."""
    topics = None
    if partitions is not None:
        topics = [
            {"name": name, "partition_indexes": rows} for name, rows in by_topic(as_partitions(partitions)).items()
        ]
        if not topics:
            return {}

    async def call(connection: BrokerConnection) -> dict[TopicPartition, OffsetAndMetadata]:
        member_id, epoch = member_of()
        message = {
            "group_id": group_id,
            "topics": topics,
            "groups": [{"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "topics": topics}],
            "require_stable": require_stable,
        }
        reply = await connection.call(OFFSET_FETCH, message, ceiling=NAMES_CEILING)
        group = first_row(reply.groups, f"group {group_id}") if hasattr(reply, "groups") else reply
        if (code := getattr(group, "error_code", ErrorCode.none)) is not ErrorCode.none:
            raise error_for(code, f"offsets of group {group_id}")
        found: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic in group.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, f"offset of group {group_id} in {tp}")
                if row.committed_offset != NO_OFFSET:
                    epoch = getattr(row, "committed_leader_epoch", -1)
                    found[tp] = OffsetAndMetadata(row.committed_offset, epoch, row.metadata or "")
        return found

    return await cluster.at_coordinator(group_id, f"offsets of group {group_id}", call, cluster.deadline(timeout_ms))


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


def _commit_row(index: int, commit: OffsetAndMetadata) -> dict[str, Any]:
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
        code = first_row(reply.results, f"group {group_id}").error_code
        if code is ErrorCode.non_empty_group:
            raise GroupNotEmpty(f"group {group_id} has live members: stop them first")
        if code is ErrorCode.group_id_not_found:
            raise GroupIdNotFound(f"group {group_id} not found")
        if code is not ErrorCode.none:
            raise error_for(code, f"group {group_id}")

    await cluster.at_coordinator(group_id, f"deleting group {group_id}", call, cluster.deadline())


async def delete_group_offsets(cluster: Cluster, group_id: str, partitions: Iterable[TopicPartition]) -> None:
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in by_topic(as_partitions(partitions)).items()
    ]

    async def call(connection: BrokerConnection) -> None:
        reply = await connection.call(OFFSET_DELETE, {"group_id": group_id, "topics": topics})
        if reply.error_code is not ErrorCode.none:
            raise error_for(reply.error_code, f"group {group_id}")
        for topic in reply.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is ErrorCode.group_subscribed_to_topic:
                    raise error_for(row.error_code, f"group {group_id} has live members that subscribe to {tp.topic}")
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, f"offset of group {group_id} in {tp}")

    await cluster.at_coordinator(group_id, f"deleting offsets of group {group_id}", call, cluster.deadline())


async def describe_topics(
    cluster: Cluster, names: Iterable[str] | None, *, missing_ok: bool = False
) -> dict[str, TopicDescription]:
    wanted = None if names is None else as_names(names, "topics")
    return await cluster.topics(wanted, cluster.deadline(), missing_ok=missing_ok)
