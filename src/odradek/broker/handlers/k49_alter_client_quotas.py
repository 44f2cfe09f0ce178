"""AlterClientQuotas 0–1: sets and removes quotas of users, client ids and IP addresses.

A change takes effect at once and is durable (see broker/quotas).

* 1: flexible.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odradek.broker.long_lists import count_in_steps
from odradek.broker.long_replies import elements, reply
from odradek.broker.metadata_log import ChangeTooLarge
from odradek.broker.quotas import CLIENT_ID, CLIENT_KEYS, CONNECTION_CREATION_RATE, IP, USER, WHOLE_NUMBERS
from odradek.broker.scheduler import value_of
from odradek.catalog.shard import AlterClientQuotas, Entity
from odradek.core.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from kio.schema.alter_client_quotas.v1.request import AlterClientQuotasRequest, EntryData

    from odradek.broker.api import BrokerServices, Context
    from odradek.broker.metadata_log import Change
    from odradek.broker.scheduler import Steps
    from odradek.wire.chunks import Chunk

VERSIONS = (0, 1)
_HOST_NAME = re.compile(r"[a-zA-Z0-9_]([a-zA-Z0-9_.-]*[a-zA-Z0-9_])?")
_MOST = 2.0**63
_ROUNDING = 1e-6
_TYPES = ({USER}, {CLIENT_ID}, {USER, CLIENT_ID}, {IP})


def handle(broker: BrokerServices, context: Context, message: AlterClientQuotasRequest) -> Steps[list[Chunk]]:
    times = yield from count_in_steps(_key(entry) for entry in message.entries)
    try:
        errors = yield from _alter_all(broker, context, message, times)
    except KafkaError as error:
        errors = dict.fromkeys(times, error.kept())
    entries = elements(context, "entries")
    for entity, refused in errors.items():
        entries.add(_row(entity, refused))
        yield None
    broker.leftovers.add(times, errors)
    return reply(context, {"entries": entries})


def _alter_all(
    broker: BrokerServices, context: Context, message: AlterClientQuotasRequest, times: Mapping[Entity, int]
) -> Steps[dict[Entity, KafkaError | None]]:
    """Returns for each entity the error of its change, or None. Raises KafkaError if all changes are refused."""

    def alter(change: Change) -> Steps[dict[Entity, KafkaError | None]]:
        errors: dict[Entity, KafkaError | None] = {}
        for entry in message.entries:
            refused = None
            try:
                if times[_key(entry)] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "Duplicate quota entries found for the same entity")
                yield from change.add(AlterClientQuotas(_entity(entry), _changes(entry)))
            except ChangeTooLarge:
                raise
            except KafkaError as error:
                refused = error.kept()
            errors[_key(entry)] = refused
            yield None
        return errors

    return (yield from value_of(broker.controller.write(alter, context, validate_only=message.validate_only)))


def _row(entity: Entity, error: KafkaError | None) -> dict[str, Any]:
    return {
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": (error.message or None) if error is not None else None,
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in dict(entity).items()],
    }


def _key(entry: EntryData) -> Entity:
    names = {row.entity_type: row.entity_name for row in entry.entity}
    return tuple(sorted(names.items()))


def _entity(entry: EntryData) -> Entity:
    """Returns the entity of an entry. Raises KafkaError if no quota may be set for it."""
    entity = _key(entry)
    names = dict(entity)
    fault = ""
    if not entity:
        fault = "Invalid empty client quota entity"
    elif unknown := names.keys() - {USER, CLIENT_ID, IP}:
        fault = f"Unhandled client quota entity type: {min(unknown)}"
    elif "" in names.values():
        fault = "Empty names are not supported."
    elif names.keys() not in _TYPES:
        fault = "Invalid client quota entity combination"
    elif IP in names and not _is_address(names[IP]):
        fault = f"{names[IP]} is not a valid IP or resolvable host."
    if fault:
        raise KafkaError(ErrorCode.invalid_request, fault)
    return entity


def _is_address(name: str | None) -> bool:
    """Returns whether a name is valid in an IP quota. Host names are not resolved: that could block the broker."""
    if name is None or _HOST_NAME.fullmatch(name):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _changes(entry: EntryData) -> dict[str, float | None]:
    """Returns the new value of each quota, None to remove it. Raises KafkaError."""
    allowed = (CONNECTION_CREATION_RATE,) if any(row.entity_type == IP for row in entry.entity) else CLIENT_KEYS
    changes: dict[str, float | None] = {}
    for op in entry.ops:
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
    return changes
