"""ListGroups 0 to 5. 1: throttle time. 3: flexible. 4: states, asked for and told. 5: types likewise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.deferred import Deferred, gather
from odradek.core.errors import ErrorCode
from odradek.groups.messages import ListGroups, ListGroupsReply

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[dict[str, Any]]:
    request = ListGroups(
        _lower(message.states_filter) if context.version >= 4 else frozenset(),
        _lower(message.types_filter) if context.version >= 5 else frozenset(),
    )
    lists: list[Deferred[ListGroupsReply]] = [
        broker.runtime.submit(index, request) for index in broker.runtime.loaded()
    ]
    return gather(lists).map(_pack)


def _lower(names: Any) -> frozenset[str]:
    return frozenset(name.strip().lower() for name in names)


def _pack(replies: list[ListGroupsReply]) -> dict[str, Any]:
    error = next((reply.error for reply in replies if reply.error is not ErrorCode.none), ErrorCode.none)
    groups = [] if error is not ErrorCode.none else [group for reply in replies for group in reply.groups]
    return {
        "error_code": error,
        "groups": [
            {"group_id": group_id, "protocol_type": protocol_type, "group_state": state, "group_type": group_type}
            for group_id, protocol_type, state, group_type in groups
        ],
    }
