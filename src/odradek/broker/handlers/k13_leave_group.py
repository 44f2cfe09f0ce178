"""LeaveGroup 0 to 5. 1: throttle time. 3: many members, also static ones. 4: flexible. 5: a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import LeaveGroup, LeaveGroupReply, LeavingMember

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[dict[str, Any]]:
    version = context.version
    if version >= 3:
        members = [LeavingMember(member.member_id, member.group_instance_id) for member in message.members]
    else:
        members = [LeavingMember(message.member_id)]
    request = LeaveGroup(message.group_id, members)
    deferred = broker.runtime.submit(broker.runtime.group_partition(message.group_id), request)
    return deferred.map(lambda reply: _pack(version, reply))


def _pack(version: int, reply: LeaveGroupReply) -> dict[str, Any]:
    error = reply.error
    if version < 3 and error is ErrorCode.none:
        error = next((code for _, code in reply.members), ErrorCode.none)
    members = [
        {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": code}
        for member, code in reply.members
    ]
    return {"error_code": error, "members": members}
