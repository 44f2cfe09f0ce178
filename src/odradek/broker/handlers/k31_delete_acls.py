"""DeleteAcls 1–3: removes the ACLs that filters select, and returns them.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.k29_describe_acls import NO_AUTHORIZER, check_known, filter_of
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import MAX_CHANGE_RECORDS
from odradek.catalog.acls import DeleteAcl, check_filter
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import Pace

if TYPE_CHECKING:
    from kio.schema.delete_acls.v3.request import DeleteAclsFilter, DeleteAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.catalog.records import Id16
    from odradek.core.access.acl import Acl
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (1, 3)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: DeleteAclsRequest) -> Steps[list[Chunk]]:
    for row in message.filters:
        check_known(row.resource_type_filter, row.pattern_type_filter, row.operation, row.permission_type)
        yield None
    results = elements(context, "filter_results")

    def delete(change: Change) -> Steps[None]:
        gone: dict[Id16, None] = {}
        for row in message.filters:
            results.add((yield from _delete_one(broker, context, row, gone)))
        for acl_id in gone:
            yield from change.add(DeleteAcl(acl_id))
        broker.leftovers.add(gone)

    try:
        check_cluster(broker, context, Operation.ALTER)
        if broker.authorizer is None:
            raise KafkaError(ErrorCode.security_disabled, NO_AUTHORIZER)
        yield from value_of(broker.controller.write(delete, context))
    except KafkaError as error:  # nothing was written
        refused = _row(error)
        results = elements(context, "filter_results")
        for _ in message.filters:
            results.add(refused)
            yield None
    return reply(context, {"filter_results": results})


def _delete_one(
    broker: BrokerServices, context: Context, row: DeleteAclsFilter, gone: dict[Id16, None]
) -> Steps[dict[str, object]]:
    """Returns a filter's row of the reply, and adds the ids of its ACLs to ``gone``.

    Raises KafkaError (INVALID_REQUEST) for more ACLs than one request may delete.
    """
    chosen = filter_of(row)
    try:
        check_filter(chosen)
    except KafkaError as error:
        return _row(error)
    matching = elements(context, "filter_results", "matching_acls")
    pace = Pace()
    for acl_id, acl in broker.catalog.acls().items():  # no other change runs
        if chosen.matches(acl):
            gone[acl_id] = None
            if len(gone) > MAX_CHANGE_RECORDS:
                text = f"Cannot remove more than {MAX_CHANGE_RECORDS} acls in a single delete operation."
                raise KafkaError(ErrorCode.invalid_request, text)
            matching.add(_matching(acl))
        if pace.spend():
            yield None
    return _row(None, matching)


def _row(error: KafkaError | None, matching: Elements | tuple[()] = ()) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none if error is None else error.code,
        "error_message": None if error is None else error.message,
        "matching_acls": matching,
    }


def _matching(acl: Acl) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": acl.resource_type,
        "resource_name": acl.name,
        "pattern_type": acl.pattern,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation,
        "permission_type": acl.permission,
    }
