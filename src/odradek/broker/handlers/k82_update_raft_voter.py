"""UpdateRaftVoter 0: a controller tells the leader of the quorum its listeners and versions. Refused here, because the
voters are fixed while ``kraft.version`` is 0.

A request with the directory of a voter ends the process of Apache Kafka 4.3's controller; this one refuses it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.update_raft_voter.v0.request import UpdateRaftVoterRequest

    from odradek.broker.handlers.api import Context, ControllerServices

VERSIONS = (0, 0)
LISTENERS = ("controller",)


def handle(controller: ControllerServices, context: Context, message: UpdateRaftVoterRequest) -> dict[str, object]:
    check_cluster(controller, context, Operation.CLUSTER_ACTION)
    quorum = controller.quorum
    host, port = controller.advertised_address(context)
    leader = {"leader_id": quorum.leader, "leader_epoch": quorum.epoch, "host": host, "port": port}
    return {"error_code": _refusal(controller, message), "current_leader": leader}


def _refusal(controller: ControllerServices, message: UpdateRaftVoterRequest) -> ErrorCode:
    epoch = controller.quorum.epoch
    if message.cluster_id not in (None, controller.cluster_id):
        return ErrorCode.inconsistent_cluster_id
    if message.current_leader_epoch != epoch:
        is_older = message.current_leader_epoch < epoch
        return ErrorCode.fenced_leader_epoch if is_older else ErrorCode.unknown_leader_epoch
    if message.voter_directory_id is None:
        return ErrorCode.invalid_request
    return ErrorCode.unsupported_version
