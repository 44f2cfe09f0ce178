"""ExpireDelegationToken 1–2: refused, because only authenticated clients may have delegation tokens.

* 2: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.handlers.k38_create_delegation_token import NEVER
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (1, 2)


def handle(broker: BrokerServices, context: Context, message: ExpireDelegationTokenRequest) -> dict[str, Any]:
    return {"error_code": ErrorCode.delegation_token_request_not_allowed, "expiry_timestamp": NEVER}
