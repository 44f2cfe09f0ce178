"""ListPartitionReassignments 0: replicas on their way between brokers. With one broker there are never any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> dict[str, Any]:
    return {"error_code": ErrorCode.none, "error_message": None, "topics": []}
