"""ListPartitionReassignments 0: replicas on their way between brokers. With one broker there are never any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.api import BrokerServices, Context

VERSIONS = (0, 0)


def handle(broker: BrokerServices, context: Context, message: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}
