"""The requests of the monitor. None of them creates or changes anything.

FindCoordinator creates the offsets topic where it is missing. So the monitor never sends it: metadata shows whether the
topic exists, and each broker lists the groups that it coordinates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from odradek.client.admin.group_operations import groups_at
from odradek.client.cluster import Cluster, Deadline
from odradek.client.errors import error_for
from odradek.client.model import ListedOffset, Node
from odradek.client.offset_requests import NAMES_CEILING, READ_UNCOMMITTED, try_list_offsets
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import EARLIEST, LATEST, OFFSETS_TOPIC, TopicPartition
from odradek.monitor.group_tracker import ListedState, LogBoundsRow
from odradek.net.connection import BrokerConnection
from odradek.wire.api_keys import OFFSET_FETCH

if TYPE_CHECKING:
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponseGroup

READ_COMMITTED = 1
_GROUPS_PER_REQUEST = 200
_MANY_GROUPS = 8
"""The first version of OffsetFetch with more than one group."""


class BoundsPoll(NamedTuple):
    """The bounds of logs, and the partitions without an answer with the reason."""

    bounds: dict[TopicPartition, LogBoundsRow]
    failed: dict[TopicPartition, str]


class OffsetsTopicPoll(NamedTuple):
    """The offsets topic: for each partition the log start offset, the last stable offset and the high watermark.

    ``exists`` is false if the cluster has no offsets topic: then no group has ever committed.
    """

    exists: bool
    bounds: dict[int, tuple[int, int, int]]
    failed: dict[int, str]


class GroupLookup(NamedTuple):
    """The committed offsets of one group, or the reason why a broker refused them."""

    offsets: dict[TopicPartition, int]
    failed: str = ""


async def poll_bounds(cluster: Cluster, partitions: Iterable[TopicPartition], timeout_ms: int) -> BoundsPoll:
    """Asks the leaders for log start and log end offsets. One lost broker or leader fails only its partitions."""
    wanted = list(partitions)
    if not wanted:
        return BoundsPoll({}, {})
    deadline = cluster.deadline(timeout_ms)
    readable, failed = await _readable(cluster, wanted)
    # A broker answers the requests of a connection in their order. The second one does not wait for the first reply.
    starts, ends = await asyncio.gather(
        _listed(cluster, readable, (EARLIEST, READ_UNCOMMITTED), deadline, failed),
        _listed(cluster, readable, (LATEST, READ_UNCOMMITTED), deadline, failed),
    )
    bounds = {
        tp: LogBoundsRow(min(start.offset, ends[tp].offset), ends[tp].offset)
        for tp, start in starts.items()
        if tp in ends
    }
    return BoundsPoll(bounds, failed)


async def _readable(
    cluster: Cluster, wanted: list[TopicPartition]
) -> tuple[list[TopicPartition], dict[TopicPartition, str]]:
    """Returns the partitions that have a leader, and why the others have no answer."""
    errors = await cluster.refresh({tp.topic for tp in wanted})
    readable, failed = [], {}
    for tp in wanted:
        if (code := errors.get(tp.topic, ErrorCode.none)) is not ErrorCode.none:
            missing = code is ErrorCode.unknown_topic_or_partition
            failed[tp] = "the topic does not exist" if missing else str(error_for(code, f"topic {tp.topic}"))
        elif cluster.leader(tp) < 0:
            failed[tp] = "the partition has no leader"
        else:
            readable.append(tp)
    return readable, failed


async def _listed(
    cluster: Cluster,
    partitions: list[TopicPartition],
    what: tuple[int, int],
    deadline: Deadline,
    failed: dict[TopicPartition, str],
) -> dict[TopicPartition, ListedOffset]:
    """Lists offsets; ``what``: EARLIEST or LATEST, and the isolation level. Adds reasons of failures to ``failed``."""
    listed: dict[TopicPartition, ListedOffset] = {}
    when, level = what
    reason = "a broker gave no answer"
    if partitions:
        try:
            async with asyncio.timeout(max(deadline.left_ms, 1) / 1000):
                await try_list_offsets(cluster, dict.fromkeys(partitions, when), level, listed, deadline)
        except TimeoutError:
            reason = f"no answer within {deadline.limit_ms} ms"
        except OdradekError as error:
            reason = str(error)
    failed |= {tp: reason for tp in partitions if tp not in listed}
    return listed


async def poll_offsets_topic(cluster: Cluster, timeout_ms: int) -> OffsetsTopicPoll:
    """Asks for the bounds of the offsets topic's partitions. Raises KafkaError if the client may not see the topic."""
    code = (await cluster.refresh([OFFSETS_TOPIC])).get(OFFSETS_TOPIC, ErrorCode.none)
    if code is ErrorCode.unknown_topic_or_partition:
        return OffsetsTopicPoll(False, {}, {})
    if code is not ErrorCode.none:
        raise error_for(code, f"topic {OFFSETS_TOPIC}")
    topic = cluster.known_topic(OFFSETS_TOPIC)
    wanted = [TopicPartition(OFFSETS_TOPIC, one.partition) for one in (topic.partitions if topic else ())]
    failed = {tp: "the partition has no leader" for tp in wanted if cluster.leader(tp) < 0}
    led = [tp for tp in wanted if tp not in failed]
    deadline = cluster.deadline(timeout_ms)
    kinds = (EARLIEST, READ_UNCOMMITTED), (LATEST, READ_COMMITTED), (LATEST, READ_UNCOMMITTED)
    starts, stable, ends = await asyncio.gather(*(_listed(cluster, led, kind, deadline, failed) for kind in kinds))
    bounds = {
        tp.partition: (start.offset, stable[tp].offset, max(ends[tp].offset, stable[tp].offset))
        for tp, start in starts.items()
        if tp in stable and tp in ends
    }
    return OffsetsTopicPoll(True, bounds, {tp.partition: reason for tp, reason in failed.items()})


async def list_groups(cluster: Cluster) -> dict[int, dict[str, ListedState]]:
    """Returns the groups that each broker coordinates. Raises KafkaError, BrokerUnreachable, RequestTimedOut."""

    async def at(node: Node) -> tuple[int, dict[str, ListedState]]:
        rows = await groups_at(cluster, node)
        return node.node_id, {row.group_id: ListedState(row.state, row.type, row.protocol_type) for row in rows}

    async def attempt() -> dict[int, dict[str, ListedState]]:
        await cluster.refresh([])
        return dict(await asyncio.gather(*(at(node) for node in cluster.nodes())))

    return await cluster.retry("listing groups", attempt, cluster.deadline())


async def fetch_offsets(cluster: Cluster, groups: Mapping[int, Iterable[str]]) -> dict[str, GroupLookup]:
    """Returns the committed offsets of groups; ``groups`` has those of each coordinator, from ``list_groups``.

    A request has many groups where the broker supports it (OffsetFetch v8).
    """
    lookups: dict[str, GroupLookup] = {}

    async def at(node_id: int, names: list[str]) -> None:
        connection = await cluster.connection(node_id)
        size = _GROUPS_PER_REQUEST if connection.version(OFFSET_FETCH) >= _MANY_GROUPS else 1
        for begin in range(0, len(names), size):
            lookups.update(await _fetched(connection, names[begin : begin + size]))

    await asyncio.gather(*(at(node_id, sorted(names)) for node_id, names in groups.items()))
    return lookups


async def _fetched(connection: BrokerConnection, names: list[str]) -> dict[str, GroupLookup]:
    message = {
        "group_id": names[0],
        "topics": None,
        "groups": [{"group_id": name, "member_id": None, "member_epoch": -1, "topics": None} for name in names],
        "require_stable": False,
    }
    reply = await connection.call(OFFSET_FETCH, message, ceiling=NAMES_CEILING)
    rows = (
        {row.group_id: row for row in reply.groups}
        if hasattr(reply, "groups")
        else {names[0]: cast("OffsetFetchResponseGroup", reply)}
    )
    lookups = {}
    for name, row in rows.items():
        code = getattr(row, "error_code", ErrorCode.none)
        if code is not ErrorCode.none:
            lookups[name] = GroupLookup({}, str(KafkaError(code, f"offsets of group {name}")))
            continue
        lookups[name] = GroupLookup({
            TopicPartition(topic.name, one.partition_index): one.committed_offset
            for topic in row.topics
            for one in topic.partitions
            if one.error_code is ErrorCode.none and one.committed_offset >= 0
        })  # fmt: skip
    return lookups
