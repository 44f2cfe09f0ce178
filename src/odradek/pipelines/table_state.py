"""What a table and a query's checkpoint know of each other, so that neither is used with another by mistake.

``_odradek/table.json`` in the table says how its rows were made and names the table by an id; the checkpoint has that
id in ``odradek-table``. Both are put there before the query first runs, and after all was looked at that may be wrong:
who mistypes a schema has begun no table. A table that was begun but holds nothing, because its first batch failed, may
be begun anew in another way. A table with batches whose checkpoint is gone, or a checkpoint that belongs to another
table or query, would mean records twice or missing: refused.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from odradek.core.errors import ConfigError, StorageError
from odradek.core.json_depth import parse_json
from odradek.pipelines.filesystems import Place

STATE = "_odradek"
BATCHES = "batches"
_FILE = "table.json"
_MARK = "odradek-table"
_DELTA = "_delta_log"


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


def check_table(table: Place, shape: Shape, log_holds_any: Callable[[], bool] = lambda: True) -> str | None:
    """The id of the table; None where none was begun. ``log_holds_any``: whether the log of a Delta table has batches
    of ours. Raises ConfigError where it holds something of another shape, or is something else than a table of ours;
    StorageError.
    """
    text = table.child(STATE).read_text(_FILE)
    if text is None:
        check_not_foreign(table, shape)
        return None
    known_as, held = _understood(table, text)
    wanted = _stored(shape)
    for name, value in wanted.items():
        if held.get(name) != value and _holds_anything(table, held, wanted, log_holds_any):
            option = name.replace("_", " ")
            raise ConfigError(
                f"the table {table.uri} was begun with {option} {_shown(held.get(name))}, not {_shown(value)}"
            )
    return known_as


def check_not_foreign(table: Place, shape: Shape) -> None:
    """Raises ConfigError where the folder holds something else than a table of ours, begun or not, or a Delta table
    that is to be added to. Writes nothing.
    """
    names = table.children()
    is_delta = shape.table_format == "delta" and _DELTA in names
    others = [name for name in names if name != STATE]
    if others and not is_delta and table.child(STATE).read_text(_FILE) is None:
        raise ConfigError(f"{table.uri} holds something else than a table of odradek's: {others[0]}")


def begin_table(table: Place, shape: Shape, log_holds_any: Callable[[], bool] = lambda: True) -> str:
    """The id of the table, which is begun where there is none, or anew, by the same id, where it holds nothing and is
    of another shape. Raises what ``check_table`` raises.
    """
    known_as = check_table(table, shape, log_holds_any)
    state = table.child(STATE)
    text = state.read_text(_FILE)
    if known_as is None or text is None or _understood(table, text)[1] != _stored(shape):
        known_as = known_as or uuid.uuid4().hex
        content = {"version": 1, "id": known_as, "shape": _stored(shape)}
        state.write_text(_FILE, json.dumps(content, indent=1) + "\n")
    return known_as


def _understood(table: Place, text: str) -> tuple[str, dict[str, object]]:
    """The id, and the shape as it is stored. Raises StorageError."""
    name = f"{table.child(STATE).uri}/{_FILE}"
    try:
        stored = parse_json(text)
        held: dict[str, object] = dict(stored["shape"])
        found, version = str(stored["id"]), stored["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{name} cannot be understood: {error}") from error
    if version != 1:
        raise StorageError(f"{name} was written by another version of odradek ({version})")
    return found, held


def _stored(shape: Shape) -> dict[str, object]:
    """As JSON gives it back."""
    held: dict[str, object] = json.loads(json.dumps(vars(shape)))
    return held


def _holds_anything(
    table: Place, held: dict[str, object], wanted: dict[str, object], log_holds_any: Callable[[], bool]
) -> bool:
    """Rows, or what was noted of them, in whichever format. A Delta table that stays one may have rows of others, or a
    log that a killed writer began: only batches of ours have a shape."""
    if held.get("table_format") == wanted["table_format"] == "delta":
        return log_holds_any()
    return bool(table.child(STATE).child(BATCHES).children() or _DELTA in table.children() or table.data_files())


def check_checkpoint(checkpoint: Place, table: Place, known_as: str | None, *, has_batches: bool) -> None:
    """Raises ConfigError where the checkpoint is another's than this table's, or should not be new."""
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


def bind(checkpoint: Place, table: Place, known_as: str, *, has_batches: bool) -> None:
    """Marks the checkpoint as that of this table. Raises what ``check_checkpoint`` raises."""
    check_checkpoint(checkpoint, table, known_as, has_batches=has_batches)
    if checkpoint.read_text(_MARK) is None:
        checkpoint.make()
        checkpoint.write_text(_MARK, known_as + "\n")


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "none" if value is None else " ".join(str(value).split())[:60]
