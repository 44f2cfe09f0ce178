"""RenewDelegationToken 1–2: lets a token end later, but not after its longest life.

* 2: flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.broker.handlers.k38_create_delegation_token import NEVER, check_requester
from odradek.broker.loop.scheduler import value_of
from odradek.catalog.tokens import PutToken, RemoveToken, TokenTimes
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.renew_delegation_token.v2.request import RenewDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.core.access.delegation_token import DelegationToken

    NewEnd = Callable[[TokenTimes, DelegationToken, str, int], DelegationToken | None]
    """Returns a token with another end; None if it ends at once. Raises KafkaError."""

VERSIONS = (1, 2)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: RenewDelegationTokenRequest) -> Steps[dict[str, object]]:
    def renewed(times: TokenTimes, token: DelegationToken, renewer: str, now_ms: int) -> DelegationToken:
        return times.renewed(token, renewer, now_ms, milliseconds(message.renew_period))

    return change_end(broker, context, bytes(message.hmac), renewed)


def change_end(broker: BrokerServices, context: Context, secret: bytes, new_end: NewEnd) -> Steps[dict[str, object]]:
    """Gives the token with the secret another end, and returns the reply."""
    try:
        check_requester(context)
    except KafkaError as error:
        return {"error_code": error.code, "expiry_timestamp": NEVER}
    tokens = broker.tokens
    if tokens is None:
        return {"error_code": ErrorCode.delegation_token_auth_disabled, "expiry_timestamp": 0}
    now_ms = broker.now_ms()

    def change_token(change: Change) -> Steps[int]:
        token = tokens.find(secret)
        if token is None:
            raise KafkaError(ErrorCode.delegation_token_not_found)
        changed = new_end(tokens.times, token, str(context.principal), now_ms)
        yield from change.add(RemoveToken(token.id) if changed is None else PutToken(changed))
        return now_ms if changed is None else changed.expiry_ms

    try:
        end_ms = yield from value_of(broker.controller.write(change_token, context))
    except KafkaError as error:
        return {"error_code": error.code, "expiry_timestamp": 0}
    return {"error_code": ErrorCode.none, "expiry_timestamp": end_ms}
