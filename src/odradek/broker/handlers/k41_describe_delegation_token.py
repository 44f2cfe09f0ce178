"""DescribeDelegationToken 1–3: refused, because only authenticated clients may have delegation tokens.

* 2: flexible.
* 3: the user who requested a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_delegation_token.v3.request import DescribeDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (1, 3)


def handle(broker: BrokerServices, context: Context, message: DescribeDelegationTokenRequest) -> dict[str, Any]:
    return {"error_code": ErrorCode.delegation_token_request_not_allowed, "tokens": ()}
