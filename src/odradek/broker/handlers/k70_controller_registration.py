"""ControllerRegistration 0: registers a controller, with its listeners and the features that it supports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.cluster.nodes.registrations import NewController
from odradek.cluster.records import Endpoint, FeatureRange
from odradek.core.access.acl import Operation

if TYPE_CHECKING:
    from kio.schema.controller_registration.v0.request import ControllerRegistrationRequest

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 0)
LISTENERS = ("controller",)


def handle(
    controller: ControllerServices, context: Context, message: ControllerRegistrationRequest
) -> Steps[dict[str, object]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    request = NewController(
        message.controller_id,
        message.incarnation_id or NO_UUID,
        tuple(Endpoint(one.name, one.host, one.port, one.security_protocol) for one in message.listeners),
        tuple(FeatureRange(one.name, one.min_supported_version, one.max_supported_version) for one in message.features),
        message.zk_migration_ready,
    )
    yield from value_of(
        controller.role.registered_brokers.submit(lambda control, _: control.register_controller(request), context)
    )
    return {"error_message": None}
