"""DescribeUserScramCredentials 0: returns the SCRAM mechanisms and iterations of users, without salts and keys."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 0)


def handle(
    broker: BrokerServices, context: Context, message: DescribeUserScramCredentialsRequest
) -> Steps[list[Chunk]]:
    if not is_allowed_for_cluster(broker, context, Operation.DESCRIBE):
        return (yield from _refused(context, message))
    asked = Counter(() if message.users else list(broker.catalog.users()))
    for user in message.users or ():
        asked[user.name] += 1
        yield None
    results = elements(context, "results")
    for name, times in asked.items():
        results.add({"user": name} | _described(broker, name, times))
        yield None
    return reply(context, {"error_code": ErrorCode.none, "error_message": "", "results": results})


def _refused(context: Context, message: DescribeUserScramCredentialsRequest) -> Steps[list[Chunk]]:
    """Returns the reply to a client that may not describe the cluster: as many rows as users, without names."""
    error = {"error_code": ErrorCode.cluster_authorization_failed, "error_message": None}
    results = elements(context, "results")
    for _ in message.users or ():
        results.add(error | {"user": "", "credential_infos": ()})
        yield None
    return reply(context, error | {"results": results})


def _described(broker: BrokerServices, user: str, times: int) -> dict[str, object]:
    if times > 1:
        text = "The request has this user more than once."
        return {"error_code": ErrorCode.duplicate_resource, "error_message": text, "credential_infos": ()}
    credentials = broker.catalog.users().get(user)
    if not credentials:
        text = "This user has no SCRAM credentials."
        return {"error_code": ErrorCode.resource_not_found, "error_message": text, "credential_infos": ()}
    rows = [{"mechanism": kind, "iterations": kept.iterations} for kind, kept in credentials.items()]
    return {"error_code": ErrorCode.none, "error_message": "", "credential_infos": rows}
