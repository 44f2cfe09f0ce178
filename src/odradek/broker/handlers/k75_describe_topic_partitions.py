"""DescribeTopicPartitions 0: returns one page of partitions, sorted by topic name, and a cursor to the next page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.k03_metadata import ALL_TOPIC_OPERATIONS
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import Topic, check_topic_name
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_topic_partitions.v0.request import DescribeTopicPartitionsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.brokers import ClientReplicas
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)
SORTED_AT_ONCE = 1000


def handle(broker: BrokerServices, context: Context, message: DescribeTopicPartitionsRequest) -> Steps[list[Chunk]]:
    cursor = message.cursor
    named = yield from dict_in_steps((topic.name, None) for topic in message.topics)
    if cursor is not None:
        is_named = not named or cursor.topic_name in named
        if cursor.partition_index < 0 or not is_named:
            return (yield from _all_failed(context, message, ErrorCode.invalid_request))
    left = max(1, min(message.response_partition_limit, broker.config.max_request_partition_size_limit))
    described = elements(context, "topics")
    view = broker.brokers.replicas_for(context)
    next_cursor = None
    hidden: list[str] = []
    for name in (yield from _in_order(named or {topic.name: None for topic in broker.catalog.topics()})):
        if cursor is not None and name < cursor.topic_name:
            continue
        yield None
        if not is_allowed(broker, context, Operation.DESCRIBE, Resource.TOPIC, name):
            hidden.append(name)
            continue
        topic, operations = broker.catalog.topic(name), _operations(broker, context, name)
        if topic is None:
            described.add(_unknown(name) | operations)
            continue
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if left == 0:
            next_cursor = {"topic_name": name, "partition_index": first}
            break
        page = topic.partitions[first : first + left]
        described.add(_described(topic, page, view) | operations)
        left -= len(page)
        if first + len(page) < topic.partition_count:
            next_cursor = {"topic_name": name, "partition_index": first + len(page)}
            break
    for name in hidden if named else ():
        described.add(_failed(name, ErrorCode.topic_authorization_failed))
        yield None
    broker.leftovers.add(named, hidden)
    return reply(context, {"topics": described, "next_cursor": next_cursor})


def _operations(broker: BrokerServices, context: Context, name: str) -> dict[str, int]:
    authorizer = broker.authorizer
    allowed = ALL_TOPIC_OPERATIONS if authorizer is None else authorizer.operations(context, Resource.TOPIC, name)
    return {"topic_authorized_operations": allowed}


def _in_order(names: Iterable[str]) -> Steps[Iterator[str]]:
    """Sorts names in steps: one call for hundreds of thousands of names takes a tenth of a second."""
    unsorted = iter(names)
    runs = []
    while run := sorted(islice(unsorted, SORTED_AT_ONCE)):
        runs.append(run)
        yield None
    return merge(*runs)


def _all_failed(context: Context, message: DescribeTopicPartitionsRequest, code: ErrorCode) -> Steps[list[Chunk]]:
    """Returns a reply with the error in each requested topic, because the reply has no top-level error code."""
    topics = elements(context, "topics")
    for topic in message.topics:
        topics.add(_failed(topic.name, code))
        yield None
    return reply(context, {"topics": topics, "next_cursor": None})


def _failed(name: str, code: ErrorCode) -> dict[str, object]:
    return {"error_code": code, "name": name, "topic_id": None, "is_internal": False, "partitions": []}


def _unknown(name: str) -> dict[str, object]:
    code = ErrorCode.unknown_topic_or_partition
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return _failed(name, code)


def _described(topic: Topic, page: list[PartitionRegistration], view: ClientReplicas | None) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "partitions": [
            {
                "error_code": ErrorCode.none,
                "partition_index": partition.partition_id,
                "leader_id": partition.leader if view is None else view.leader(partition),
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": partition.replicas,
                "isr_nodes": partition.isr,
                "eligible_leader_replicas": partition.elr,
                "last_known_elr": partition.last_known_elr,
                "offline_replicas": () if view is None else view.offline(partition),
            }
            for partition in page
        ],
    }
