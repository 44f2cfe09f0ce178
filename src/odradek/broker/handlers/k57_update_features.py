"""UpdateFeatures 0–2: raises or lowers the levels of features; changes all features of a request or none.

* 1: upgrade type and ``validate_only``.
* 2: one error for the whole request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster, refusal
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.catalog.features import UPGRADE, FeatureUpdate, UpdateFeatures
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.update_features.v2.request import UpdateFeaturesRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 2)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: UpdateFeaturesRequest) -> Steps[list[Chunk]]:
    updates = {}
    is_allowed = is_allowed_for_cluster(broker, context, Operation.ALTER)
    for row in message.feature_updates:
        update = FeatureUpdate(
            row.feature, row.max_version_level, row.upgrade_type if context.version >= 1 else UPGRADE
        )
        updates[update.name] = update
        yield None
    try:
        if not is_allowed:
            raise refusal(Resource.CLUSTER)
        request, is_check = UpdateFeatures(updates), context.version >= 1 and message.validate_only
        yield from value_of(broker.controller.update_features(request, context, validate_only=is_check))
    except KafkaError as error:
        return reply(context, {"error_code": error.code, "error_message": error.message, "results": ()})
    if context.version >= 2:
        return reply(context, {"error_code": ErrorCode.none, "error_message": None})
    results = elements(context, "results")
    for row in message.feature_updates:
        results.add({"feature": row.feature, "error_code": ErrorCode.none, "error_message": "NONE"})
        yield None
    return reply(context, {"error_code": ErrorCode.none, "error_message": None, "results": results})
