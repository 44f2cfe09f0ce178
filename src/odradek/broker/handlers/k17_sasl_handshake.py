"""SaslHandshake 0–1: the choice of a SASL mechanism. ``logins/states`` serves that of a login. Others are refused, as
in Kafka: those after a login that is not to be repeated, and those at a listener without SASL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (0, 1)


def handle(broker: BrokerServices, context: Context, message: SaslHandshakeRequest) -> dict[str, object]:
    return {"error_code": ErrorCode.illegal_sasl_state, "mechanisms": ()}
