"""SyncGroup 0–5: stores the leader's assignment and returns the member's part of it.

* 1: throttle time.
* 3: static members.
* 4: flexible.
* 5: protocol type and name, which are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import SyncGroup, SyncGroupReply

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest

    from odradek.broker.api import BrokerServices, Context

VERSIONS = (0, 5)
IS_FREQUENT = True
WAITS_FOR_OTHERS = True


def handle(
    broker: BrokerServices, context: Context, message: SyncGroupRequest
) -> dict[str, Any] | Deferred[dict[str, Any]]:
    version = context.version
    protocol_type = message.protocol_type if version >= 5 else None
    protocol_name = message.protocol_name if version >= 5 else None
    if version >= 5 and (protocol_type is None or protocol_name is None):
        return _pack(SyncGroupReply(ErrorCode.inconsistent_group_protocol))
    request = SyncGroup(
        message.group_id,
        message.member_id,
        message.generation_id,
        {assignment.member_id: bytes(assignment.assignment) for assignment in message.assignments},
        message.group_instance_id if version >= 3 else None,
        protocol_type,
        protocol_name,
    )
    return broker.groups.submit(broker.groups.partition_of(message.group_id), request).map(_pack)


def _pack(reply: SyncGroupReply) -> dict[str, Any]:
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }
