"""ExpireDelegationToken 1 and 2: ends a token. Only a client that has logged in may do that. Version 2 is flexible."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.k38_create_delegation_token import NEVER
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest

    from odradek.broker.api import BrokerServices, Context

VERSIONS = (1, 2)


def handle(broker: BrokerServices, context: Context, message: ExpireDelegationTokenRequest) -> dict[str, Any]:
    return {"error_code": ErrorCode.delegation_token_request_not_allowed, "expiry_timestamp": NEVER}
