"""DescribeAcls 1–3: returns the ACLs that a filter selects.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.limits.reply_memory import Hangup
from odradek.catalog.acls import AclFilter
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode
from odradek.core.pace import Pace

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsFilter
    from kio.schema.describe_acls.v3.request import DescribeAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.core.access.acl import Acl
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 3)
NO_AUTHORIZER = (
    "This broker has no authorizer and no ACLs: all clients are allowed to do everything. Set authorizer.class.name."
)
UNKNOWN = 0
"""Kafka's code for an unknown type, pattern, operation or permission. Kafka closes the connection of such a request."""


def check_known(*codes: int) -> None:
    """Raises Hangup if one of the codes is ``UNKNOWN``."""
    if UNKNOWN in codes:
        raise Hangup("an ACL request has an unknown type, pattern, operation or permission")


def filter_of(row: DeleteAclsFilter | DescribeAclsRequest) -> AclFilter:
    """Returns the filter in a request. Raises Hangup."""
    types = row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type
    check_known(*types)
    resource_type, pattern, operation, permission = types
    return AclFilter(
        resource_type, row.resource_name_filter, pattern, row.principal_filter, row.host_filter, operation, permission
    )


def handle(
    broker: BrokerServices, context: Context, message: DescribeAclsRequest
) -> dict[str, object] | Steps[list[Chunk]]:
    chosen = filter_of(message)
    check_cluster(broker, context, Operation.DESCRIBE)
    if broker.authorizer is None:
        return {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER, "resources": ()}
    return _describe(broker, context, chosen)


def _describe(broker: BrokerServices, context: Context, chosen: AclFilter) -> Steps[list[Chunk]]:
    acls_by_resource: dict[tuple[int, str, int], list[Acl]] = {}
    pace = Pace()
    for acl in list(broker.catalog.acls().values()):  # another request may change them meanwhile
        if chosen.matches(acl):
            acls_by_resource.setdefault(acl[:3], []).append(acl)
        if pace.spend():
            yield None
    resources = elements(context, "resources")
    for (resource_type, name, pattern), acls in acls_by_resource.items():
        rows = elements(context, "resources", "acls")
        for acl in acls:
            rows.add(_entry(acl))
            yield None
        resources.add({"resource_type": resource_type, "resource_name": name, "pattern_type": pattern, "acls": rows})
    broker.leftovers.add(acls_by_resource)
    return reply(context, {"error_code": ErrorCode.none, "error_message": "", "resources": resources})


def _entry(acl: Acl) -> dict[str, object]:
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
