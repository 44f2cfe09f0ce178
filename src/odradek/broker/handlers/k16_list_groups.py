"""ListGroups 0–5: returns the groups that this broker coordinates.

* 1: throttle time.
* 3: flexible.
* 4: filter by state; the state of each group.
* 5: filter by type; the type of each group.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed, is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode
from odradek.core.ids import MAX_STRING_BYTES
from odradek.groups.messages import ListGroups

if TYPE_CHECKING:
    from kio.schema.list_groups.v5.request import ListGroupsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 5)
_SHORT = MAX_STRING_BYTES // 4
"""Any id of at most this number of characters fits into a reply: a character has at most four bytes.

Logs of earlier versions may hold longer ids; those that do not fit are left out.
"""
_NAMES = {
    "empty", "preparingrebalance", "completingrebalance", "stable", "dead", "assigning", "reconciling",
    "classic", "consumer",
}  # fmt: skip
"""The states and types of groups, in lower case."""
_MOST_NAMES = 20


def handle(broker: BrokerServices, context: Context, message: ListGroupsRequest) -> Steps[list[Chunk]]:
    states = yield from _lower(message.states_filter if context.version >= 4 else ())
    types = yield from _lower(message.types_filter if context.version >= 5 else ())
    request = ListGroups(states, types)
    groups = elements(context, "groups")
    sees_all = is_allowed_for_cluster(broker, context, Operation.DESCRIBE, logs_denial=False)
    for index in broker.groups.partitions():
        shard_reply = yield broker.groups.submit(index, request)
        if shard_reply.error is not ErrorCode.none:
            return reply(context, {"error_code": shard_reply.error, "groups": ()})
        for group_id, protocol_type, state, group_type in shard_reply.groups:
            if not sees_all and not is_allowed(
                broker, context, Operation.DESCRIBE, Resource.GROUP, group_id, logs_denial=False
            ):
                pass  # the list has only groups that the client may describe
            elif len(group_id) <= _SHORT or len(group_id.encode()) <= MAX_STRING_BYTES:
                groups.add(
                    {
                        "group_id": group_id,
                        "protocol_type": protocol_type,
                        "group_state": state,
                        "group_type": group_type,
                    }
                )
            yield None
    return reply(context, {"error_code": ErrorCode.none, "groups": groups})


def _lower(names: Iterable[str]) -> Steps[frozenset[str]]:
    """Returns the names of a filter. Of the many unknown names that a filter may have, which match nothing, it keeps
    a few."""
    lower: set[str] = set()
    for name in names:
        if len(lower) < _MOST_NAMES or name.strip().lower() in _NAMES:
            lower.add(name.strip().lower())
        yield None
    return frozenset(lower)
