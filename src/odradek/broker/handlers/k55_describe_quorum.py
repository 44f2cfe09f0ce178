"""DescribeQuorum 0–2: who keeps the metadata log. One broker does, alone, and is always caught up.

Versions: 1 when a replica last caught up, 2 messages, directory ids and where the controllers listen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


_TOPIC = "__cluster_metadata"


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    asked = [(topic.topic_name, part.partition_index) for topic in message.topics for part in topic.partitions]
    if asked != [(_TOPIC, 0)]:
        rows = [
            {
                "topic_name": topic.topic_name,
                "partitions": [_unknown(part.partition_index) for part in topic.partitions],
            }
            for topic in message.topics
        ]
        return {"error_code": ErrorCode.none, "error_message": "", "topics": rows, "nodes": []}
    end, now_ms = broker.catalog.log_end_offset, broker.now_ms()
    voter = {
        "replica_id": broker.node_id,
        "replica_directory_id": None,
        "log_end_offset": end,
        "last_fetch_timestamp": now_ms,
        "last_caught_up_timestamp": now_ms,
    }
    partition = {
        "partition_index": 0,
        "error_code": ErrorCode.none,
        "error_message": "",
        "leader_id": broker.node_id,
        "leader_epoch": 0,
        "high_watermark": end,
        "current_voters": [voter],
        "observers": [],
    }
    host, port = broker.advertised(context)
    listener = {"name": "PLAINTEXT", "host": host, "port": port}
    return {
        "error_code": ErrorCode.none,
        "error_message": "",
        "topics": [{"topic_name": _TOPIC, "partitions": [partition]}],
        "nodes": [{"node_id": broker.node_id, "listeners": [listener]}],
    }


def _unknown(index: int) -> dict[str, Any]:
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
