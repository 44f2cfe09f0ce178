"""What a Delta table demands of its writers, by its protocol, its properties and its columns.

A pipeline writes a table only if its micro-batches meet all demands. It checks no constraints, computes no columns, and
writes files with the names of the table's columns. So a table that needs more is refused, with one line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.state import ANOTHER_TABLE, NEVER_NULL
from odradek.text.json_depth import parse_json
from odradek.text.table_paths import COLUMN_MAPPING

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log

_CONSTRAINT = "delta.constraints."
_INVARIANTS = "delta.invariants"
_GENERATED = "delta.generationExpression"
_IDENTITY = "delta.identity."
_OTHERWISE = f"or {ANOTHER_TABLE}"
_IDENTITY_VERSION, _FEATURES_VERSION = 6, 7
"""The writer versions that demand identity columns, and a list of features. Each version demands what the ones before
it do, except the last."""
_FEATURES = frozenset(
    {
        "appendOnly", "invariants", "checkConstraints", "generatedColumns", "columnMapping", "changeDataFeed",
        "deletionVectors", "timestampNtz", "v2Checkpoint", "variantType", "variantType-preview",
    }
)  # fmt: skip
"""Features that an added file cannot violate, or whose use ``_wrong_property`` and ``_wrong_column`` find. deltalake
(1.6) commits to tables with these."""


def check_supported(log: Log, name: str) -> None:
    """Raises ConfigError if the micro-batches of a pipeline would violate what the newest version that ``log`` has
    read demands of writers. ``name``: the table's name for messages."""
    columns = parse_json(log.schema().to_json())["fields"]
    wrong = (
        _wrong_property(log.metadata().configuration)
        or next((found for column in columns if (found := _wrong_column(column))), None)
        or _wrong_feature(log)
    )
    if wrong is not None:
        raise ConfigError(f"the Delta table {name} {wrong}, {_OTHERWISE}")


def _wrong_property(properties: Mapping[str, str]) -> str | None:
    mode = properties.get(COLUMN_MAPPING, "none")
    if mode != "none":
        return (
            f"has column mapping ({COLUMN_MAPPING} is {mode}), and its readers would find only nulls in the files of a "
            "pipeline: rewrite it without column mapping"
        )
    for key in sorted(properties):
        if key.startswith(_CONSTRAINT):
            constraint = key.removeprefix(_CONSTRAINT)
            return (
                f"has the CHECK constraint {constraint} ({properties[key]}), and pipelines do not check constraints: "
                f"remove it (ALTER TABLE … DROP CONSTRAINT {constraint})"
            )
    return None


def _wrong_column(column: Mapping[str, Any]) -> str | None:
    parts = list(_parts(column, column["name"]))
    for at, part in parts:
        metadata = part.get("metadata", {})
        if _INVARIANTS in metadata:
            return (
                f"has an invariant of column {at} ({_expression(metadata[_INVARIANTS])}), which pipelines do not "
                "check: remove it"
            )
        if _GENERATED in metadata:
            return f"has the generated column {at} ({metadata[_GENERATED]}), which pipelines do not compute: drop it"
        if any(key.startswith(_IDENTITY) for key in metadata):
            return f"has the identity column {at}, which pipelines do not number: drop it"
    for at, part in parts:
        if part.get("nullable") is False and at not in NEVER_NULL:
            return (
                f"has the column {at} NOT NULL, which pipelines may leave null: remove that "
                f"(ALTER TABLE … ALTER COLUMN {at} DROP NOT NULL)"
            )
    return None


def _parts(kind: object, name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name and the description of a column, and of all fields, elements and values in it."""
    if not isinstance(kind, dict):
        return
    yield name, kind
    for flag, part in (("containsNull", "element"), ("valueContainsNull", "value")):
        if flag in kind:
            yield f"{name}.{part}", {"nullable": kind[flag]}
    for field in kind.get("fields", ()):
        yield from _parts(field, f"{name}.{field['name']}")
    for part, of in (("type", ""), ("elementType", ".element"), ("keyType", ".key"), ("valueType", ".value")):
        yield from _parts(kind.get(part), name + of)


def _expression(invariants: Any) -> str:
    """Returns the expression of an invariant. Delta has it in JSON, in a string."""
    try:
        return str(json.loads(invariants)["expression"]["expression"])
    except (ValueError, KeyError, TypeError):
        return str(invariants)


def _wrong_feature(log: Log) -> str | None:
    protocol = log.protocol()
    version = protocol.min_writer_version
    if version == _IDENTITY_VERSION:
        return f"needs writer version {version}, and pipelines support no identity columns: rewrite it with version 5"
    if version > _FEATURES_VERSION:
        return f"needs writer version {version}, which pipelines do not know: rewrite it with an earlier version"
    unknown = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if version < _FEATURES_VERSION or not unknown:
        return None
    return (
        f"needs the writer feature {', '.join(unknown)}, which pipelines do not support: remove it "
        f"(ALTER TABLE … DROP FEATURE {unknown[0]})"
    )
