"""SaslAuthenticate 0–2: a step of a SASL login. ``logins/states`` serves the steps of logins. Others are refused, as in
Kafka: those after a login, and those at a listener without SASL.

* 1: session lifetime.
* 2: flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_authenticate.v2.request import SaslAuthenticateRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 2)


def handle(broker: BrokerServices, context: Context, message: SaslAuthenticateRequest) -> dict[str, object]:
    return {
        "error_code": ErrorCode.illegal_sasl_state,
        "error_message": "SaslAuthenticate request received after successful authentication",
        "auth_bytes": b"",
    }
