"""AddRaftVoter 0–1: adds a voter of the metadata log. This broker checks the request, but cannot add a voter.

* 1: a flag that asks for a reply after the commit of the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.k55_describe_quorum import LISTENER
from odradek.catalog.features import KRAFT
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.add_raft_voter.v1.request import AddRaftVoterRequest
    from kio.schema.remove_raft_voter.v0.request import RemoveRaftVoterRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 1)
LISTENERS = ("client", "controller")


def check_voter(broker: BrokerServices, message: AddRaftVoterRequest | RemoveRaftVoterRequest) -> None:
    """Raises KafkaError if a request is for another cluster or its voter is invalid."""
    if message.cluster_id not in (None, broker.cluster_id):
        text = f"This is the cluster {broker.cluster_id}, not {message.cluster_id}."
        raise KafkaError(ErrorCode.inconsistent_cluster_id, text)
    if message.voter_id < 0 or message.voter_directory_id is None:
        raise KafkaError(ErrorCode.invalid_request, "A voter needs a directory id and an id that is not negative.")


def _quorum_listener(broker: BrokerServices) -> str:
    """Returns the listener by which the voters reach each other: the first one of the controller."""
    from odradek.broker.settings.listener_settings import controller_listeners  # here, because it is seldom needed

    return next(iter(controller_listeners(broker.config.texts)), LISTENER)


def check_voters_change(broker: BrokerServices) -> None:
    """Raises KafkaError if the voters of the quorum cannot change."""
    if not broker.catalog.features().get(KRAFT):
        raise KafkaError(ErrorCode.unsupported_version, f"Voters cannot change while {KRAFT} is 0.")


def handle(broker: BrokerServices, context: Context, message: AddRaftVoterRequest) -> dict[str, object]:
    try:
        check_cluster(broker, context, Operation.ALTER)
        check_voter(broker, message)
        wanted = _quorum_listener(broker)
        if all(listener.name.upper() != wanted for listener in message.listeners):
            raise KafkaError(ErrorCode.invalid_request, f"A voter needs a listener {wanted}.")
        check_voters_change(broker)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message}
    if message.voter_id == broker.node_id:
        text = f"{message.voter_id} is already a voter."
        return {"error_code": ErrorCode.duplicate_voter, "error_message": text}
    text = "The new voter was not reached: the metadata log of this broker has only one voter."
    return {"error_code": ErrorCode.request_timed_out, "error_message": text}
