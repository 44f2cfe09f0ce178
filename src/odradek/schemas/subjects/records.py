"""The records of a registry's topic, in the JSON of Confluent's registry.

Source: the classes ``SchemaKey``, ``SchemaValue``, ``ConfigKey`` and so on of confluentinc/schema-registry 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from odradek.schemas.json_text import compact

SCHEMA, CONFIG, MODE, NOOP = "SCHEMA", "CONFIG", "MODE", "NOOP"
DELETE_SUBJECT, CLEAR_SUBJECT, CONTEXT = "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONTEXT"
_OF_SUBJECT = (CONFIG, MODE, DELETE_SUBJECT, CLEAR_SUBJECT)
TENANT = "default"
"""A registry of one's own has one tenant."""


class RegistryKey(NamedTuple):
    """The key of a record. ``subject``: None in the keys of the global config and mode, and in NOOP; the name of the
    context in CONTEXT. ``version``: of SCHEMA only."""

    kind: str
    subject: str | None = None
    version: int | None = None


class RegistryRecord(NamedTuple):
    """A record. ``value``: the fields of its JSON; None for a tombstone, and for NOOP."""

    key: RegistryKey
    value: Mapping[str, Any] | None


def encode_key(key: RegistryKey) -> bytes:
    """Returns the bytes of a key. Confluent's order of fields makes equal keys equal bytes, as compaction needs."""
    fields: dict[str, object] = {"keytype": key.kind}
    if key.kind == CONTEXT:
        fields |= {"tenant": TENANT, "context": key.subject}
    elif key.subject is not None:
        fields["subject"] = key.subject
    if key.version is not None:
        fields["version"] = key.version
    return compact(fields | {"magic": 1 if key.kind == SCHEMA else 0}).encode()


def encode_value(value: Mapping[str, object] | None) -> bytes | None:
    return None if value is None else compact(value).encode()


def decode(key: bytes | None, value: bytes | None) -> RegistryRecord | None:
    """Returns a record; None for bytes that are no record of a registry, which Confluent's registry ignores, too."""
    try:
        fields = json.loads(key or b"")
        content = json.loads(value) if value else None
    except ValueError:
        return None
    if not isinstance(fields, dict) or not (content is None or isinstance(content, dict)):
        return None
    found = _key(fields)
    if found is None or (found.kind == SCHEMA and content is not None and not _is_schema(content)):
        return None
    return RegistryRecord(found, content)


def _key(fields: Mapping[str, Any]) -> RegistryKey | None:
    kind, subject, version = fields.get("keytype"), fields.get("subject"), fields.get("version")
    if kind == SCHEMA:
        is_whole = isinstance(subject, str) and isinstance(version, int) and fields.get("magic") in (0, 1)
        return RegistryKey(kind, subject, version) if is_whole else None
    if kind in _OF_SUBJECT:
        return RegistryKey(str(kind), subject if isinstance(subject, str) else None)
    if kind == CONTEXT:
        return RegistryKey(kind, str(fields.get("context")))
    return RegistryKey(kind) if kind == NOOP else None


def with_used_ids(newest: Mapping[str, int]) -> RegistryRecord:
    """Returns a NOOP record with the newest id of each context. Confluent's registry ignores its value."""
    return RegistryRecord(RegistryKey(NOOP), {"newestIds": dict(sorted(newest.items()))})


def used_ids(value: Mapping[str, object] | None) -> dict[str, int]:
    """Returns the newest ids that a NOOP record has; none in one of Confluent's registry."""
    found = (value or {}).get("newestIds")
    return {str(name): one for name, one in found.items() if isinstance(one, int)} if isinstance(found, dict) else {}


def _is_schema(value: Mapping[str, object]) -> bool:
    return isinstance(value.get("id"), int) and isinstance(value.get("schema"), str)
