"""DescribeQuorum 0–2: returns the voters of the metadata log, and at a controller its observers.

This node is the only voter and always caught up.

* 1: the time at which a replica last caught up.
* 2: error messages, directory ids, and the listeners of the controllers.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode
from odradek.core.ids import METADATA_TOPIC

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest

    from odradek.broker.handlers.api import BrokerServices, Context, ControllerServices, NodeServices
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
LISTENERS = ("client", "controller")
LISTENER = "PLAINTEXT"
"""The listener of the quorum's nodes. Apache Kafka has a separate listener for them."""


def handle(
    broker: BrokerServices, context: Context, message: DescribeQuorumRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    return _described(broker, context, message, [], LISTENER)


def handle_at_controller(
    controller: ControllerServices, context: Context, message: DescribeQuorumRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    """Answers with the observers that have fetched in the last minutes."""
    present = controller.role.registered_brokers.observer_reads.present()
    observers: list[dict[str, object]] = [
        {
            "replica_id": key.node_id,
            "replica_directory_id": key.directory,
            "log_end_offset": state.end_offset,
            "last_fetch_timestamp": state.fetched_ms,
            "last_caught_up_timestamp": state.caught_up_ms,
        }
        for key, state in present.items()
    ]
    own = context.connection.listener or controller.listeners[0]
    return _described(controller, context, message, observers, own.name)


def _described(
    broker: NodeServices,
    context: Context,
    message: DescribeQuorumRequest,
    observers: list[dict[str, object]],
    listener_name: str,
) -> dict[str, object] | Steps[list[Chunk]]:
    check_cluster(broker, context, Operation.DESCRIBE)
    each = ((topic.topic_name, part.partition_index) for topic in message.topics for part in topic.partitions)
    asked = list(islice(each, 2))
    if asked != [(METADATA_TOPIC, 0)]:
        return _all_unknown(context, message)
    quorum = broker.quorum
    now_ms = broker.now_ms()
    voter = {
        "replica_id": broker.node_id,
        "replica_directory_id": None,
        "log_end_offset": quorum.committed_offset,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": quorum.leader,
        "leader_epoch": quorum.epoch,
        "high_watermark": quorum.committed_offset,
        "current_voters": [voter],
        "observers": observers,
    }
    host, port = broker.advertised_address(context)
    listener = {"name": listener_name, "host": host, "port": port}
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}],
        "nodes": [{"node_id": broker.node_id, "listeners": [listener]}],
    }


def _all_unknown(context: Context, message: DescribeQuorumRequest) -> Steps[list[Chunk]]:
    topics = elements(context, "topics")
    for topic in message.topics:
        partitions = elements(context, "topics", "partitions")
        for part in topic.partitions:
            partitions.add(_unknown(part.partition_index))
            yield None
        topics.add({"topic_name": topic.topic_name, "partitions": partitions})
        yield None
    return reply(context, {"error_code": ErrorCode.none, "error_message": "", "topics": topics, "nodes": ()})


def _unknown(index: int) -> dict[str, object]:
    return {
        "partition_index": index,
        "error_code": ErrorCode.unknown_topic_or_partition,
        "error_message": "This server does not host this topic-partition.",
        "leader_id": 0,
        "leader_epoch": 0,
        "high_watermark": 0,
        "current_voters": [],
        "observers": [],
    }
