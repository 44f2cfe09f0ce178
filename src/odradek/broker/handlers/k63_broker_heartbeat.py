"""BrokerHeartbeat 0–2: keeps the session of a broker at the controller, and says whether it is fenced or may stop.

* 1: log directories that are offline.
* 2: cordoned log directories, which get no new replicas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.cluster.control import Directories
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.core.access.acl import Operation

if TYPE_CHECKING:
    from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest

    from odradek.broker.handlers.api import Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 2)
LISTENERS = ("controller",)


def handle(
    controller: ControllerServices, context: Context, message: BrokerHeartbeatRequest
) -> Steps[dict[str, object]]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    request = BrokerHeartbeat(
        message.broker_id,
        message.broker_epoch,
        message.current_metadata_offset,
        message.want_fence,
        message.want_shut_down,
    )
    offline = message.offline_log_dirs if context.version >= 1 else ()
    cordoned = message.cordoned_log_dirs if context.version >= 2 else None
    directories = Directories(
        tuple(one or NO_UUID for one in offline),
        None if cordoned is None else tuple(one or NO_UUID for one in cordoned),
    )
    controller.role.registered_brokers.hear(request.broker_id, request.broker_epoch)
    reply = yield from value_of(
        controller.role.registered_brokers.submit(lambda control, _: control.heartbeat(request, directories), context)
    )
    return {
        "is_caught_up": reply.is_caught_up,
        "is_fenced": reply.is_fenced,
        "should_shut_down": reply.should_shut_down,
    }
