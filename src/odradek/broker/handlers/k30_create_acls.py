"""CreateAcls 1–3: adds ACLs. One that exists already is accepted and stays as it is.

* 2: flexible.
* 3: users as resources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.k29_describe_acls import NO_AUTHORIZER, check_known
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.catalog.acls import CreateAcl
from odradek.core.access.acl import Acl, Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.create_acls.v3.request import AclCreation, CreateAclsRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk

VERSIONS = (1, 3)
LISTENERS = ("client", "controller")


def handle(broker: BrokerServices, context: Context, message: CreateAclsRequest) -> Steps[list[Chunk]]:
    for row in message.creations:
        check_known(row.resource_type, row.resource_pattern_type, row.operation, row.permission_type)
        yield None
    errors: list[KafkaError | None] = []
    refusal: KafkaError | None = None
    try:
        check_cluster(broker, context, Operation.ALTER)
        if broker.authorizer is None:
            raise KafkaError(ErrorCode.security_disabled, NO_AUTHORIZER)
        yield from value_of(broker.controller.write(lambda change: _create(broker, change, message, errors), context))
    except KafkaError as error:  # nothing was written
        refusal = error.kept()
    results = elements(context, "results")
    for number in range(len(message.creations)):
        # A row that is refused by itself has its own error, also if the whole change is refused.
        own = errors[number] if number < len(errors) else None
        error_of_row = own or refusal
        results.add(
            {
                "error_code": ErrorCode.none if error_of_row is None else error_of_row.code,
                "error_message": None if error_of_row is None else error_of_row.message,
            }
        )
        yield None
    return reply(context, {"results": results})


def _create(
    broker: BrokerServices, change: Change, message: CreateAclsRequest, errors: list[KafkaError | None]
) -> Steps[None]:
    """Adds the new ACLs to the change, and to ``errors`` the error of each row or None."""
    added: set[Acl] = set()
    for row in message.creations:
        acl = _acl(row)
        try:
            if acl not in added:
                yield from change.add(CreateAcl(broker.new_uuid(), acl))
                added.add(acl)
            errors.append(None)
        except ChangeTooLarge:
            raise
        except KafkaError as error:
            errors.append(error.kept())
        yield None
    broker.leftovers.add(added)


def _acl(row: AclCreation) -> Acl:
    return Acl(
        row.resource_type,
        row.resource_name,
        row.resource_pattern_type,
        row.principal,
        row.host,
        row.operation,
        row.permission_type,
    )
