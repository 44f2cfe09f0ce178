"""ConsumerGroupHeartbeat 0 and 1: all that a KIP-848 member says. 1: it brings its id; a pattern instead of topics."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING, Any
from uuid import UUID

from odradek.broker.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.consumer_member import as_owned
from odradek.groups.consumer_messages import ConsumerHeartbeat, ConsumerHeartbeatReply
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


NO_TOPIC = UUID(int=0)


def fresh_uuid(broker: BrokerServer) -> UUID:
    """Random, and its short form begins with no dash, which command lines would take for an option's."""
    while True:
        made = broker.new_uuid()
        if not short_id(made).startswith("-"):
            return made


def short_id(made: UUID) -> str:
    """As members of version 1 make theirs: sixteen bytes in base64."""
    return urlsafe_b64encode(made.bytes).decode().rstrip("=")


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[dict[str, Any]]:
    owned = None
    if message.topic_partitions is not None:
        owned = as_owned(((row.topic_id or NO_TOPIC).bytes, row.partitions) for row in message.topic_partitions)
    request = ConsumerHeartbeat(
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
    )
    return broker.runtime.submit(broker.runtime.group_partition(message.group_id), request).map(_pack)


def _pack(reply: ConsumerHeartbeatReply) -> dict[str, Any]:
    assignment = None
    if reply.assignment is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": UUID(bytes=topic_id), "partitions": sorted(partitions)}
                for topic_id, partitions in reply.assignment.items()
            ]
        }
    return {
        "error_code": reply.error,
        "error_message": reply.error_message or None if reply.error is not ErrorCode.none else None,
        "member_id": reply.member_id,
        "member_epoch": reply.member_epoch,
        "heartbeat_interval": reply.heartbeat_interval_ms,
        "assignment": assignment,
    }
