"""Metadata 0–13: returns brokers, topics and the leaders of partitions.

* 1: null topics mean all topics; the controller.
* 2: cluster id.
* 4: ``allow_auto_topic_creation``.
* 5: offline replicas.
* 7: leader epochs.
* 8: authorised operations; those of the cluster only up to version 10.
* 9: flexible.
* 10: topic ids.
* 12: requests by topic id.
* 13: an error code for the whole reply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.handlers.authorization import is_allowed, is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.long_lists import list_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import Topic, check_topic_name
from odradek.core.access.acl import CLUSTER_NAME, Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import INTERNAL_TOPICS, NO_NODE

if TYPE_CHECKING:
    from kio.schema.metadata.v13 import request as v13
    from kio.schema.metadata.v13.request import MetadataRequestTopic

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.brokers import ClientReplicas
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

    class MetadataRequest(v13.MetadataRequest):
        include_cluster_authorized_operations: bool  # versions 8 to 10


VERSIONS = (0, 13)
IS_FREQUENT = True
ALL_TOPIC_OPERATIONS = 0b110111111000  # Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs
ALL_CLUSTER_OPERATIONS = 0b1111110100000
NOT_ASKED = -(1 << 31)
LISTS_ALL_REPLICAS, KNOWS_LISTENER_NOT_FOUND = 1, 6
"""The first version of each."""
TOPICS_AT_ONCE, PARTITIONS_AT_ONCE = 100, 1000
"""The most topics and partitions of a reply that is made in one step."""

TopicKey = tuple[str | None, UUID | None]
"""A topic by its name or its id."""


def handle(
    broker: BrokerServices, context: Context, message: MetadataRequest
) -> dict[str, object] | Steps[dict[str, object] | list[Chunk]]:
    by_id = context.version >= 10
    asked = message.topics
    if asked is not None and len(asked) > TOPICS_AT_ONCE:
        return _reply_to_many(broker, context, message, asked)
    if (
        by_id
        and context.version < 12
        and any(topic.name is None or topic.topic_id is not None for topic in asked or ())
    ):
        return _error_reply(_error_rows(asked or (), ErrorCode.invalid_request), ErrorCode.invalid_request)
    if by_id and any(topic.name is None and topic.topic_id is None for topic in asked or ()):
        return _error_reply(_error_rows(asked or (), ErrorCode.unknown_server_error), ErrorCode.unknown_server_error)
    wants_all = asked is None or (context.version == 0 and not asked)
    wanted: list[TopicKey]
    if wants_all:
        wanted = [(topic.name, None) for topic in broker.catalog.topics()]
    else:
        wanted = list(dict.fromkeys(_key(topic, by_id) for topic in asked or ()))
    if broker.authorizer is not None or len(wanted) > TOPICS_AT_ONCE or not _is_small(broker, wanted):
        return _reply_in_steps(broker, context, message, wanted, wants_all=wants_all)
    operations = _topic_operations(context, message)
    view = broker.brokers.replicas_for(context)
    topics = [
        _topic_row(topic, operations, _partition_rows(topic.partitions, view, context.version))
        for key in wanted
        if (topic := _find(broker, key)) is not None
    ]
    return metadata_reply(broker, context, message, topics)


def _reply_to_many(
    broker: BrokerServices, context: Context, message: MetadataRequest, asked: Iterable[MetadataRequestTopic]
) -> Steps[dict[str, object] | list[Chunk]]:
    """Serves a request for more than ``TOPICS_AT_ONCE`` topics."""
    by_id = context.version >= 10
    wanted: dict[TopicKey, None] = {}
    fault = ErrorCode.none
    for number, topic in enumerate(asked):
        if by_id and topic.name is None and topic.topic_id is None:
            fault = fault or ErrorCode.unknown_server_error
        if by_id and context.version < 12 and (topic.name is None or topic.topic_id is not None):
            fault = ErrorCode.invalid_request
        wanted[_key(topic, by_id)] = None
        if not number % TOPICS_AT_ONCE:
            yield None
    try:
        if fault:
            topics = elements(context, "topics")
            for topic in asked:
                topics.add(_error_row(topic.name or "", topic.topic_id, fault))
                yield None
            return reply(context, _error_reply(topics, fault))
        return (yield from _reply_in_steps(broker, context, message, wanted, wants_all=False))
    finally:
        broker.leftovers.add(wanted)


def _topic_operations(context: Context, message: MetadataRequest) -> int:
    is_asked = context.version >= 8 and message.include_topic_authorized_operations
    return ALL_TOPIC_OPERATIONS if is_asked else NOT_ASKED


def _key(asked: MetadataRequestTopic, by_id: bool) -> TopicKey:
    return asked.name, asked.topic_id if by_id else None


def _is_small(broker: BrokerServices, wanted: list[TopicKey]) -> bool:
    """Returns whether one step can describe the topics: all exist, and they have few partitions."""
    partitions = 0
    for key in wanted:
        topic = _find(broker, key)
        if topic is None:
            return False
        partitions += topic.partition_count
    return partitions <= PARTITIONS_AT_ONCE


def _find(broker: BrokerServices, key: TopicKey) -> Topic | None:
    name, topic_id = key
    if topic_id is not None:
        return broker.catalog.topic_by_id(topic_id)
    return broker.catalog.topic(name) if name is not None else None


def _reply_in_steps(
    broker: BrokerServices, context: Context, message: MetadataRequest, wanted: Collection[TopicKey], *, wants_all: bool
) -> Steps[list[Chunk]]:
    refused: Mapping[str, ErrorCode] = {}
    hidden: list[TopicKey] = []
    if broker.authorizer is not None:
        wanted = yield from _described(broker, context, wanted, hidden, wants_all=wants_all)
    may_create = not wants_all and (context.version < 4 or message.allow_auto_topic_creation)
    if may_create and broker.config.auto_create_topics_enable:
        refused = yield from _create(broker, context, wanted)
    asked = _topic_operations(context, message)
    view = broker.brokers.replicas_for(context)
    topics = elements(context, "topics")
    for key in wanted:
        topic = _find(broker, key)
        operations = _own_operations(broker, context, key[0] if topic is None else topic.name, asked)
        if topic is not None:
            partitions = elements(context, "topics", "partitions")
            for partition in topic.partitions:
                partitions.add(_partition_rows((partition,), view, context.version)[0])
                yield None
            topics.add(_topic_row(topic, operations, partitions))
        elif not wants_all:
            topics.add(_unknown_topic_row(*key, refused, operations))
        yield None
    for name, topic_id in hidden:
        topics.add(_error_row(name, topic_id, ErrorCode.topic_authorization_failed))
        yield None
    return reply(context, metadata_reply(broker, context, message, topics))


def _described(
    broker: BrokerServices, context: Context, wanted: Collection[TopicKey], hidden: list[TopicKey], *, wants_all: bool
) -> Steps[list[TopicKey]]:
    """Returns the topics that the client may describe. ``hidden`` gets the other ones that it has named.

    A topic that the client has named by its id stays without a name.
    """
    allowed: list[TopicKey] = []
    for key in wanted:
        topic = _find(broker, key) if key[0] is None else None
        name = key[0] if topic is None else topic.name
        if name is None or is_allowed(
            broker, context, Operation.DESCRIBE, Resource.TOPIC, name, logs_denial=not wants_all
        ):
            allowed.append(key)
        elif not wants_all:
            hidden.append(key)
        yield None
    return allowed


def _own_operations(broker: BrokerServices, context: Context, name: str | None, asked: int) -> int:
    """Returns the operations that the client may do with a topic, if it has asked for them."""
    if broker.authorizer is None or asked == NOT_ASKED or name is None:
        return asked
    return broker.authorizer.operations(context, Resource.TOPIC, name)


def cluster_operations(broker: BrokerServices, context: Context) -> int:
    """Returns the operations that the client may do with the cluster; 0 if it may not describe it."""
    if broker.authorizer is None:
        return ALL_CLUSTER_OPERATIONS
    if not is_allowed_for_cluster(broker, context, Operation.DESCRIBE):
        return 0
    return broker.authorizer.operations(context, Resource.CLUSTER, CLUSTER_NAME)


def metadata_reply(
    broker: BrokerServices, context: Context, message: MetadataRequest, topics: list[dict[str, object]] | Elements
) -> dict[str, object]:
    """Returns a reply with these topics."""
    asked_cluster = 8 <= context.version <= 10 and message.include_cluster_authorized_operations
    return {
        "brokers": [
            {"node_id": broker_id, "host": host, "port": port, "rack": rack}
            for broker_id, host, port, rack, _ in broker.brokers.reachable(context)
        ],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.brokers.controller(),
        "topics": topics,
        "cluster_authorized_operations": cluster_operations(broker, context) if asked_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


def _create(broker: BrokerServices, context: Context, wanted: Collection[TopicKey]) -> Steps[Mapping[str, ErrorCode]]:
    """Creates the missing topics. Returns the errors that the reply reports, by topic name.

    Kafka creates the topics in the background, all or none, and does not report a request for too many partitions.
    """
    requested = (name for name, topic_id in wanted if topic_id is None)
    names = yield from list_in_steps(
        name for name in requested if name is not None and broker.catalog.topic(name) is None
    )
    if not names:
        return {}
    denied: dict[str, ErrorCode] = {}
    if broker.authorizer is not None and not is_allowed_for_cluster(
        broker, context, Operation.CREATE, logs_denial=False
    ):
        for name in names:
            if not is_allowed(broker, context, Operation.CREATE, Resource.TOPIC, name):
                denied[name] = ErrorCode.topic_authorization_failed
            yield None
        names = [name for name in names if name not in denied]
    if not names:
        return denied
    try:
        refused = yield from value_of(broker.controller.auto_create(names, context))
    except KafkaError as error:
        return denied if error.code is ErrorCode.policy_violation else denied | dict.fromkeys(names, error.code)
    return denied | {name: error.code for name, error in refused.items()}


def _unknown_topic_row(
    name: str | None, topic_id: UUID | None, refused: Mapping[str, ErrorCode], operations: int
) -> dict[str, object]:
    if topic_id is not None or name is None:
        return _error_row(None, topic_id, ErrorCode.unknown_topic_id)
    code = refused.get(name, ErrorCode.unknown_topic_or_partition)
    if code is ErrorCode.topic_authorization_failed:
        return _error_row(name, None, code) | {"is_internal": name in INTERNAL_TOPICS}
    try:
        check_topic_name(name)
    except KafkaError as error:
        code = error.code
    return _error_row(name, None, code) | {"topic_authorized_operations": operations}


def _error_rows(asked: Iterable[MetadataRequestTopic], code: ErrorCode) -> list[dict[str, object]]:
    return [_error_row(topic.name or "", topic.topic_id, code) for topic in asked]


def _error_reply(topics: list[dict[str, object]] | Elements, code: ErrorCode) -> dict[str, object]:
    """Returns the reply to an invalid request: an error for each topic and no brokers.

    Versions 10 and 11 have the field for a topic's id, but a topic id or a null name is valid only from version 12.
    """
    return {
        "brokers": [],
        "cluster_id": None,
        "controller_id": -1,
        "topics": topics,
        "cluster_authorized_operations": NOT_ASKED,
        "error_code": code,
    }


def _error_row(name: str | None, topic_id: UUID | None, code: ErrorCode) -> dict[str, object]:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _topic_row(topic: Topic, operations: int, partitions: Elements | list[dict[str, object]]) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.internal,
        "topic_authorized_operations": operations,
        "partitions": partitions,
    }


def _partition_rows(
    partitions: Sequence[PartitionRegistration], view: ClientReplicas | None, version: int
) -> list[dict[str, object]]:
    """Returns the rows of partitions. ``view``: the replicas that the client can reach; None if it can reach all."""
    rows: list[dict[str, object]] = [
        {
            "error_code": ErrorCode.none,
            "partition_index": partition.partition_id,
            "leader_id": partition.leader,
            "leader_epoch": partition.leader_epoch,
            "replica_nodes": partition.replicas,
            "isr_nodes": partition.isr,
            "offline_replicas": (),
        }
        for partition in partitions
    ]
    if view is not None:
        for row, partition in zip(rows, partitions, strict=True):
            row |= _reachable_part(view, partition, version)
    return rows


def _reachable_part(view: ClientReplicas, partition: PartitionRegistration, version: int) -> dict[str, object]:
    """Returns the fields of a partition's row that depend on the brokers that the client can reach."""
    leader, code = view.leader(partition), ErrorCode.none
    replicas, isr = partition.replicas, partition.isr
    if version < LISTS_ALL_REPLICAS:
        replicas, isr = view.online(replicas), view.online(isr)
    if leader == NO_NODE:
        is_listener_missing = version >= KNOWS_LISTENER_NOT_FOUND and view.is_registered(partition.leader)
        code = ErrorCode.listener_not_found if is_listener_missing else ErrorCode.leader_not_available
    elif len(replicas) < len(partition.replicas) or len(isr) < len(partition.isr):
        code = ErrorCode.replica_not_available
    return {
        "error_code": code,
        "leader_id": leader,
        "replica_nodes": replicas,
        "isr_nodes": isr,
        "offline_replicas": view.offline(partition),
    }
