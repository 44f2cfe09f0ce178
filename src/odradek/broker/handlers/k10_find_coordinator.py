"""FindCoordinator 0–6: returns the coordinator of a group, or of another key that a registered coordinator serves.

* 0: groups only.
* 1: key types (0 group, 1 transaction, 2 share), error message, throttle time.
* 3: flexible.
* 4: many keys in one request.
* 5: the error TRANSACTION_ABORTABLE.
* 6: keys of share groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed, is_allowed_for_cluster, refusal
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE

if TYPE_CHECKING:
    from kio.schema.find_coordinator.v6 import request as v6

    from odradek.broker.handlers.api import BrokerServices, Context, Reply
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

    class FindCoordinatorRequest(v6.FindCoordinatorRequest):
        key: str  # until version 3


VERSIONS = (0, 6)
IS_FREQUENT = True
GROUP, TRANSACTION, SHARE = 0, 1, 2
_RESOURCES = {GROUP: Resource.GROUP, TRANSACTION: Resource.TRANSACTIONAL_ID}
_ASKED_AT_ONCE = 100


def handle(
    broker: BrokerServices, context: Context, message: FindCoordinatorRequest
) -> dict[str, object] | Steps[Reply]:
    key_type = message.key_type if context.version >= 1 else GROUP
    coordinator = broker.coordinators.of_key_type(key_type)
    if coordinator is not None and not coordinator.has_topic and _asks_for_one(broker, context, message, key_type):
        return _reply_after_creation(broker, context, message, key_type, coordinator.topic)
    if context.version >= 4:
        return _find_all(broker, context, key_type, message.coordinator_keys)
    return _find(broker, context, key_type, message.key)


def _asks_for_one(broker: BrokerServices, context: Context, message: FindCoordinatorRequest, key_type: int) -> bool:
    """Returns whether the client may know the coordinator of a key, of one of the first keys in a long request."""
    keys = message.coordinator_keys[:_ASKED_AT_ONCE] if context.version >= 4 else (message.key,)
    return broker.authorizer is None or any(_refusal(broker, context, key_type, key) is None for key in keys)


def _refusal(broker: BrokerServices, context: Context, key_type: int, key: str) -> KafkaError | None:
    """Returns the error if the client may not know the coordinator of a key."""
    resource_type = _RESOURCES.get(key_type)
    if resource_type is not None and not is_allowed(broker, context, Operation.DESCRIBE, resource_type, key):
        return refusal(resource_type)
    if key_type == SHARE and not is_allowed_for_cluster(broker, context, Operation.CLUSTER_ACTION):
        return refusal(Resource.CLUSTER)
    return None


def _reply_after_creation(
    broker: BrokerServices, context: Context, message: FindCoordinatorRequest, key_type: int, topic: str
) -> Steps[Reply]:
    yield from value_of(broker.controller.ensure_internal_topic(topic, context))
    if context.version >= 4:
        return (yield from _find_all(broker, context, key_type, message.coordinator_keys))
    return _find(broker, context, key_type, message.key)


def _find_all(broker: BrokerServices, context: Context, key_type: int, keys: Iterable[str]) -> Steps[list[Chunk]]:
    coordinators = elements(context, "coordinators")
    for key in keys:
        coordinators.add(_find(broker, context, key_type, key))
        yield None
    return reply(context, {"coordinators": coordinators})


def _find(broker: BrokerServices, context: Context, key_type: int, key: str) -> dict[str, object]:
    if broker.authorizer is not None and (refused := _refusal(broker, context, key_type, key)) is not None:
        return _error_row(key, refused.code, "" if context.version >= 4 else refused.message)
    coordinator = broker.coordinators.of_key_type(key_type)
    if coordinator is None:
        return _error_row(key, ErrorCode.invalid_request, f"Coordinator type {key_type} is not served by this broker.")
    leader = coordinator.leader_of(key)
    address = None if leader == NO_NODE else broker.brokers.reachable_one(leader, context)
    if address is None:
        text = "" if context.version >= 4 else "The coordinator is not available."
        return _error_row(key, ErrorCode.coordinator_not_available, text)
    row = {"key": key, "node_id": leader, "host": address.host, "port": address.port}
    return row | {"error_code": ErrorCode.none, "error_message": "" if context.version >= 4 else "NONE"}


def _error_row(key: str, error: ErrorCode, message: str) -> dict[str, object]:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}
