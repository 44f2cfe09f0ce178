"""JoinGroup 0–9: adds a member to a classic group and waits for the new generation.

* 1: a separate rebalance timeout; version 0 uses the session timeout.
* 2: throttle time.
* 4: MEMBER_ID_REQUIRED to members without an id.
* 5: static members.
* 6: flexible.
* 7: the protocol type in the reply; the protocol name may be null.
* 8: a reason.
* 9: ``skip_assignment`` in the leader's reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.k68_consumer_group_heartbeat import fresh_uuid, short_id
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import MAX_STRING_BYTES
from odradek.groups.messages import JoinGroup, JoinGroupReply, MemberProtocol
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.join_group.v9.request import JoinGroupRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 9)
IS_FREQUENT = True
WAITS_FOR_OTHERS = True
MAX_PROTOCOLS = 1000
"""The most protocols of one member. Kafka has no limit; its clients send their assignors, at most five."""


def handle(broker: BrokerServices, context: Context, message: JoinGroupRequest) -> Deferred[dict[str, object]]:
    version = context.version
    session_timeout_ms = milliseconds(message.session_timeout)
    protocols = message.protocols[:MAX_PROTOCOLS]
    instance_id = message.group_instance_id if version >= 5 else None
    client_id = context.client_id or ""
    uuid = fresh_uuid(broker)
    new_member_id = f"{client_id if instance_id is None else instance_id}-{uuid}"
    request = JoinGroup(
        message.group_id,
        message.member_id,
        new_member_id,
        client_id,
        context.client_host,
        session_timeout_ms,
        milliseconds(message.rebalance_timeout) if version >= 1 else session_timeout_ms,
        message.protocol_type,
        tuple(MemberProtocol(protocol.name, bytes(protocol.metadata)) for protocol in protocols),
        instance_id,
        requires_known_member_id=version >= 4,
        can_skip_assignment=version >= 9,
        new_short_id=short_id(uuid),
    )
    if not is_allowed(broker, context, Operation.READ, Resource.GROUP, message.group_id):
        return Deferred.of(_pack(version, request.error_reply(ErrorCode.group_authorization_failed)))
    if len(message.protocols) > MAX_PROTOCOLS:
        return Deferred.of(_pack(version, request.error_reply(ErrorCode.unknown_server_error)))
    if not message.member_id and len(new_member_id.encode()) > MAX_STRING_BYTES:
        # An id of this length can be neither sent nor stored. Kafka replies with the same code.
        return Deferred.of(_pack(version, request.error_reply(ErrorCode.unknown_server_error)))
    index = broker.groups.partition_of(message.group_id)
    if 0 < broker.groups.batch_bytes(index) < sum(len(protocol.metadata) for protocol in request.protocols):
        # A group record could not hold the metadata: the generation would fail with this code after all members joined.
        return Deferred.of(_pack(version, request.error_reply(ErrorCode.unknown_server_error)))
    deferred = broker.groups.submit(index, request)
    return deferred.map(lambda reply: _pack(version, reply))


def _pack(version: int, reply: JoinGroupReply) -> dict[str, object]:
    name = reply.protocol_name
    return {
        "error_code": reply.error,
        "generation_id": reply.generation_id,
        "protocol_type": reply.protocol_type,
        "protocol_name": "" if name is None and version < 7 else name,
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in reply.members
        ],
    }
