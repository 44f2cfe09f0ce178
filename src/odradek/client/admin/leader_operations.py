"""The admin requests for leaders and replicas: elections, and the replicas that stay eligible (KIP-460, KIP-966)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from odradek.client.admin.topic_operations import at_controller
from odradek.client.cluster import Cluster, worth_retrying
from odradek.client.errors import UnsupportedVersion, error_for
from odradek.client.model import PartitionDescription, TopicDescription
from odradek.client.offset_requests import by_topic
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.wire.api_keys import DESCRIBE_TOPIC_PARTITIONS, ELECT_LEADERS

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.response import DescribeTopicPartitionsResponsePartition

    from odradek.net.connection import BrokerConnection

KINDS = {"preferred": 0, "unclean": 1}
_WITH_KINDS = 1
"""The first version of ElectLeaders with both kinds of elections; before, all are of preferred leaders."""
PAGE = 2000


async def elect_leaders(
    cluster: Cluster, kind: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, KafkaError | None]:
    """Elects leaders. Raises ValueError for an unknown kind, UnsupportedVersion."""
    if kind not in KINDS:
        raise ValueError(f"kind {kind!r}: expected {', '.join(KINDS)}")
    left = None if partitions is None else dict.fromkeys(TopicPartition(*one) for one in partitions)
    deadline = cluster.deadline()
    found: dict[TopicPartition, KafkaError | None] = {}

    async def call(connection: BrokerConnection) -> None:
        if KINDS[kind] and not connection.supports(ELECT_LEADERS, _WITH_KINDS):
            raise UnsupportedVersion(f"{connection.address} elects only preferred leaders")
        rows = None
        if left is not None:
            rows = [{"topic": name, "partitions": indexes} for name, indexes in by_topic(left).items()]
        message = {"election_type": KINDS[kind], "topic_partitions": rows, "timeout": max(deadline.left_ms, 1)}
        reply = await connection.call(ELECT_LEADERS, message)
        retriable: KafkaError | None = None
        for topic in reply.replica_election_results:
            for row in topic.partition_result:
                tp = TopicPartition(topic.topic, row.partition_id)
                error = _error(row.error_code, f"{tp}: {row.error_message or 'no leader was elected'}")
                if error is not None and error.code not in _RESULTS and worth_retrying(error):
                    retriable = retriable or error
                    continue
                found[tp] = error
                if left is not None:
                    left.pop(tp, None)
        whole = getattr(reply, "error_code", ErrorCode.none)
        if whole is not ErrorCode.none and not found:
            raise error_for(whole, "no leader was elected")
        if retriable is not None:
            raise retriable

    if left == {}:
        return {}
    await at_controller(cluster, f"electing {kind} leaders", call, deadline)
    cluster.forget_topics({tp.topic for tp in found})
    return found


_RESULTS = frozenset({
    ErrorCode.election_not_needed, ErrorCode.preferred_leader_not_available, ErrorCode.eligible_leaders_not_available,
    ErrorCode.unknown_topic_or_partition,
})  # fmt: skip
"""What an election can lead to. Such an answer is no reason to ask again, although clients may retry some of these
codes in other replies."""


def _error(code: ErrorCode, text: str) -> KafkaError | None:
    return None if code is ErrorCode.none else error_for(code, text)


async def with_eligible(cluster: Cluster, topics: Mapping[str, TopicDescription]) -> dict[str, TopicDescription]:
    """Returns the topics with the eligible leader replicas of their partitions, None from a broker that does not know
    them. The rest of each partition is of the same moment as these."""
    left = dict.fromkeys(sorted(topics))
    found: dict[str, list[PartitionDescription]] = {name: [] for name in left}

    async def attempt() -> None:
        connection = await cluster.any_connection()
        if not connection.supports(DESCRIBE_TOPIC_PARTITIONS):
            left.clear()
            return
        while left:
            first = next(iter(left))
            cursor = {"topic_name": first, "partition_index": len(found[first])} if found[first] else None
            asked = {"topics": [{"name": name} for name in left], "response_partition_limit": PAGE, "cursor": cursor}
            reply = await connection.call(DESCRIBE_TOPIC_PARTITIONS, asked)
            for topic in reply.topics:
                if topic.error_code is not ErrorCode.none:
                    raise error_for(topic.error_code, f"topic {topic.name}")
            for topic in reply.topics:
                found[topic.name or ""] += map(_partition, topic.partitions)
            following = reply.next_cursor.topic_name if reply.next_cursor is not None else None
            for name in [name for name in left if following is None or name < following]:
                del left[name]

    if left:
        await cluster.retry("describing replicas", attempt, cluster.deadline())
    return {
        name: replace(topic, partitions=tuple(found[name])) if found[name] else topic for name, topic in topics.items()
    }


def _partition(row: DescribeTopicPartitionsResponsePartition) -> PartitionDescription:
    return PartitionDescription(
        row.partition_index,
        row.leader_id,
        row.leader_epoch,
        row.replica_nodes,
        row.isr_nodes,
        row.offline_replicas,
        row.eligible_leader_replicas or (),
        row.last_known_elr or (),
    )
