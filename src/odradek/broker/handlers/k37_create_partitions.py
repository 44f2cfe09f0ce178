"""CreatePartitions 0–3: more partitions for a topic. 2 is flexible, 3 may say THROTTLING_QUOTA_EXCEEDED."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from odradek.broker.quotas import Permits
from odradek.catalog.shard import CreatePartitions
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    times = Counter(topic.name for topic in message.topics)
    permits = Permits(broker, context, strict=context.version >= 3)
    results = []
    for topic in message.topics:
        if times[topic.name] > 1:
            continue
        results.append(_row(topic.name, _create(broker, permits, topic, message.validate_only)))
    twice = KafkaError(ErrorCode.invalid_request, "Duplicate topic name.")
    return {"results": results + [_row(name, twice) for name, count in times.items() if count > 1]}


def _create(broker: BrokerServer, permits: Permits, topic: Any, validate_only: bool) -> KafkaError | None:
    assigned = topic.assignments
    request = CreatePartitions(
        topic.name, topic.count, None if assigned is None else tuple(tuple(row.broker_ids) for row in assigned)
    )
    known = broker.catalog.topic(topic.name)
    try:
        permits.take(max(topic.count - known.partition_count, 0) if known is not None else 0)
        broker.create_partitions(request, validate_only=validate_only)
    except KafkaError as error:
        return error
    return None


def _row(name: str, error: KafkaError | None) -> dict[str, Any]:
    return {
        "name": name,
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": (error.message or None) if error is not None else None,
    }
