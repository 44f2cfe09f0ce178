"""AlterClientQuotas 0–1: sets and removes quotas of users, client ids and IP addresses.

A change takes effect at once and is durable (see broker/quotas).

* 1: flexible.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from odradek.broker.long_lists import STEP_ELEMENTS, count_in_steps, dict_in_steps
from odradek.broker.long_replies import elements, reply
from odradek.broker.metadata_log import ChangeTooLarge
from odradek.broker.quotas import CLIENT_ID, CLIENT_KEYS, CONNECTION_CREATION_RATE, IP, USER, WHOLE_NUMBERS
from odradek.broker.scheduler import value_of
from odradek.catalog.shard import AlterClientQuotas, Entity
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.pace import sorted_in_steps

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
_KNOWN = {USER, CLIENT_ID, IP}
_TYPES = ({USER}, {CLIENT_ID}, {USER, CLIENT_ID}, {IP})
MOST_TYPES = len(_KNOWN)
"""An entity with more types has an unknown one and is refused. Its rows are read in steps."""


class _Asked:
    """An entry of a request. ``key`` is the entity, or a digest of an entity with many types.

    ``wide`` has the names of such an entity by type, ``fault`` says why no quota may be set for the entity, and
    ``error`` why its change was refused.
    """

    __slots__ = ("entry", "error", "fault", "key", "wide")

    def __init__(self, entry: EntryData, key: Entity | bytes, fault: str, wide: dict[str, str | None] | None) -> None:
        self.entry = entry
        self.key = key
        self.fault = fault
        self.wide = wide
        self.error: KafkaError | None = None

    def names(self) -> Iterable[tuple[str, str | None]]:
        return self.key if isinstance(self.key, tuple) else (self.wide or {}).items()


def handle(broker: BrokerServices, context: Context, message: AlterClientQuotasRequest) -> Steps[list[Chunk]]:
    asked: list[_Asked] = []
    for entry in message.entries:
        asked.append((yield from _read(entry)))
        yield None
    times = yield from count_in_steps(each.key for each in asked)
    answered = yield from dict_in_steps((each.key, each) for each in asked)
    try:
        yield from _alter_all(broker, context, message, asked, times)
    except KafkaError as error:
        refusal = error.kept()
        for each in answered.values():
            each.error = refusal
            yield None
    entries = elements(context, "entries")
    for each in answered.values():
        entries.add((yield from _row(context, each)))
        if each.wide:
            broker.leftovers.add(each.wide)
        yield None
    broker.leftovers.add(times, answered, asked)
    return reply(context, {"entries": entries})


def _alter_all(
    broker: BrokerServices,
    context: Context,
    message: AlterClientQuotasRequest,
    asked: Sequence[_Asked],
    times: Mapping[Entity | bytes, int],
) -> Steps[None]:
    """Changes the quotas and sets the error of each refused entry. Raises KafkaError if all changes are refused."""

    def alter(change: Change) -> Steps[None]:
        for each in asked:
            try:
                if times[each.key] > 1:
                    raise KafkaError(ErrorCode.invalid_request, "Duplicate quota entries found for the same entity")
                if each.fault or not isinstance(each.key, tuple):
                    raise KafkaError(ErrorCode.invalid_request, each.fault)
                changes = yield from _changes(each.entry, each.key)
                yield from change.add(AlterClientQuotas(each.key, changes))
                broker.leftovers.add(changes)
            except ChangeTooLarge:
                raise
            except KafkaError as error:
                each.error = error.kept()
            yield None

    yield from value_of(broker.controller.write(alter, context, validate_only=message.validate_only))


def _row(context: Context, asked: _Asked) -> Steps[dict[str, Any]]:
    error = asked.error
    entity = elements(context, "entries", "entity")
    for kind, name in asked.names():
        entity.add({"entity_type": kind, "entity_name": name})
        if not len(entity) % STEP_ELEMENTS:
            yield None
    return {
        "error_code": error.code if error is not None else ErrorCode.none,
        "error_message": (error.message or None) if error is not None else None,
        "entity": entity,
    }


def _read(entry: EntryData) -> Steps[_Asked]:
    """Reads the entity of an entry. An entity with more types than exist is compared by a digest."""
    if len(entry.entity) <= MOST_TYPES:
        names = {row.entity_type: row.entity_name for row in entry.entity}
    else:
        names = yield from dict_in_steps((row.entity_type, row.entity_name) for row in entry.entity)
    if len(names) <= MOST_TYPES:
        entity = tuple(sorted(names.items()))
        return _Asked(entry, entity, _fault(entity), None)
    digest, unknown = blake2b(), ""
    for number, kind in enumerate((yield from sorted_in_steps(names)), 1):
        digest.update(repr((kind, names[kind])).encode())
        if not unknown and kind not in _KNOWN:
            unknown = kind
        if not number % STEP_ELEMENTS:
            yield None
    return _Asked(entry, digest.digest(), f"Unhandled client quota entity type: {unknown}", names)


def _fault(entity: Entity) -> str:
    """Returns why no quota may be set for an entity, or ""."""
    names = dict(entity)
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
