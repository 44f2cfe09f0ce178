"""Metadata 0–13: brokers, topics, who leads.

Versions: 1 null topics mean all and the controller is named, 2 cluster id, 4 allow_auto_topic_creation, 5 offline
replicas, 7 leader epochs, 8–10 authorised operations, 9 flexible, 10 topic ids, 12 topics asked for by id,
13 a code for the whole reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.catalog.shard import Topic, check_topic_name
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


ALL_TOPIC_OPERATIONS = 0b110111111000  # Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs
ALL_CLUSTER_OPERATIONS = 0b1111110100000
NOT_ASKED = -(1 << 31)


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    host, port = broker.advertised(context)
    by_id = context.version >= 10
    operations = ALL_TOPIC_OPERATIONS if getattr(message, "include_topic_authorized_operations", False) else NOT_ASKED
    asked = message.topics
    if (
        by_id
        and context.version < 12
        and any(topic.name is None or topic.topic_id is not None for topic in asked or ())
    ):
        return _refused(asked, ErrorCode.invalid_request)
    if by_id and any(topic.name is None and topic.topic_id is None for topic in asked or ()):
        return _refused(asked, ErrorCode.unknown_server_error)
    if asked is None or (context.version == 0 and not asked):
        topics = [_described(broker, topic, operations) for topic in broker.catalog.topics()]
    else:
        auto = getattr(message, "allow_auto_topic_creation", True)
        once = {(topic.name, getattr(topic, "topic_id", None)): topic for topic in asked}.values()
        topics = [_answer(broker, topic, auto, operations, by_id) for topic in once]
    asked_cluster = getattr(message, "include_cluster_authorized_operations", False)
    return {
        "brokers": [{"node_id": broker.node_id, "host": host, "port": port, "rack": broker.config.broker_rack}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": ALL_CLUSTER_OPERATIONS if asked_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


def _answer(broker: BrokerServer, asked: Any, auto: bool, operations: int, by_id: bool) -> dict[str, Any]:
    name, topic_id = asked.name, getattr(asked, "topic_id", None) if by_id else None
    if topic_id is not None or name is None:
        topic = broker.catalog.topic_by_id(topic_id) if topic_id is not None else None
        if topic is None:
            return _failed(None, topic_id, ErrorCode.unknown_topic_id)
        return _described(broker, topic, operations)
    topic = broker.catalog.topic(name)
    if topic is None:
        try:
            check_topic_name(name)
            topic = broker.auto_create(name) if auto else None
        except KafkaError as error:
            return _failed(name, None, error.code)
        if topic is None:
            return _failed(name, None, ErrorCode.unknown_topic_or_partition)
    return _described(broker, topic, operations)


def _refused(asked: Any, code: ErrorCode) -> dict[str, Any]:
    """A request that cannot be meant is refused for all its topics, and nothing else is told.

    10 and 11 have the field for a topic's id, but only 12 lets it, or a null name, be asked for.
    """
    return {
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": [_failed(topic.name or "", topic.topic_id, code) for topic in asked],
        "cluster_authorized_operations": NOT_ASKED,
        "error_code": code,
    }


def _failed(name: str | None, topic_id: UUID | None, code: ErrorCode) -> dict[str, Any]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _described(broker: BrokerServer, topic: Topic, operations: int) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "topic_authorized_operations": operations,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": partition.index,
                "leader_id": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "offline_replicas": (),
            }
            for partition in topic.partitions
        ],
    }
