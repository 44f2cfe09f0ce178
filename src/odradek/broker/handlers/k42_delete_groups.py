"""DeleteGroups 0–2: deletes empty groups and their committed offsets.

* 1: the same fields as 0.
* 2: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.groups.messages import DeleteGroups

if TYPE_CHECKING:
    from kio.schema.delete_groups.v2.request import DeleteGroupsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
AT_ONCE = 100
"""The groups that a coordinator deletes in one step."""


def handle(broker: BrokerServices, context: Context, message: DeleteGroupsRequest) -> Steps[list[Chunk]]:
    context.must_finish = True
    by_partition: dict[int, list[str]] = {}
    seen: set[str] = set()
    denied: list[str] = []
    for group_id in message.groups_names:
        if group_id not in seen:
            seen.add(group_id)
            if not is_allowed(broker, context, Operation.DELETE, Resource.GROUP, group_id):
                denied.append(group_id)
                continue
            by_partition.setdefault(broker.groups.partition_of(group_id), []).append(group_id)
        yield None
    results = elements(context, "results")
    for index, group_ids in by_partition.items():
        for first in range(0, len(group_ids), AT_ONCE):
            request = DeleteGroups(group_ids[first : first + AT_ONCE])
            for group_id, error in (yield broker.groups.submit(index, request)):
                results.add({"group_id": group_id, "error_code": error})
    for refused in denied:
        results.add({"group_id": refused, "error_code": ErrorCode.group_authorization_failed})
        yield None
    broker.leftovers.add(seen, denied, *by_partition.values())
    return reply(context, {"results": results})
