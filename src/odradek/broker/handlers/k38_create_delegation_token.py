"""CreateDelegationToken 1–3: makes a token by which a program logs in as its owner (KIP-48, KIP-373).

* 2: flexible.
* 3: a token for another user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed
from odradek.broker.loop.scheduler import value_of
from odradek.catalog.tokens import MAX_RENEWERS, PutToken
from odradek.core.access.acl import Operation, Resource
from odradek.core.errors import ErrorCode, KafkaError
from odradek.security.principal import USER, Principal, may_use_tokens
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change

VERSIONS = (1, 3)
LISTENERS = ("client", "controller")
NEVER = -1
_TIMES = ("issue_timestamp", "expiry_timestamp", "max_timestamp")
_BY_THE_BROKER = (
    ErrorCode.delegation_token_request_not_allowed,
    ErrorCode.delegation_token_authorization_failed,
    ErrorCode.invalid_principal_type,
)


def handle(broker: BrokerServices, context: Context, message: CreateDelegationTokenRequest) -> Steps[dict[str, object]]:
    owner = requester = context.principal
    if context.version >= 3 and message.owner_principal_name:
        owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
    reply = {
        "principal_type": owner.kind,
        "principal_name": owner.name,
        "token_requester_principal_type": requester.kind,
        "token_requester_principal_name": requester.name,
        "issue_timestamp": NEVER,
        "expiry_timestamp": NEVER,
        "max_timestamp": NEVER,
        "token_id": "",
        "hmac": b"",
    }
    try:
        return reply | (yield from _create(broker, context, message, owner))
    except KafkaError as error:
        # As in Kafka: a refusal by the controller has other times than one by the broker.
        times = {} if error.code in _BY_THE_BROKER else dict.fromkeys(_TIMES, 0)
        return reply | times | {"error_code": error.code}


def _create(
    broker: BrokerServices, context: Context, message: CreateDelegationTokenRequest, owner: Principal
) -> Steps[dict[str, object]]:
    """Returns the fields of the new token. Raises KafkaError."""
    check_requester(context)
    requester = str(context.principal)
    if str(owner) != requester and not is_allowed(broker, context, Operation.CREATE_TOKENS, Resource.USER, str(owner)):
        raise KafkaError(ErrorCode.delegation_token_authorization_failed)
    tokens = broker.tokens
    if tokens is not None and len(message.renewers) > MAX_RENEWERS:
        raise KafkaError(ErrorCode.policy_violation)
    renewers: list[str] = []
    for row in message.renewers:
        if row.principal_type != USER:
            raise KafkaError(ErrorCode.invalid_principal_type)
        if tokens is not None:
            renewers.append(f"{row.principal_type}:{row.principal_name}")
        yield None
    if tokens is None:
        raise KafkaError(ErrorCode.delegation_token_auth_disabled)

    from odradek.broker.metadata_log.mark import encode_id
    from odradek.core.access.delegation_token import DelegationToken

    now_ms = broker.now_ms()
    last_ms, end_ms = tokens.times.of_new(now_ms, milliseconds(message.max_lifetime))
    token_id = encode_id(broker.new_uuid())
    token = DelegationToken(str(owner), requester, tuple(renewers), now_ms, last_ms, end_ms, token_id)

    def create(change: Change) -> Steps[None]:
        yield from change.add(PutToken(token))

    yield from value_of(broker.controller.write(create, context))
    return {
        "error_code": ErrorCode.none,
        "issue_timestamp": now_ms,
        "expiry_timestamp": end_ms,
        "max_timestamp": last_ms,
        "token_id": token_id,
        "hmac": tokens.secret(token_id),
    }


def check_requester(context: Context) -> None:
    """Raises KafkaError (DELEGATION_TOKEN_REQUEST_NOT_ALLOWED) for a client that has not logged in, or by a token."""
    listener = context.connection.listener
    if listener is None or not may_use_tokens(context.principal, listener.protocol):
        raise KafkaError(ErrorCode.delegation_token_request_not_allowed)
