"""Heartbeat 0–4: keeps a member of a classic group alive.

* 1: throttle time.
* 3: static members.
* 4: flexible.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check
from odradek.broker.limits.quotas import REQUEST_PERCENTAGE
from odradek.core.access.acl import Operation, Resource
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.groups.messages import Heartbeat
from odradek.wire import schemas
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.request import HeartbeatRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 4)
IS_FREQUENT = True


API_KEY = 12


def handle(
    broker: BrokerServices, context: Context, message: HeartbeatRequest
) -> Deferred[dict[str, object]] | Deferred[bytes]:
    check(broker, context, Operation.READ, Resource.GROUP, message.group_id)
    request = Heartbeat(
        message.group_id,
        message.member_id,
        message.generation_id,
        message.group_instance_id if context.version >= 3 else None,
    )
    deferred = broker.groups.submit(broker.groups.partition_of(message.group_id), request)
    if broker.quotas.has_quota(REQUEST_PERCENTAGE):
        return deferred.map(_unpacked)
    version = context.version
    return deferred.map(lambda error: _packed(version, error))


def _unpacked(error: ErrorCode) -> dict[str, object]:
    """Returns a reply that may need a throttle time."""
    return {"error_code": error}


@cache
def _packed(version: int, error: ErrorCode) -> bytes:
    """Returns a reply without a throttle time. Members send a heartbeat every few seconds, and most get the same."""
    return schemas.encode(API_KEY, version, Kind.RESPONSE, {"error_code": error})
