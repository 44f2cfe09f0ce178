"""UnregisterBroker 0: removes a broker from its cluster. A lone broker refuses it: it is the only one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.loop.scheduler import value_of
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

    from odradek.broker.handlers.api import BrokerServices, Context, ControllerServices
    from odradek.broker.loop.scheduler import Steps

VERSIONS = (0, 0)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: UnregisterBrokerRequest) -> dict[str, object]:
    check_cluster(broker, context, Operation.ALTER)
    if message.broker_id != broker.node_id:
        text = f"No broker with the id {message.broker_id} is registered."
        return {"error_code": ErrorCode.broker_id_not_registered, "error_message": text}
    text = "This broker is the only one of its cluster and is running: it cannot be unregistered."
    return {"error_code": ErrorCode.invalid_request, "error_message": text}


def handle_at_controller(
    controller: ControllerServices, context: Context, message: UnregisterBrokerRequest
) -> Steps[dict[str, object]]:
    check_cluster(controller, context, Operation.ALTER)
    brokers = controller.role.registered_brokers
    yield from value_of(brokers.submit(lambda control, _: control.unregister(message.broker_id), context))
    return {"error_code": ErrorCode.none, "error_message": ""}
