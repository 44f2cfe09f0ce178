"""DescribeDelegationToken 1–3: returns tokens with their secrets: those of the user, and those that ACLs show.

* 2: flexible.
* 3: the user who requested a token.
"""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.handlers.k38_create_delegation_token import check_requester
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.core.access.delegation_token import DelegationToken
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 3)


def handle(
    broker: BrokerServices, context: Context, message: DescribeDelegationTokenRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    try:
        check_requester(context)
    except KafkaError as error:
        return {"error_code": error.code, "tokens": ()}
    tokens = broker.tokens
    if tokens is None:
        return {"error_code": ErrorCode.delegation_token_auth_disabled, "tokens": ()}
    return _describe(broker, context, message, tokens)


def _describe(
    broker: BrokerServices, context: Context, message: DescribeDelegationTokenRequest, tokens: DelegationTokens
) -> Steps[list[Chunk]]:
    owners: set[str] | None = None if message.owners is None else set()
    try:
        for row in message.owners or ():
            assert owners is not None
            owners.add(f"{row.principal_type}:{row.principal_name}")
            yield None
        results = elements(context, "tokens")
        for token in tuple(broker.catalog.tokens().values()) if owners is None or owners else ():
            if _is_shown(broker, context, token, owners):
                results.add(_row(token, tokens.secret(token.id)))
            yield None
    finally:  # the client may disconnect meanwhile
        if owners is not None:
            broker.leftovers.add(owners)
    return reply(context, {"error_code": ErrorCode.none, "tokens": results})


def _is_shown(broker: BrokerServices, context: Context, token: DelegationToken, owners: Set[str] | None) -> bool:
    if owners is not None and owners.isdisjoint((token.owner, token.requester, *token.renewers)):
        return False
    return (
        token.belongs_to(str(context.principal))
        or is_allowed(broker, context, Operation.DESCRIBE, Resource.DELEGATION_TOKEN, token.id)
        or is_allowed(broker, context, Operation.DESCRIBE_TOKENS, Resource.USER, token.owner)
    )


def _row(token: DelegationToken, secret: bytes) -> dict[str, object]:
    (owner_kind, _, owner), (kind, _, requester) = token.owner.partition(":"), token.requester.partition(":")
    renewers = [name.partition(":")[::2] for name in token.renewers]
    return {
        "principal_type": owner_kind,
        "principal_name": owner,
        "token_requester_principal_type": kind,
        "token_requester_principal_name": requester,
        "issue_timestamp": token.issue_ms,
        "expiry_timestamp": token.expiry_ms,
        "max_timestamp": token.max_ms,
        "token_id": token.id,
        "hmac": secret,
        "renewers": [{"principal_type": kind, "principal_name": name} for kind, name in renewers],
    }
