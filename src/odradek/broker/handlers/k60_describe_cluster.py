"""DescribeCluster 0–2: returns the brokers and the controller.

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
_BROKERS = 1
_CONTROLLERS = 2
_SHOWS_FENCED = 2
"""The first version that shows fenced brokers."""


def handle(broker: BrokerServices, context: Context, message: DescribeClusterRequest) -> dict[str, object]:
    asked = message.endpoint_type if context.version >= 1 else _BROKERS
    if asked != _BROKERS:
        code, text = ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {asked}"
        if asked == _CONTROLLERS:
            code = ErrorCode.mismatched_endpoint_type
            text = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
        return {
            "error_code": code,
            "error_message": text,
            "endpoint_type": _BROKERS,
            "cluster_id": "",
            "brokers": [],
        }
    shows_fenced = context.version >= _SHOWS_FENCED and message.include_fenced_brokers
    addresses = broker.brokers.known(context) if shows_fenced else broker.brokers.reachable(context)
    operations = cluster_operations(broker, context) if message.include_cluster_authorized_operations else NOT_ASKED
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKERS,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.brokers.controller(),
        "brokers": [address._asdict() for address in addresses],
        "cluster_authorized_operations": operations,
    }
