"""LeaveGroup 0–5: removes members from a group.

* 1: throttle time.
* 3: many members in one request; static members.
* 4: flexible.
* 5: a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import LeaveGroup, LeaveGroupReply, LeavingMember

if TYPE_CHECKING:
    from kio.schema.leave_group.v5 import request as v5

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

    class LeaveGroupRequest(v5.LeaveGroupRequest):
        member_id: str  # until version 2


VERSIONS = (0, 5)
IS_FREQUENT = True
AT_ONCE = 100
"""The largest number of members that are removed in one step."""


def handle(
    broker: BrokerServices, context: Context, message: LeaveGroupRequest
) -> Deferred[dict[str, object]] | Steps[list[Chunk]]:
    version = context.version
    check(broker, context, Operation.READ, Resource.GROUP, message.group_id)
    if version >= 3:
        if len(message.members) > AT_ONCE:
            return _in_steps(broker, context, message)
        members = [LeavingMember(member.member_id, member.group_instance_id) for member in message.members]
    else:
        members = [LeavingMember(message.member_id)]
    request = LeaveGroup(message.group_id, members)
    deferred = broker.groups.submit(broker.groups.partition_of(message.group_id), request)
    return deferred.map(lambda group_reply: _pack(version, group_reply))


def _in_steps(broker: BrokerServices, context: Context, message: LeaveGroupRequest) -> Steps[list[Chunk]]:
    context.must_finish = True
    members = elements(context, "members")
    for first in range(0, len(message.members), AT_ONCE):
        some = message.members[first : first + AT_ONCE]
        leaving = [LeavingMember(member.member_id, member.group_instance_id) for member in some]
        request = LeaveGroup(message.group_id, leaving)
        group_reply = yield broker.groups.submit(broker.groups.partition_of(message.group_id), request)
        if group_reply.error is not ErrorCode.none:
            return reply(context, {"error_code": group_reply.error, "members": ()})
        for row in group_reply.members:
            members.add(_row(*row))
        yield None
    return reply(context, {"error_code": ErrorCode.none, "members": members})


def _pack(version: int, group_reply: LeaveGroupReply) -> dict[str, object]:
    error = group_reply.error
    if version < 3 and error is ErrorCode.none:
        error = next((code for _, code in group_reply.members), ErrorCode.none)
    return {"error_code": error, "members": [_row(*row) for row in group_reply.members]}


def _row(member: LeavingMember, code: ErrorCode) -> dict[str, object]:
    return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": code}
