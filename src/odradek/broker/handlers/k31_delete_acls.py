"""DeleteAcls 1–3: refused with SECURITY_DISABLED, because this broker has no authorizer and no ACLs.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.k29_describe_acls import NO_AUTHORIZER, check_known
from odradek.broker.handlers.long_replies import elements, reply
from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 3)


def handle(broker: BrokerServices, context: Context, message: DeleteAclsRequest) -> Steps[list[Chunk]]:
    results = elements(context, "filter_results")
    refused = {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "matching_acls": ()}
    for rule in message.filters:
        check_known(rule.resource_type_filter, rule.pattern_type_filter, rule.operation, rule.permission_type)
        results.add(refused)
        yield None
    return reply(context, {"filter_results": results})
