"""ListPartitionReassignments 0: returns no reassignments, because there is one broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.authorization import check_cluster
from odradek.core.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 0)


def handle(broker: BrokerServices, context: Context, message: ListPartitionReassignmentsRequest) -> dict[str, Any]:
    check_cluster(broker, context, Operation.DESCRIBE)
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}
