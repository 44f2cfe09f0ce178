"""DeleteGroups 0 to 2. 1: nothing new on the wire. 2: flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.deferred import Deferred, gather
from odradek.core.errors import ErrorCode
from odradek.groups.messages import DeleteGroups

if TYPE_CHECKING:
    from odradek.broker.router import Context
    from odradek.broker.server import BrokerServer


def handle(broker: BrokerServer, context: Context, message: Any) -> Deferred[dict[str, Any]]:
    by_partition: dict[int, list[str]] = {}
    for group_id in dict.fromkeys(message.groups_names):
        by_partition.setdefault(broker.runtime.group_partition(group_id), []).append(group_id)
    answers: list[Deferred[list[tuple[str, ErrorCode]]]] = [
        broker.runtime.submit(index, DeleteGroups(group_ids)) for index, group_ids in by_partition.items()
    ]
    return gather(answers).map(_pack)


def _pack(answers: list[list[tuple[str, ErrorCode]]]) -> dict[str, Any]:
    return {
        "results": [{"group_id": group_id, "error_code": error} for answer in answers for group_id, error in answer]
    }
