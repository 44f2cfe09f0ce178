"""DescribeClientQuotas 0–1: returns the quotas whose entities match a filter.

For each entity type, a filter has an exact name, the default (the quota of all clients without a quota of their own),
or any name. A strict filter excludes quotas whose entity has further types.

* 1: flexible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import is_allowed_for_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.limits.quotas import CLIENT_ID, IP, USER
from odradek.broker.loop.long_lists import STEP_ELEMENTS
from odradek.catalog.state import Entity
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.describe_client_quotas.v1.request import ComponentData, DescribeClientQuotasRequest

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 1)
EXACT, DEFAULT, ANY = 0, 1, 2
Filter = dict[str, tuple[int, str | None]]


def handle(broker: BrokerServices, context: Context, message: DescribeClientQuotasRequest) -> Steps[list[Chunk]]:
    asked: Filter = {}
    if not is_allowed_for_cluster(broker, context, Operation.DESCRIBE_CONFIGS):
        code = ErrorCode.cluster_authorization_failed
        return reply(context, {"error_code": code, "error_message": None, "entries": None})
    try:
        yield from _read(message.components, asked)
    except KafkaError as error:
        broker.leftovers.add(asked)
        return reply(context, {"error_code": error.code, "error_message": error.message, "entries": None})
    entries = elements(context, "entries")
    for entity, limits in list(broker.catalog.quotas().items()):
        if _matches(entity, asked, strict=message.strict):
            entries.add(
                {
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
                    "values": [{"key": key, "value": value} for key, value in limits.items()],
                }
            )
        yield None
    return reply(context, {"error_code": ErrorCode.none, "error_message": "", "entries": entries})


def _read(components: Iterable[ComponentData], asked: Filter) -> Steps[None]:
    """Reads the filter by entity type into ``asked``. Raises KafkaError if it is invalid.

    A valid filter has few components. The fault of an invalid one may be in its last component.
    """
    for number, component in enumerate(components, 1):
        kind, match_type, name = component.entity_type, component.match_type, component.match
        fault = ""
        if not kind:
            fault = "Unexpected empty filter component entity type"
        elif kind in asked:
            fault = f"Entity type {kind} cannot appear more than once in the filter"
        elif match_type == EXACT and name is None:
            fault = "Request specified MATCH_TYPE_EXACT, but set the match string to null."
        elif match_type in (DEFAULT, ANY) and name is not None:
            fault = "Request specified a match string where its match type takes none."
        elif match_type not in (EXACT, DEFAULT, ANY):
            fault = f"Unknown match type {match_type}"
        if fault:
            raise KafkaError(ErrorCode.invalid_request, fault)
        asked[kind] = (match_type, name)
        if not number % STEP_ELEMENTS:
            yield None
    for kind in asked:  # at most three of them are known
        if kind not in (USER, CLIENT_ID, IP):
            raise KafkaError(ErrorCode.unsupported_version, f"Unsupported entity type {kind}")
    if IP in asked and len(asked) > 1:
        raise KafkaError(ErrorCode.invalid_request, "Entity type ip cannot be combined with others in the filter")


def _matches(entity: Entity, asked: Filter, *, strict: bool) -> bool:
    names = dict(entity)
    if strict and names.keys() - asked.keys():
        return False
    for kind, (match_type, name) in asked.items():
        if kind not in names:
            return False
        if (match_type == EXACT and names[kind] != name) or (match_type == DEFAULT and names[kind] is not None):
            return False
    return True
