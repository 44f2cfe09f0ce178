"""CreateTopics 2–7: topics with settings and, if wished, hand-made assignments.

Versions: 1 validate_only, 4 defaults for −1, 5 flexible and what was made (settings, counts), 7 topic ids.
The reply comes when the topic exists: there is no controller to wait for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from odradek.broker.config import describe_topic
from odradek.broker.quotas import Permits
from odradek.core.errors import ConfigError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    asked = Counter(topic.name for topic in message.topics)
    refused = [
        _failed(name, KafkaError(ErrorCode.invalid_request, "Duplicate topic name."))
        for name, times in asked.items()
        if times > 1
    ]
    permits = Permits(broker, context, strict=context.version >= 6)
    with broker.catalog.in_one_sync():
        created = [
            _create(broker, permits, topic, message.validate_only) for topic in message.topics if asked[topic.name] == 1
        ]
    return {"topics": created + refused}


def _create(broker: BrokerServer, permits: Permits, topic: Any, validate_only: bool) -> dict[str, Any]:
    configs = {config.name: config.value for config in topic.configs}
    try:
        assignments = _assignments(topic)
        count = len(assignments) or topic.num_partitions
        permits.take(broker.config.num_partitions if count == -1 else max(count, 0))
        made = broker.create_topic(
            topic.name,
            partition_count=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments=assignments,
            configs=configs,
            validate_only=validate_only,
        )
    except KafkaError as error:
        return _failed(topic.name, error)
    except ConfigError as error:
        return _failed(topic.name, KafkaError(ErrorCode.invalid_config, str(error)))
    count, factor = topic.num_partitions, topic.replication_factor
    if assignments:
        count, factor = len(assignments), len(assignments[0])
    rows = describe_topic(broker.config, {name: value for name, value in configs.items() if value is not None})
    return {
        "name": topic.name,
        "topic_id": made.id if made is not None else broker.new_uuid(),
        "error_code": ErrorCode.none,
        "error_message": None,
        "num_partitions": broker.config.num_partitions if count == -1 else count,
        "replication_factor": broker.config.default_replication_factor if factor == -1 else factor,
        "configs": [
            {
                "name": row.key.name,
                "value": row.value,
                "read_only": row.read_only,
                "config_source": row.source,
                "is_sensitive": row.key.sensitive,
            }
            for row in sorted(rows, key=lambda row: row.key.name)
        ],
    }


def _assignments(topic: Any) -> dict[int, tuple[int, ...]]:
    """Raises KafkaError where counts contradict them, or a partition is named twice."""
    if not topic.assignments:
        return {}
    manual = "A manual partition assignment was specified, but"
    if topic.replication_factor != -1:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} replication factor was not set to -1.")
    if topic.num_partitions != -1:
        raise KafkaError(ErrorCode.invalid_request, f"{manual} numPartitions was not set to -1.")
    assigned: dict[int, tuple[int, ...]] = {}
    for row in topic.assignments:
        if row.partition_index in assigned:
            raise KafkaError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {row.partition_index}",
            )
        assigned[row.partition_index] = tuple(row.broker_ids)
    return assigned


def _failed(name: str, error: KafkaError) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error.code,
        "error_message": error.message or None,
        "configs": [],
    }
