"""DescribeCluster 0–2: returns the brokers and the controller; at a controller, the controllers.

* 1: endpoint type.
* 2: fenced brokers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.k03_metadata import NOT_ASKED, cluster_operations
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 2)
LISTENERS = ("client", "controller")
_BROKERS = 1
_CONTROLLERS = 2
_NAMES = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}
_SHOWS_FENCED = 2
"""The first version that shows fenced brokers."""


def handle(broker: BrokerServices, context: Context, message: DescribeClusterRequest) -> dict[str, object]:
    if refused := _refusal(context, message, _BROKERS):
        return refused
    shows_fenced = context.version >= _SHOWS_FENCED and message.include_fenced_brokers
    addresses = broker.brokers.known(context) if shows_fenced else broker.brokers.reachable(context)
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.brokers.controller(),
        "brokers": [address._asdict() for address in addresses],
        "cluster_authorized_operations": _operations(broker, context, message),
    }


def handle_at_controller(
    controller: BrokerServices, context: Context, message: DescribeClusterRequest
) -> dict[str, object]:
    """Answers with the controllers: this one."""
    if refused := _refusal(context, message, _CONTROLLERS):
        return refused
    host, port = controller.advertised_address(context)
    own = {"broker_id": controller.node_id, "host": host, "port": port, "rack": None, "is_fenced": False}
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _CONTROLLERS,
        "cluster_id": controller.cluster_id,
        "controller_id": controller.quorum.leader,
        "brokers": [own],
        "cluster_authorized_operations": _operations(controller, context, message),
    }


def _operations(broker: BrokerServices, context: Context, message: DescribeClusterRequest) -> int:
    return cluster_operations(broker, context) if message.include_cluster_authorized_operations else NOT_ASKED


def _refusal(context: Context, message: DescribeClusterRequest, own: int) -> dict[str, object] | None:
    """Returns the reply for nodes of another kind than those that this listener is for."""
    asked = message.endpoint_type if context.version >= 1 else _BROKERS
    if asked == own:
        return None
    if context.version == 0:
        text = f"The request was sent to an endpoint of type {_NAMES[own]}, which it needs version 1 for"
        return _refused(ErrorCode.invalid_request, text)
    code, text = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {asked}"
    if asked in _NAMES:
        code = ErrorCode.mismatched_endpoint_type
        text = (
            f"The request was sent to an endpoint of type {_NAMES[own]}, but we wanted an endpoint of type "
            f"{_NAMES[asked]}"
        )
    return _refused(code, text)


def _refused(code: ErrorCode, text: str) -> dict[str, object]:
    """Returns a reply with an error. Its type of endpoints is the default, as in Kafka."""
    return {"error_code": code, "error_message": text, "endpoint_type": _BROKERS, "cluster_id": "", "brokers": []}
