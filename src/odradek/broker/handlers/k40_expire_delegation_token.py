"""ExpireDelegationToken 1–2: lets a token end earlier or later. A negative time ends it at once.

* 2: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.k39_renew_delegation_token import change_end
from odradek.catalog.tokens import TokenTimes, ended
from odradek.wire.schemas import milliseconds

if TYPE_CHECKING:
    from kio.schema.expire_delegation_token.v2.request import ExpireDelegationTokenRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.core.access.delegation_token import DelegationToken

VERSIONS = (1, 2)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: ExpireDelegationTokenRequest) -> Steps[dict[str, object]]:
    def other_end(_: TokenTimes, token: DelegationToken, renewer: str, now_ms: int) -> DelegationToken | None:
        return ended(token, renewer, now_ms, milliseconds(message.expiry_time_period))

    return change_end(broker, context, bytes(message.hmac), other_end)
