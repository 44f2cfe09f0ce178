"""BrokerRegistration 0–4: registers a broker at the controller. The reply has its broker epoch.

* 1: whether the broker comes from ZooKeeper, which is refused.
* 2: log directories.
* 3: the broker epoch of the last clean stop. Without it, the last stop counts as unclean.
* 4: features whose lowest level is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.records import Endpoint, FeatureRange
from odradek.core.access.acl import Operation

if TYPE_CHECKING:
    from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 4)
LISTENERS = ("controller",)


def handle(
    controller: ControllerServices, context: Context, message: BrokerRegistrationRequest
) -> Steps[dict[str, object]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    version = context.version
    request = NewBroker(
        message.broker_id,
        message.cluster_id,
        message.incarnation_id or NO_UUID,
        tuple(Endpoint(one.name, one.host, one.port, one.security_protocol) for one in message.listeners),
        tuple(FeatureRange(one.name, one.min_supported_version, one.max_supported_version) for one in message.features),
        message.rack,
        tuple(one or NO_UUID for one in message.log_dirs) if version >= 2 else (),
        message.previous_broker_epoch if version >= 3 else None,
        version >= 1 and message.is_migrating_zk_broker,
    )
    brokers = controller.role.registered_brokers
    epoch = yield from value_of(
        brokers.submit(lambda control, moment: control.register_broker(request, moment), context)
    )
    return {"broker_epoch": epoch}
