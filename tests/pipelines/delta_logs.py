"""Delta tables of other writers: a log with one commit that a test writes by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPES = {
    "topic": "string", "partition": "integer", "offset": "long", "timestamp": "timestamp", "key": "binary",
    "value": "binary",
}  # fmt: skip
BY_VERSION = {"minReaderVersion": 1, "minWriterVersion": 2}


def column(name: str, kind: str | None = None, *, nullable: bool = True, **metadata: object) -> dict[str, Any]:
    return {"name": name, "type": kind or _TYPES[name], "nullable": nullable, "metadata": metadata}


def columns(*changed: dict[str, Any]) -> list[dict[str, Any]]:
    """The columns of a table of records, with some of them changed, or more."""
    found = {name: column(name) for name in _TYPES} | {one["name"]: one for one in changed}
    return list(found.values())


def features(*names: str, is_read: bool = False) -> dict[str, Any]:
    """The protocol of a table with these features."""
    wanted: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(names)}
    return wanted | ({"minReaderVersion": 3, "readerFeatures": list(names)} if is_read else {})


def write_log(
    table: Path,
    protocol: Mapping[str, Any] = BY_VERSION,
    properties: Mapping[str, str] | None = None,
    fields: list[dict[str, Any]] | None = None,
    version: int = 0,
    *,
    has_info: bool = False,
) -> None:
    """Writes a commit. ``has_info``: with the action ``commitInfo``, which is optional in Delta."""
    schema = json.dumps({"type": "struct", "fields": fields or columns()})
    metadata = {
        "id": "11111111-2222-3333-4444-555555555555", "format": {"provider": "parquet", "options": {}},
        "schemaString": schema, "partitionColumns": [], "configuration": dict(properties or {}), "createdTime": 1,
    }  # fmt: skip
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    actions: list[dict[str, Any]] = [{"protocol": dict(protocol)}, {"metaData": metadata}]
    if has_info:
        actions.append({"commitInfo": {"timestamp": 1, "operation": "CREATE TABLE", "operationParameters": {}}})
    (log / f"{version:020}.json").write_text("\n".join(json.dumps(action) for action in actions) + "\n")
