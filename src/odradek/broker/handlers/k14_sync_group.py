"""SyncGroup 0–5: stores the leader's assignment and returns the member's part of it.

* 1: throttle time.
* 3: static members.
* 4: flexible.
* 5: protocol type and name, which are checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.broker.loop.long_lists import dict_in_steps
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import SyncGroup, SyncGroupReply

if TYPE_CHECKING:
    from kio.schema.sync_group.v5.request import SyncGroupRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 5)
IS_FREQUENT = True
WAITS_FOR_OTHERS = True
AT_ONCE = 500
"""The most assignments that are read in one step."""


def handle(
    broker: BrokerServices, context: Context, message: SyncGroupRequest
) -> dict[str, object] | Deferred[dict[str, object]] | Steps[Deferred[dict[str, object]]]:
    version = context.version
    if version >= 5 and (message.protocol_type is None or message.protocol_name is None):
        return _pack(SyncGroupReply(ErrorCode.inconsistent_group_protocol))
    check(broker, context, Operation.READ, Resource.GROUP, message.group_id)
    rows = ((assignment.member_id, bytes(assignment.assignment)) for assignment in message.assignments)
    if len(message.assignments) > AT_ONCE:
        return _in_steps(broker, version, message, dict_in_steps(rows))
    return _submit(broker, version, message, dict(rows))


def _in_steps(
    broker: BrokerServices, version: int, message: SyncGroupRequest, read: Steps[dict[str, bytes]]
) -> Steps[Deferred[dict[str, object]]]:
    assignments = yield from read
    promise = _submit(broker, version, message, assignments)
    promise.then(lambda _: broker.leftovers.add(assignments))
    return promise


def _submit(
    broker: BrokerServices, version: int, message: SyncGroupRequest, assignments: dict[str, bytes]
) -> Deferred[dict[str, object]]:
    request = SyncGroup(
        message.group_id,
        message.member_id,
        message.generation_id,
        assignments,
        message.group_instance_id if version >= 3 else None,
        message.protocol_type if version >= 5 else None,
        message.protocol_name if version >= 5 else None,
    )
    return broker.groups.submit(broker.groups.partition_of(message.group_id), request).map(_pack)


def _pack(reply: SyncGroupReply) -> dict[str, object]:
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol_name,
        "assignment": reply.assignment,
    }
