"""Requests that a client sends before it closes its connection: Produce requests without replies."""

from __future__ import annotations

import time

from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord
from odradek.wire import frames
from support.brokers import Wire


def unacknowledged(topic: str, count: int) -> bytes:
    """``count`` requests with one record each, whose sender wants no reply (acks=0)."""
    records = encode_batch([SimpleRecord(b"", b"x" * 20)], now_ms=int(time.time() * 1000))
    data = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    message = {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": data}
    return b"".join(frames.encode_request(0, 9, number, "last", message) for number in range(count))


def log_end(wire: Wire, topic: str) -> int:
    """The end offset of the topic's only partition."""
    rows = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
    message = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": rows}]}
    return int(wire.call(2, 5, message).topics[0].partitions[0].offset)


def create_topic(wire: Wire, topic: str) -> None:
    row = {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    reply = wire.call(19, 5, {"topics": [row], "timeout": 10_000, "validate_only": False})
    assert reply.topics[0].error_code == 0, reply
