"""DescribeAcls 1–3: refused with SECURITY_DISABLED, because this broker has no authorizer and no ACLs.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.broker.limits.reply_memory import Hangup
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context

VERSIONS = (1, 3)
NO_AUTHORIZER = "This broker has no authorizer and no ACLs: all clients are allowed to do everything."
UNKNOWN = 0
"""Kafka's code for an unknown type, pattern, operation or permission. Kafka closes the connection of such a request."""


def check_known(*codes: int) -> None:
    """Raises Hangup if one of the codes is ``UNKNOWN``."""
    if UNKNOWN in codes:
        raise Hangup("an ACL request has an unknown type, pattern, operation or permission")


def handle(broker: BrokerServices, context: Context, message: DescribeAclsRequest) -> dict[str, Any]:
    check_known(message.resource_type_filter, message.pattern_type_filter, message.operation, message.permission_type)
    return {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "resources": ()}
