"""What a table and a query's checkpoint know of each other, so that neither is used with another by mistake.

``_odradek/table.json`` in the table says how its rows were made and names the table by an id; the checkpoint has that
id in ``odradek-table``, put there before the query first runs. A table with batches whose checkpoint is gone, or a
checkpoint that belongs to another table or query, would mean records twice or missing: refused.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.places import Place

STATE = "_odradek"
_FILE = "table.json"
_MARK = "odradek-table"


@dataclass(frozen=True)
class Shape:
    """What decides a table's columns and files. It stays as it was when the table was begun."""

    table_format: str
    value_format: str
    schema: str | None
    framing: str
    flat: bool
    headers: bool
    keep_raw: bool
    partition_by: tuple[str, ...]


def table_id(table: Place, shape: Shape) -> str:
    """The id of the table, which is begun where there is none. Raises ConfigError where it is of another shape, or
    something else than a table of ours; StorageError.
    """
    state = table.child(STATE)
    text = state.read_text(_FILE)
    if text is None:
        others = [name for name in table.children() if name not in (STATE, "_delta_log")]
        delta = shape.table_format == "delta" and "_delta_log" in table.children()
        if others and not delta:
            raise ConfigError(f"{table.uri} holds something else than a table of odradek's: {others[0]}")
        fresh = uuid.uuid4().hex
        state.write_text(_FILE, json.dumps({"version": 1, "id": fresh, "shape": vars(shape)}, indent=1) + "\n")
        return fresh
    try:
        stored = json.loads(text)
        held: dict[str, object] = dict(stored["shape"])
        found, version = str(stored["id"]), stored["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{state.uri}/{_FILE} cannot be understood: {error}") from error
    if version != 1:
        raise StorageError(f"{state.uri}/{_FILE} was written by another version of odradek ({version})")
    wanted = json.loads(json.dumps(vars(shape)))
    for name, value in wanted.items():
        if held.get(name) != value:
            option = name.replace("_", " ")
            raise ConfigError(
                f"the table {table.uri} was begun with {option} {_shown(held.get(name))}, not {_shown(value)}"
            )
    return found


def bind(checkpoint: Place, table: Place, known_as: str, *, has_batches: bool) -> None:
    """Marks the checkpoint as that of this table. Raises ConfigError where it is another's, or should not be new."""
    mark = checkpoint.read_text(_MARK)
    if mark is not None and mark.strip() == known_as:
        return
    if mark is not None or {"offsets", "metadata"} & set(checkpoint.children()):
        raise ConfigError(f"the checkpoint {checkpoint.uri} is of another query than the one for {table.uri}")
    if has_batches:
        raise ConfigError(
            f"the table {table.uri} holds batches of a query whose checkpoint is not {checkpoint.uri}: with a new one"
            " records could be missing or come twice; give the old --checkpoint, or a new --output"
        )
    checkpoint.make()
    checkpoint.write_text(_MARK, known_as + "\n")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "none" if value is None else " ".join(str(value).split())[:60]
