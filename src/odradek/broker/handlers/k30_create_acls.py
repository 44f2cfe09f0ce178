"""CreateAcls 1–3: refused with SECURITY_DISABLED, because this broker has no authorizer.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.k29_describe_acls import NO_AUTHORIZER, check_known
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import CreateAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 3)


def handle(broker: BrokerServices, context: Context, message: CreateAclsRequest) -> Steps[list[Chunk]]:
    results = elements(context, "results")
    refused = {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER}
    for rule in message.creations:
        check_known(rule.resource_type, rule.resource_pattern_type, rule.operation, rule.permission_type)
        results.add(refused)
        yield None
    return reply(context, {"results": results})
