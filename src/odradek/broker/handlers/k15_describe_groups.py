"""DescribeGroups 0–6: returns the state and the members of classic groups.

* 1: throttle time.
* 3: authorised operations.
* 4: static members.
* 5: flexible.
* 6: GROUP_ID_NOT_FOUND and a message for an unknown group. Earlier versions return the state Dead and no error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import Known, each_once, elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.groups.messages import DescribedGroup, DescribeGroup

if TYPE_CHECKING:
    from kio.schema.describe_groups.v6.request import DescribeGroupsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 6)
#: Bits of READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS: without an authorizer all are allowed.
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
OPERATIONS_NOT_ASKED = -(1 << 31)
_REFUSED: dict[str, object] = {
    "error_code": ErrorCode.group_authorization_failed,
    "error_message": None,
    "group_state": "",
    "protocol_type": "",
    "protocol_data": "",
    "members": (),
    "authorized_operations": OPERATIONS_NOT_ASKED,
}


def handle(broker: BrokerServices, context: Context, message: DescribeGroupsRequest) -> Steps[list[Chunk]]:
    asked = context.version >= 3 and message.include_authorized_operations
    groups = elements(context, "groups")

    def describe(group_id: str) -> Steps[dict[str, object]]:
        if not is_allowed(broker, context, Operation.DESCRIBE, Resource.GROUP, group_id):
            return _REFUSED | {"group_id": group_id}
        group = yield broker.groups.submit(broker.groups.partition_of(group_id), DescribeGroup(group_id))
        error = group.error
        if error is ErrorCode.group_id_not_found and context.version < 6:  # an unknown group is a dead one there
            error = ErrorCode.none
        operations = OPERATIONS_NOT_ASKED
        if asked and error is ErrorCode.none:
            operations = group_operations(broker, context, group_id)
        return (yield from _pack(context, operations, error, group))

    known: Known = {}
    yield from each_once(groups, message.groups, str, describe, known)
    broker.leftovers.add(known)
    return reply(context, {"groups": groups})


def group_operations(broker: BrokerServices, context: Context, group_id: str) -> int:
    """Returns the operations that the client may do with a group."""
    authorizer = broker.authorizer
    return ALL_GROUP_OPERATIONS if authorizer is None else authorizer.operations(context, Resource.GROUP, group_id)


def _pack(context: Context, operations: int, error: ErrorCode, group: DescribedGroup) -> Steps[dict[str, object]]:
    members = elements(context, "groups", "members")
    for member in group.members:
        members.add(
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
        )
        yield None
    return {
        "error_code": error,
        "error_message": group.error_message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": members,
        "authorized_operations": operations,
    }
