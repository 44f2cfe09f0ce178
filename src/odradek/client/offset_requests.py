"""The requests for offsets: of partitions, of leader epochs, of groups. One request per broker, with retries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar, cast

from odradek.client.arguments import as_partitions
from odradek.client.cluster import Cluster, Deadline
from odradek.client.errors import error_for, first_row, shown_group
from odradek.client.model import EpochEnd, ListedOffset
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EARLIEST_LOCAL, LATEST_TIERED, MAX_TIMESTAMP, OffsetAndMetadata, TopicPartition
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import LIST_OFFSETS, OFFSET_FETCH, OFFSET_FOR_LEADER_EPOCH

if TYPE_CHECKING:
    from kio.schema.list_offsets.v11.response import ListOffsetsPartitionResponse
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponseGroup
    from kio.schema.offset_for_leader_epoch.v4.response import EpochEndOffset

T = TypeVar("T")
R = TypeVar("R", "ListOffsetsPartitionResponse", "EpochEndOffset")

READ_UNCOMMITTED = 0
# Later versions of OffsetCommit and OffsetFetch have topic ids instead of names. Callers have names, so the
# requests have this version or, on an older broker, an earlier one.
NAMES_CEILING = 9


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    partitions_by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        partitions_by_topic.setdefault(topic, []).append(partition)
    return partitions_by_topic


def _oldest_for(timestamp: int) -> int:
    """Returns the first version of ListOffsets that accepts a timestamp, which may be a special one."""
    return {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}.get(timestamp, 1)


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
    timeout_ms: int | None = None,
) -> dict[TopicPartition, ListedOffset]:
    deadline = cluster.deadline(timeout_ms)
    listed: dict[TopicPartition, ListedOffset] = {}
    for timestamp in wanted.values():
        if timestamp < LATEST_TIERED:
            raise ValueError(f"time {timestamp}: expected ms since 1970, or EARLIEST, LATEST, MAX_TIMESTAMP")

    async def attempt() -> None:
        left = {tp: when for tp, when in wanted.items() if tp not in listed}
        await try_list_offsets(cluster, left, isolation_level, listed, deadline)

    await cluster.retry("listing offsets", attempt, deadline)
    return {tp: listed[tp] for tp in wanted}


async def try_list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation_level: int,
    listed: dict[TopicPartition, ListedOffset],
    deadline: Deadline,
) -> None:
    """Sends one request to each leader. Puts all results into ``listed``, then raises the first error.

    A partition that a reply lacks is a retriable error."""
    per_leader = await _by_leader(cluster, wanted, deadline)
    calls = [_list_offsets_at(cluster, leader, part, isolation_level, listed) for leader, part in per_leader.items()]
    await _all_of(cluster, calls, wanted, listed)


async def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], deadline: Deadline
) -> dict[int, dict[TopicPartition, int]]:
    wanted_by_leader: dict[int, dict[TopicPartition, int]] = {}
    for tp, leader in (await cluster.leaders(wanted, deadline)).items():
        wanted_by_leader.setdefault(leader, {})[tp] = wanted[tp]
    return wanted_by_leader


async def _all_of(
    cluster: Cluster,
    calls: Iterable[Awaitable[None]],
    wanted: Iterable[TopicPartition],
    received: Mapping[TopicPartition, object],
) -> None:
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    failures = [outcome for outcome in outcomes if outcome is not None]
    missing = [tp for tp in wanted if tp not in received]
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
    listed: dict[TopicPartition, ListedOffset],
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
    _take_rows(rows, part, listed, _listed_offset)


def _listed_offset(row: ListOffsetsPartitionResponse) -> ListedOffset:
    return ListedOffset(row.offset, -1 if row.timestamp is None else row.timestamp, getattr(row, "leader_epoch", -1))


def _take_rows(
    rows: Iterable[tuple[TopicPartition, R]],
    asked: Container[TopicPartition],
    results: dict[TopicPartition, T],
    made_of: Callable[[R], T],
) -> None:
    """Puts the rows of requested partitions into ``results``, then raises the first error in the reply."""
    failure: KafkaError | None = None
    for tp, row in rows:
        if tp not in asked:
            continue
        if row.error_code is ErrorCode.none:
            results[tp] = made_of(row)
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
    """Looks up, for each partition, where the given leader epoch ends in the leader's log (KIP-320)."""
    deadline = cluster.deadline(timeout_ms)
    ends: dict[TopicPartition, EpochEnd] = {}

    async def attempt() -> None:
        left = {tp: epoch for tp, epoch in wanted.items() if tp not in ends}
        await try_epoch_ends(cluster, left, ends, deadline)

    await cluster.retry("looking up leader epochs", attempt, deadline)
    return {tp: ends[tp] for tp in wanted}


async def try_epoch_ends(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], ends: dict[TopicPartition, EpochEnd], deadline: Deadline
) -> None:
    """Sends one request to each leader. Puts all results into ``ends``, then raises the first error.

    A partition that a reply lacks is a retriable error."""
    per_leader = await _by_leader(cluster, wanted, deadline)
    # The current epochs are read before a connection opens, since the topic's metadata may be removed meanwhile. A
    # former leader would respond to a request without a current epoch, too.
    current = {tp: cluster.leader_epoch(tp) for tp in wanted}
    calls = [_epoch_ends_at(cluster, leader, part, current, ends) for leader, part in per_leader.items()]
    await _all_of(cluster, calls, wanted, ends)


async def _epoch_ends_at(
    cluster: Cluster,
    leader: int,
    part: Mapping[TopicPartition, int],
    current: Mapping[TopicPartition, int],
    ends: dict[TopicPartition, EpochEnd],
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
    _take_rows(rows, part, ends, lambda row: EpochEnd(row.leader_epoch, row.end_offset))


async def divergence(
    cluster: Cluster, tp: TopicPartition, offset: int, leader_epoch: int, timeout_ms: int | None = None
) -> EpochEnd | None:
    """Checks whether the leader's log has all records below ``offset`` that were read under ``leader_epoch``.

    Returns None if the log has them or if the leader does not know the epoch. Otherwise returns the end of
    ``leader_epoch`` in the leader's log."""
    end = (await epoch_ends(cluster, {tp: leader_epoch}, timeout_ms))[tp]
    return end if end.is_before(offset) else None


async def list_group_offsets(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None,
    *,
    require_stable: bool,
    member_of: Callable[[], tuple[str | None, int]] = lambda: (None, -1),
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Looks up committed offsets; ``partitions`` None: all of the group. Leaves out partitions without one.

    ``member_of`` returns the KIP-848 member's id and epoch for each attempt."""
    commits = await group_commits(
        cluster, group_id, partitions, require_stable=require_stable, member_of=member_of, timeout_ms=timeout_ms
    )
    return {tp: one for tp, one in commits.items() if one is not None}


async def group_commits(
    cluster: Cluster,
    group_id: str,
    partitions: Iterable[TopicPartition] | None = None,
    *,
    require_stable: bool = False,
    member_of: Callable[[], tuple[str | None, int]] = lambda: (None, -1),
    timeout_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Does the same as ``list_group_offsets``, with None for a partition whose committed offset is below 0.

    If ``partitions`` are given, those without a commit are None, too."""
    topics = None
    if partitions is not None:
        topics = [
            {"name": name, "partition_indexes": rows} for name, rows in by_topic(as_partitions(partitions)).items()
        ]
        if not topics:
            return {}

    async def call(connection: BrokerConnection) -> dict[TopicPartition, OffsetAndMetadata | None]:
        member_id, epoch = member_of()
        message = {
            "group_id": group_id,
            "topics": topics,
            "groups": [{"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "topics": topics}],
            "require_stable": require_stable,
        }
        reply = await connection.call(OFFSET_FETCH, message, ceiling=NAMES_CEILING)
        group = (
            first_row(reply.groups, shown_group(group_id))
            if hasattr(reply, "groups")
            else cast("OffsetFetchResponseGroup", reply)
        )
        if (code := getattr(group, "error_code", ErrorCode.none)) is not ErrorCode.none:
            raise error_for(code, f"offsets of {shown_group(group_id)}")
        commits: dict[TopicPartition, OffsetAndMetadata | None] = {}
        for topic in group.topics:
            for row in topic.partitions:
                tp = TopicPartition(topic.name, row.partition_index)
                if row.error_code is not ErrorCode.none:
                    raise error_for(row.error_code, f"offset of group {group_id} in {tp}")
                commits[tp] = None
                # Kafka's clients and tools read any negative offset as no commit; kafkajs commits -2.
                if row.committed_offset >= 0:
                    epoch = getattr(row, "committed_leader_epoch", -1)
                    commits[tp] = OffsetAndMetadata(row.committed_offset, epoch, row.metadata or "")
        return commits

    return await cluster.at_coordinator(group_id, f"offsets of group {group_id}", call, cluster.deadline(timeout_ms))
