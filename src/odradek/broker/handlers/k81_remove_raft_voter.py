"""RemoveRaftVoter 0: refused, because this broker is the only voter of the metadata log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.k80_add_raft_voter import check_voter, check_voters_change
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 0)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: RemoveRaftVoterRequest) -> dict[str, object]:
    try:
        check_cluster(broker, context, Operation.ALTER)
        check_voter(broker, message)
        check_voters_change(broker)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    text = f"{message.voter_id} is not a voter that can be removed."
    return {"error_code": ErrorCode.voter_not_found, "error_message": text}
