"""OffsetDelete 0: deletes committed offsets of a group."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check, is_allowed
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.pace import PART_RECORDS
from odradek.groups.messages import OffsetDelete

if TYPE_CHECKING:
    from kio.schema.offset_delete.v0.request import OffsetDeleteRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
AT_ONCE = PART_RECORDS
"""The most partitions of one request to the coordinator, which writes their tombstones together."""

Rows = list[tuple[int, ErrorCode]]
RequestedTopic = tuple[str, list[int]]


def handle(broker: BrokerServices, context: Context, message: OffsetDeleteRequest) -> Steps[list[Chunk]]:
    context.must_finish = True
    check(broker, context, Operation.DELETE, Resource.GROUP, message.group_id)
    unknown: dict[str, Rows] = {}
    existing: list[RequestedTopic] = []
    deleted: list[tuple[str, Rows]] = []
    for topic in message.topics:
        known, code = broker.catalog.topic(topic.name), ErrorCode.unknown_topic_or_partition
        if not is_allowed(broker, context, Operation.READ, Resource.TOPIC, topic.name):
            known, code = None, ErrorCode.topic_authorization_failed
        count = 0 if known is None else known.partition_count
        indexes: list[int] = []
        for partition in topic.partitions:
            index = partition.partition_index
            if 0 <= index < count:
                indexes.append(index)
            else:
                unknown.setdefault(topic.name, []).append((index, code))
            yield None
        if indexes:
            existing.append((topic.name, indexes))
            deleted.append((topic.name, []))
    try:
        for first, part in _parts(existing):
            request = OffsetDelete(message.group_id, part)
            group_reply = yield broker.groups.submit(broker.groups.partition_of(message.group_id), request)
            if group_reply.error is not ErrorCode.none:
                return reply(context, {"error_code": group_reply.error, "topics": ()})
            for number, (_, rows) in enumerate(group_reply.topics, first):
                deleted[number][1].extend(rows)
        topics = (yield from _merged(unknown, deleted)) if unknown else deleted
        return (yield from _packed(context, topics))
    finally:
        broker.leftovers.add(existing, unknown, deleted)


def _parts(asked: list[RequestedTopic]) -> Iterator[tuple[int, list[RequestedTopic]]]:
    """Splits a request into parts, at least one. Yields each with the index of its first topic."""
    part: list[RequestedTopic] = []
    first = left = 0
    for number, (name, indexes) in enumerate(asked):
        for at in range(0, len(indexes), AT_ONCE):
            some = indexes[at : at + AT_ONCE]
            if not part or left < len(some):
                if part:
                    yield first, part
                part, first, left = [], number, AT_ONCE
            part.append((name, some))
            left -= len(some)
    yield first, part


def _merged(unknown: dict[str, Rows], deleted: list[tuple[str, Rows]]) -> Steps[list[tuple[str, Rows]]]:
    """Merges the rows of each topic, as Kafka does. Topics with unknown partitions are first."""
    for name, rows in deleted:
        unknown.setdefault(name, []).extend(rows)
        yield None
    return list(unknown.items())


def _packed(context: Context, rows_of_topics: list[tuple[str, Rows]]) -> Steps[list[Chunk]]:
    topics = elements(context, "topics")
    for name, rows in rows_of_topics:
        partitions = elements(context, "topics", "partitions")
        for index, error in rows:
            partitions.add({"partition_index": index, "error_code": error})
            yield None
        topics.add({"name": name, "partitions": partitions})
        yield None
    return reply(context, {"error_code": ErrorCode.none, "topics": topics})
