"""Changes of the columns of a Delta table: the new schema and the added files are one version of the log.

deltalake (1.6) has no call for that: ``create_write_transaction`` changes the schema only in a mode that removes files,
and ``alter.add_columns`` makes a version of its own. So such a version is written here, by the exclusive create of the
store. All other versions are made by deltalake.

Wider types do not set Delta's feature ``typeWidening``: deltalake and DuckDB do not read tables that have it, and all
readers read the narrow values of older files as the wide type.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.columns import Columns, changes, columns_of
from odradek.pipelines.filesystems.location import Location
from odradek.text.json_depth import parse_json

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log
    from deltalake import Schema
    from deltalake.transaction import AddAction, Transaction

NAMES = "odradek.columns"
"""The property with the names of the columns of our rows. The table may have more, which other writers fill."""
_ZONELESS, _FEATURE = "timestamp_ntz", "timestampNtz"


def columns_in(log: Log) -> dict[str, object]:
    """Returns the columns of a table."""
    return columns_of(parse_json(log.schema().to_json()))


def own_columns(log: Log) -> dict[str, object] | None:
    """Returns those of the columns that our rows have; None if the table does not say which."""
    names = log.metadata().configuration.get(NAMES)
    if names is None:
        return None
    own = set(parse_json(names))
    return {name: kind for name, kind in columns_in(log).items() if name in own}


def noted_names(columns: Columns) -> dict[str, str]:
    """Returns the property with these names."""
    return {NAMES: json.dumps(sorted(columns))}


def schema_after(log: Log, rows: Schema) -> dict[str, object] | None:
    """Returns the schema of the table after it got these rows, in Spark's JSON; None if it stays. Raises ConfigError
    for a change that the log would have to demand of its readers."""
    held, wanted = parse_json(log.schema().to_json()), parse_json(rows.to_json())
    found = [one for one in changes(columns_of(held), columns_of(wanted)) if one.new is not None]
    if not found:
        return None
    new = next((one for one in found if _ZONELESS in json.dumps(one.new)), None)
    if new is not None and _FEATURE not in (log.protocol().writer_features or ()):
        raise ConfigError(
            f"the Delta table {log.table_uri} lacks the feature {_FEATURE}, which the new column {'.'.join(new.path)} "
            f"({_ZONELESS}) needs: set it (ALTER TABLE … SET TBLPROPERTIES ('delta.feature.{_FEATURE}' = 'supported'))"
            ", or give the field the type timestamp"
        )
    return _merged(held, wanted)


def _merged(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, object]:
    """Returns a struct with the fields of both. A field of the table keeps what else the log says of it."""
    by_name = {field["name"]: field for field in wanted["fields"]}
    fields = [
        {**field, "type": _type(field["type"], by_name[field["name"]]["type"])} if field["name"] in by_name else field
        for field in held["fields"]
    ]
    names = {field["name"] for field in fields}
    return {**held, "fields": [*fields, *(field for name, field in by_name.items() if name not in names)]}


def _type(held: object, wanted: object) -> Any:
    if isinstance(held, dict) and isinstance(wanted, dict) and held.get("type") == wanted.get("type") == "struct":
        return _merged(held, wanted)
    return held if isinstance(held, dict) else wanted


@dataclass(frozen=True)
class ColumnVersion:
    """A version of the log with another schema, in Spark's JSON. ``own``: the columns of our rows. ``info``: the texts
    of the commit. ``transactions``, ``files``: its other actions."""

    schema: Mapping[str, Any]
    own: Columns
    info: Mapping[str, str]
    transactions: Sequence[Transaction]
    files: Sequence[AddAction]


def write_version(log: Log, commits: Location, wanted: ColumnVersion) -> bool:
    """Makes the version after that of ``log``; returns False if another writer has made it. ``commits``: the folder of
    the log. Raises StorageError: then it is not known whether it was made."""
    lines = [json.dumps(one, separators=(",", ":")) for one in _actions(log, wanted)]
    return commits.create(f"{log.version() + 1:020}.json", "\n".join(lines) + "\n")


def _actions(log: Log, wanted: ColumnVersion) -> Iterator[dict[str, Any]]:
    now, held = int(time.time() * 1000), log.metadata()
    parts = json.dumps(held.partition_columns)
    yield {
        "commitInfo": {
            "timestamp": now,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": parts},
            "engineInfo": "odradek",
            **wanted.info,
        }
    }
    described = {"name": held.name, "description": held.description}
    yield {
        "metaData": {
            "id": str(held.id),
            **{name: text for name, text in described.items() if text is not None},
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps(wanted.schema),
            "partitionColumns": held.partition_columns,
            "configuration": {**held.configuration, **noted_names(wanted.own)},
            "createdTime": held.created_time,
        }
    }
    for one in wanted.transactions:
        yield {"txn": {"appId": one.app_id, "version": one.version, "lastUpdated": now}}
    for file in wanted.files:
        yield {
            "add": {
                "path": quote(file.path, safe="/=+:@,~.-_"),
                "partitionValues": dict(file.partition_values),
                "size": file.size,
                "modificationTime": file.modification_time,
                "dataChange": True,
                "stats": file.stats,
            }
        }
