"""DeleteTopics 1–6: deletes topics, their records and their committed offsets.

* 3: the error TOPIC_DELETION_DISABLED, until then INVALID_REQUEST.
* 4: flexible.
* 5: an error message for each topic; THROTTLING_QUOTA_EXCEEDED.
* 6: topics by name or id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, cast
from uuid import UUID

from odradek.broker.handlers.authorization import is_allowed, is_allowed_for_cluster, refusal
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.limits.quotas import Permits
from odradek.broker.loop.long_lists import count_in_steps, list_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.catalog.state import DeleteTopic, Topic
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.delete_topics.v6 import request as v6
    from kio.schema.types import TopicName

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

    class DeleteTopicsRequest(v6.DeleteTopicsRequest):
        topic_names: tuple[TopicName, ...]  # until version 5


VERSIONS = (1, 6)
LISTENERS = ("client", "controller")
AT_ONCE = 500
"""The number of topics that are looked up in one step."""

Key = tuple[str | None, UUID | None]


def handle(broker: BrokerServices, context: Context, message: DeleteTopicsRequest) -> Steps[list[Chunk]]:
    asked = yield from list_in_steps(_keys(context.version, message))
    times = yield from count_in_steps(asked)
    try:
        if not broker.config.delete_topic_enable:
            disabled = ErrorCode.topic_deletion_disabled if context.version >= 3 else ErrorCode.invalid_request
            raise KafkaError(disabled, "Topic deletion is disabled.")
        rows = yield from _delete_all(broker, context, times)
    except KafkaError as error:
        rows = elements(context, "responses")
        for key in asked:
            rows.add(_row(key, error))
            yield None
    finally:
        broker.leftovers.add(asked, times)
    return reply(context, {"responses": rows})


def _keys(version: int, message: DeleteTopicsRequest) -> Iterator[Key]:
    if version >= 6:
        return ((topic.name, topic.topic_id) for topic in message.topics)
    return ((name, None) for name in message.topic_names)


def _delete_all(broker: BrokerServices, context: Context, times: Counter[Key]) -> Steps[Elements]:
    """Returns a row for each requested topic. Raises KafkaError if the whole request is refused."""
    permits = Permits(broker.quotas, context, strict=context.version >= 5)
    rows = elements(context, "responses")

    def delete(change: Change) -> Steps[Elements]:
        duplicates = set()
        may_delete_all = is_allowed_for_cluster(broker, context, Operation.DELETE, logs_denial=False)
        asker = None if may_delete_all else context
        for topic in (yield from _duplicate_topics(broker, times)):
            if asker is not None and not is_allowed(
                broker, asker, Operation.DELETE, Resource.TOPIC, topic.name, logs_denial=False
            ):
                continue  # the reply must not say that name and id belong together
            error = KafkaError(ErrorCode.invalid_request, "The request has the topic both by name and by id.")
            rows.add(_row(_name_and_id(topic), error))
            duplicates |= {(topic.name, None), (None, topic.id)}
        for key, count in times.items():
            if key in duplicates:
                continue
            try:
                topic = _find(broker, key, count, asker)
                permits.take(topic.partition_count)
                yield from change.add(DeleteTopic(topic.id))
            except ChangeTooLarge:
                raise
            except KafkaError as refused:
                rows.add(_row(refused.key if isinstance(refused, _RefusedById) else key, refused))
            else:
                rows.add(_row(_name_and_id(topic), None))
            yield None
        return rows

    return (yield from value_of(broker.controller.write(delete, context)))


def _name_and_id(topic: Topic) -> Key:
    return topic.name, cast(UUID, topic.id)


def _duplicate_topics(broker: BrokerServices, asked: Mapping[Key, int]) -> Steps[list[Topic]]:
    """Returns the topics that the request has both by name and by id."""
    topics: list[Topic] = []
    for number, (name, topic_id) in enumerate(asked):
        if name is None and topic_id is not None:
            topic = broker.catalog.topic_by_id(topic_id)
            if topic is not None and (topic.name, None) in asked:
                topics.append(topic)
        if not number % AT_ONCE:
            yield None
    return topics


class _RefusedById(KafkaError):
    """A topic that the client has named by its id may not be deleted. ``key`` has its name if it may be described."""

    def __init__(self, name: str | None, topic_id: UUID) -> None:
        error = refusal(Resource.TOPIC)
        super().__init__(error.code, error.message)
        self.key: Key = name, topic_id


def _find(broker: BrokerServices, key: Key, times: int, asker: Context | None) -> Topic:
    """Returns a topic of the request. ``asker``: a client that needs permissions for each topic. Raises KafkaError."""
    name, topic_id = key
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
        may_describe, may_delete = _rights(broker, asker, name)
        if not may_describe:
            raise refusal(Resource.TOPIC)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
        if not may_delete:
            raise refusal(Resource.TOPIC)
        return topic
    assert topic_id is not None
    topic = broker.catalog.topic_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_id, "This server does not host this topic ID.")
    may_describe, may_delete = _rights(broker, asker, topic.name)
    if not may_delete:
        raise _RefusedById(topic.name if may_describe else None, topic_id)
    return topic


def _rights(broker: BrokerServices, asker: Context | None, name: str) -> tuple[bool, bool]:
    """Returns whether the client may describe and delete a topic. As in Kafka, both are asked about in any case."""
    if asker is None:
        return True, True
    return (
        is_allowed(broker, asker, Operation.DESCRIBE, Resource.TOPIC, name),
        is_allowed(broker, asker, Operation.DELETE, Resource.TOPIC, name),
    )


def _row(key: Key, error: KafkaError | None) -> dict[str, object]:
    name, topic_id = key
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": error.message if error is not None else None,
    }
