"""DescribeTopicPartitions 0: topics in name order, a page of partitions at a time, with a cursor to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.k03_metadata import ALL_TOPIC_OPERATIONS
from odradek.catalog.shard import Partition, Topic, check_topic_name
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    cursor = message.cursor
    names = sorted({topic.name for topic in message.topics} or {topic.name for topic in broker.catalog.topics()})
    if cursor is not None:
        if cursor.partition_index < 0:
            return _all_failed(message, ErrorCode.invalid_request)
        names = [name for name in names if name >= cursor.topic_name]
        if message.topics and cursor.topic_name not in names:
            return _all_failed(message, ErrorCode.invalid_request)
    left = max(1, min(message.response_partition_limit, broker.config.max_request_partition_size_limit))
    described: list[dict[str, Any]] = []
    for name in names:
        topic = broker.catalog.topic(name)
        if topic is None:
            described.append(_unknown(name))
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if left == 0:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": first}}
        page = topic.partitions[first : first + left]
        described.append(_described(topic, page))
        left -= len(page)
        if first + len(page) < topic.partition_count:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": first + len(page)}}
    return {"topics": described, "next_cursor": None}


def _all_failed(message: Any, code: ErrorCode) -> dict[str, Any]:
    """The reply has no code of its own: each topic asked for carries it."""
    return {"topics": [_failed(topic.name, code) for topic in message.topics], "next_cursor": None}


def _failed(name: str, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": None, "is_internal": False, "partitions": []}


def _unknown(name: str) -> dict[str, Any]:
    code = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return _failed(name, code) | {"topic_authorized_operations": ALL_TOPIC_OPERATIONS}


def _described(topic: Topic, page: list[Partition]) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "topic_authorized_operations": ALL_TOPIC_OPERATIONS,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": partition.index,
                "leader_id": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "eligible_leader_replicas": (),
                "last_known_elr": (),
                "offline_replicas": (),
            }
            for partition in page
        ],
    }
