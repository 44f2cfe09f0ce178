"""AlterClientQuotas 0–1: sets and removes quotas of users, client ids and IP addresses.

A change takes effect at once and is durable (see broker/limits/quotas).

* 1: flexible.
"""

from __future__ import annotations

import ipaddress
import math
import re
from itertools import islice
from typing import TYPE_CHECKING

from odradek.broker.handlers.authorization import check_cluster
from odradek.broker.handlers.long_replies import elements, reply
from odradek.broker.limits.quotas import CLIENT_ID, CLIENT_KEYS, CONNECTION_CREATION_RATE, IP, USER, WHOLE_NUMBERS
from odradek.broker.loop.long_lists import STEP_ELEMENTS, count_in_steps
from odradek.broker.loop.scheduler import value_of
from odradek.broker.metadata.change import ChangeTooLarge
from odradek.catalog.state import AlterClientQuotas, Entity
from odradek.core.access.acl import Operation
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData

    from odradek.broker.handlers.api import BrokerServices, Context
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.change import Change
    from odradek.wire.chunks import Chunk
    from odradek.wire.elements import Elements

VERSIONS = (0, 1)
LISTENERS = ("client", "controller")
_HOST_NAME = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?")
_MOST = 2.0**63
_ROUNDING = 1e-6
_KNOWN = {USER, CLIENT_ID, IP}
_TYPES = ({USER}, {CLIENT_ID}, {USER, CLIENT_ID}, {IP})
MOST_ROWS = 1000
"""An entity with more rows is refused, and its rows are not read. Kafka knows three types."""

_TWICE = "Duplicate quota entries found for the same entity"


def handle(broker: BrokerServices, context: Context, message: AlterClientQuotasRequest) -> Steps[list[Chunk]]:
    times = yield from count_in_steps(_entity(entry) for entry in message.entries)
    entries = elements(context, "entries")
    try:
        check_cluster(broker, context, Operation.ALTER_CONFIGS)
        yield from _alter_all(broker, context, message, times, entries)
    except KafkaError as error:  # nothing was written
        refusal = error.kept()
        entries = elements(context, "entries")
        for entity in times:
            entries.add(_row(entity, refusal))
            yield None
    finally:
        broker.leftovers.add(times)
    return reply(context, {"entries": entries})


def _alter_all(
    broker: BrokerServices,
    context: Context,
    message: AlterClientQuotasRequest,
    times: dict[Entity, int],
    entries: Elements,
) -> Steps[None]:
    """Changes the quotas and adds a row for each entity. Raises KafkaError if all changes are refused."""

    def alter(change: Change) -> Steps[None]:
        for entry in message.entries:
            entity = _entity(entry)
            count = times[entity]
            if count:
                error = yield from _alter(broker, change, entry, entity, count)
                entries.add(_row(entity, error))
            if count > 1:
                times[entity] = 0  # the entity has its row
            yield None

    yield from value_of(broker.controller.write(alter, context, validate_only=message.validate_only))


def _alter(
    broker: BrokerServices, change: Change, entry: EntryData, entity: Entity, count: int
) -> Steps[KafkaError | None]:
    """Adds the new quotas of an entity to the change. Returns the error if they are refused."""
    try:
        if fault := _TWICE if count > 1 else _fault(entity, len(entry.entity)):
            raise KafkaError(ErrorCode.invalid_request, fault)
        changes = yield from _changes(entry, entity)
        yield from change.add(AlterClientQuotas(entity, changes))
        broker.leftovers.add(changes)
    except ChangeTooLarge:
        raise
    except KafkaError as error:
        return error.kept()
    return None


def _row(entity: Entity, error: KafkaError | None) -> dict[str, object]:
    return {
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": (error.message or None) if error is not None else None,
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
    }


def _entity(entry: EntryData) -> Entity:
    """Returns the entity of an entry. Of several names of one type the last counts, as in Kafka.

    Of an entity with too many rows, which is refused, only the first ones are read."""
    return tuple(sorted({row.entity_type: row.entity_name for row in islice(entry.entity, MOST_ROWS)}.items()))


def _fault(entity: Entity, rows: int) -> str:
    """Returns why no quota may be set for an entity that a request names in ``rows`` rows, or ""."""
    names = dict(entity)
    if rows > MOST_ROWS:
        return f"The entity has {rows} rows. An entity has at most two types."
    if not entity:
        return "Invalid empty client quota entity"
    if unknown := names.keys() - _KNOWN:
        return f"Unhandled client quota entity type: {min(unknown)}"
    if "" in names.values():
        return "Empty names are not supported."
    if names.keys() not in _TYPES:
        return "Invalid client quota entity combination"
    if IP in names and not _is_address(names[IP]):
        return f"{names[IP]} is not a valid IP or resolvable host."
    return ""


def _is_address(name: str | None) -> bool:
    """Returns whether a name is valid in an IP quota. Host names are not resolved: that could block the broker."""
    if name is None or _HOST_NAME.fullmatch(name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _changes(entry: EntryData, entity: Entity) -> Steps[dict[str, float | None]]:
    """Returns the new value of each quota, None to remove it. Raises KafkaError."""
    allowed = (CONNECTION_CREATION_RATE,) if any(kind == IP for kind, _ in entity) else CLIENT_KEYS
    changes: dict[str, float | None] = {}
    for number, op in enumerate(entry.ops, 1):
        fault = ""
        if op.key in changes:
            fault = f"Duplicate quota key {op.key}"
        elif not op.remove and op.key not in allowed:
            fault = f"Invalid configuration key {op.key}"
        elif not op.remove and not (op.value > 0 and math.isfinite(op.value)):
            fault = f"Quota {op.key} must be greater than 0"
        elif not op.remove and op.key in WHOLE_NUMBERS and op.value > _MOST:
            fault = f"Proposed value for {op.key} is too large for a LONG."
        elif not op.remove and op.key in WHOLE_NUMBERS and op.value % 1.0 > _ROUNDING:
            fault = f"{op.key} cannot be a fractional value."
        if fault:
            raise KafkaError(ErrorCode.invalid_request, fault)
        changes[op.key] = None if op.remove else float(op.value)
        if not number % STEP_ELEMENTS:
            yield None
    return changes
