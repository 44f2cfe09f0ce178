"""CreateDelegationToken 1–3: refused, because only authenticated clients may have delegation tokens.

* 2: flexible.
* 3: a token for another user.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode
from odradek.security.principal import Principal

if TYPE_CHECKING:
    from kio.schema.create_delegation_token.v3.request import CreateDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (1, 3)
NEVER = -1


def handle(broker: BrokerServices, context: Context, message: CreateDelegationTokenRequest) -> dict[str, Any]:
    owner = requester = context.principal
    if context.version >= 3 and message.owner_principal_name:
        owner = Principal(message.owner_principal_type or "", message.owner_principal_name)
    return {
        "error_code": ErrorCode.delegation_token_request_not_allowed,
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
