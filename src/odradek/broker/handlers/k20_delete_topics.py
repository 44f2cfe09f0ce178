"""DeleteTopics 1–6: topics, their records and the offsets committed for them.

Versions: 3 says TOPIC_DELETION_DISABLED, 4 flexible, 5 a message, 6 by topic id as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.broker.quotas import Permits
from odradek.catalog.shard import Topic
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


Named = tuple[str | None, UUID | None]


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    asked: Iterable[Named]
    if context.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in message.topics]
    else:
        asked = [(name, None) for name in message.topic_names]
    if not broker.config.delete_topic_enable:
        disabled = ErrorCode.topic_deletion_disabled if context.version >= 3 else ErrorCode.invalid_request
        return {"responses": [_row(named, KafkaError(disabled, "Topic deletion is disabled.")) for named in asked]}
    times = Counter(asked)
    permits = Permits(broker, context, strict=context.version >= 5)
    twice = _named_twice(broker, times)
    error = KafkaError(ErrorCode.invalid_request, "The topic is named by its name and by its id.")
    rows = [_row((topic.name, topic.id), error) for topic in twice]  # type: ignore[arg-type]
    told: set[Named] = {(topic.name, None) for topic in twice} | {(None, topic.id) for topic in twice}  # type: ignore[misc]
    return {"responses": rows + [_delete(broker, permits, named, times[named]) for named in times if named not in told]}


def _named_twice(broker: BrokerServer, asked: Iterable[Named]) -> list[Topic]:
    names = {name for name, topic_id in asked if topic_id is None}
    by_id = [broker.catalog.topic_by_id(topic_id) for name, topic_id in asked if name is None and topic_id is not None]
    return [topic for topic in by_id if topic is not None and topic.name in names]


def _delete(broker: BrokerServer, permits: Permits, named: Named, times: int) -> dict[str, Any]:
    try:
        topic = _find(broker, named, times)
        permits.take(topic.partition_count)
        broker.delete_topic(topic)
    except KafkaError as error:
        return _row(named, error)
    return _row((topic.name, topic.id), None)  # type: ignore[arg-type]


def _find(broker: BrokerServer, named: Named, times: int) -> Topic:
    name, topic_id = named
    fault = ""
    if name is None and topic_id is None:
        fault = "Neither topic name nor id were specified."
    elif name is not None and topic_id is not None:
        fault = "You may not specify both topic name and topic id."
    elif times > 1:
        fault = "Duplicate topic name." if name is not None else "Duplicate topic id."
    if fault:
        raise KafkaError(ErrorCode.invalid_request, fault)
    if name is not None:
        topic = broker.catalog.topic(name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
        return topic
    assert topic_id is not None
    topic = broker.catalog.topic_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    return topic


def _row(named: Named, error: KafkaError | None) -> dict[str, Any]:
    name, topic_id = named
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": error.message if error is not None else None,
    }
