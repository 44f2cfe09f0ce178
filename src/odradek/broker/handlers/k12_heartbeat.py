"""Heartbeat 0–4: keeps a member of a classic group alive.

* 1: throttle time.
* 3: static members.
* 4: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.groups.messages import Heartbeat

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 4)
IS_FREQUENT = True


def handle(broker: BrokerServices, context: Context, message: HeartbeatRequest) -> Deferred[dict[str, object]]:
    check(broker, context, Operation.READ, Resource.GROUP, message.group_id)
    request = Heartbeat(
        message.group_id,
        message.member_id,
        message.generation_id,
        message.group_instance_id if context.version >= 3 else None,
    )
    deferred = broker.groups.submit(broker.groups.partition_of(message.group_id), request)
    return deferred.map(lambda error: {"error_code": error})
