"""ConsumerGroupHeartbeat 0–1: adds, keeps, reconciles and removes a KIP-848 member.

* 1: the member generates its own id, and may subscribe to a topic pattern (``subscribed_topic_regex``).
"""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import elements
from odradek.broker.handlers.long_replies import reply as long_reply
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.catalog.features import GROUP
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.kip848.member import reported_partitions
from odradek.groups.kip848.messages import Kip848Heartbeat, Kip848HeartbeatReply
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.consumer_group_heartbeat.v1.request import ConsumerGroupHeartbeatRequest, TopicPartitions

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

    _Reply = dict[str, object] | list[Chunk]
    _Later = dict[str, object] | Deferred[_Reply]

VERSIONS = (0, 1)
IS_FREQUENT = True
AT_ONCE = 500
"""Requests with more topics or partitions than this are read in steps, replies with more topics packed in steps."""


def fresh_uuid(broker: BrokerServices) -> UUID:
    """Returns a random UUID whose short form does not start with a dash, because a dash begins an option."""
    while True:
        uuid = broker.new_uuid()
        if not short_id(uuid).startswith("-"):
            return uuid


def short_id(uuid: UUID) -> str:
    """Returns the UUID in the form of member ids that clients generate: sixteen bytes in base64."""
    return urlsafe_b64encode(uuid.bytes).decode().rstrip("=")


def handle(
    broker: BrokerServices, context: Context, message: ConsumerGroupHeartbeatRequest
) -> dict[str, object] | Deferred[_Reply] | Steps[_Later]:
    if GROUP not in broker.catalog.features():
        return _packed(Kip848HeartbeatReply(ErrorCode.unsupported_version))
    if not is_allowed(broker, context, Operation.READ, Resource.GROUP, message.group_id):
        return _packed(Kip848HeartbeatReply(ErrorCode.group_authorization_failed))
    if broker.authorizer is not None and message.subscribed_topic_names:
        return _handle_named(broker, context, message)
    return _handle_allowed(broker, context, message)


def _handle_named(broker: BrokerServices, context: Context, message: ConsumerGroupHeartbeatRequest) -> Steps[_Later]:
    """Serves a member that names its topics, if it may describe all of them."""
    for name in message.subscribed_topic_names or ():
        if not is_allowed(broker, context, Operation.DESCRIBE, Resource.TOPIC, name):
            return _packed(Kip848HeartbeatReply(ErrorCode.topic_authorization_failed))
        yield None
    reply = _handle_allowed(broker, context, message)
    return (yield from reply) if isinstance(reply, Generator) else reply


def _handle_allowed(
    broker: BrokerServices, context: Context, message: ConsumerGroupHeartbeatRequest
) -> dict[str, object] | Deferred[_Reply] | Steps[_Later]:
    rows = message.topic_partitions
    if rows is not None and (len(rows) > AT_ONCE or sum([len(row.partitions) for row in rows]) > AT_ONCE):
        return _handle_in_steps(broker, context, message, rows)
    owned = None if rows is None else reported_partitions(_listed(rows))
    return _submit(broker, context, message, owned)


def _handle_in_steps(
    broker: BrokerServices,
    context: Context,
    message: ConsumerGroupHeartbeatRequest,
    rows: Iterable[TopicPartitions],
) -> Steps[_Later]:
    """Serves a member that owns many partitions."""
    owned: dict[bytes, set[int]] = {}
    for topic_id, partitions in _listed(rows):
        for first in range(0, max(len(partitions), 1), AT_ONCE):
            owned.setdefault(topic_id, set()).update(partitions[first : first + AT_ONCE])
            yield None
    return _submit(broker, context, message, owned)


def _listed(rows: Iterable[TopicPartitions]) -> Iterator[tuple[bytes, Sequence[int]]]:
    return (((row.topic_id or NO_UUID).bytes, row.partitions) for row in rows)


def _submit(
    broker: BrokerServices,
    context: Context,
    message: ConsumerGroupHeartbeatRequest,
    owned: Mapping[bytes, Collection[int]] | None,
) -> Deferred[_Reply]:
    request = Kip848Heartbeat(
        message.group_id,
        message.member_id,
        message.member_epoch,
        short_id(fresh_uuid(broker)),
        context.client_id or "",
        context.client_host,
        message.instance_id,
        message.rack_id,
        milliseconds(message.rebalance_timeout),
        message.subscribed_topic_names,
        message.subscribed_topic_regex if context.version >= 1 else None,
        message.server_assignor,
        owned,
        names_itself=context.version >= 1,
        may_describe=_describer(broker, context),
    )
    packed: Deferred[_Reply] = Deferred()

    def pack(reply: Kip848HeartbeatReply) -> None:
        if reply.assignment is None or len(reply.assignment) <= AT_ONCE:
            packed.resolve(_packed(reply))
        else:
            broker.scheduler.start(_packed_in_steps(context, reply)).then(packed.resolve)

    broker.groups.submit(broker.groups.partition_of(message.group_id), request).then(pack)
    return packed


def _describer(broker: BrokerServices, context: Context) -> Callable[[str], bool] | None:
    """Returns the question whether the client may describe a topic, which its pattern matches."""
    if broker.authorizer is None:
        return None
    return lambda name: is_allowed(broker, context, Operation.DESCRIBE, Resource.TOPIC, name, logs_denial=False)


def _packed(reply: Kip848HeartbeatReply, topics: Elements | None = None) -> dict[str, object]:
    assignment: dict[str, object] | None = None
    if reply.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": UUID(bytes=topic_id), "partitions": sorted(partitions)}
                for topic_id, partitions in reply.assignment.items()
            ]
            if topics is None
            else topics
        }
    return {
        "error_code": reply.error,
        "error_message": reply.error_message or None if reply.error is not ErrorCode.none else None,
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval": reply.heartbeat_interval_ms,
        "assignment": assignment,
    }


def _packed_in_steps(context: Context, reply: Kip848HeartbeatReply) -> Steps[list[Chunk]]:
    """Packs the reply to a member whose assignment has many topics."""
    topics = elements(context, "assignment", "topic_partitions")
    for topic_id, partitions in (reply.assignment or {}).items():
        topics.add({"topic_id": UUID(bytes=topic_id), "partitions": sorted(partitions)})
        yield None
    return long_reply(context, _packed(reply, topics))
