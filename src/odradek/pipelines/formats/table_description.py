"""The description of a table: its id, and the options that determine its columns and files (``TableLayout``).

It is the file ``_odradek/table.json`` in the table. A run writes it after all checks and before its query begins, so a
mistyped schema begins no table. A table that was begun but holds nothing, because its first micro-batch failed, can be
begun again with another layout.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.commit.file_damage import DamagedFile, fault_of, remedied_by
from odradek.pipelines.commit.notes import (
    BATCHES,
    ISOLATION,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    STATE,
    TABLE_FILE,
    is_begun_committed,
)
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_format import format_of, format_of_log
from odradek.pipelines.values.arguments import ArgumentError
from odradek.text.json_depth import parse_json

_STREAM_LOG = "_spark_metadata"
_RUNS = "has_runs"
_LOST_FOLDER = (
    f"If it was one, its folder {STATE} is lost or was replaced: restore this folder from a copy of the table, or "
    f"{ANOTHER_TABLE}"
)
RESTORE_FILE = f"It has the table's id and layout: restore this file from a copy of the table, or {ANOTHER_TABLE}"
_SHOWN = 60
"""Characters of an option in an error."""
_SCHEMA = "schema"
"""The part of a layout that gives columns, which may change."""


@dataclass(frozen=True)
class TableLayout:
    """The options that determine a table's columns and files. They stay the same after the table is begun."""

    table_format: str
    value_format: str
    schema: str | None
    framing: str
    flat: bool
    headers: bool
    keep_raw: bool
    partition_by: tuple[str, ...]


def staging_of(table: Location) -> Location:
    """Returns the folder for files that are not in the table yet: beside it, if there can be one."""
    return table.sibling(".", ".staging") or table.child(STATE).child("staging")


def check_table(table: Location, layout: TableLayout, log_has_records: Callable[[], bool] = lambda: True) -> str | None:
    """Returns the table's id; None if no table was begun. ``log_has_records``: whether the table's own notes have
    anything. Raises ConfigError if the location has a table of another layout that is not empty (the schema does not
    count), or anything that ``check_not_foreign`` refuses; StorageError.
    """
    text = _text_of(table)
    if text is None:
        check_not_foreign(table, layout)
        return None
    table_id, held, _ = _parse(table, text)
    wanted = _as_stored(layout)
    for name, value in wanted.items():
        if name == _SCHEMA or held.get(name) == value:  # ``tables/table_columns`` compares the columns
            continue
        if _has_records(table, held, wanted, log_has_records):
            raise _other_option(table, name, _two_texts(_plain(held.get(name)), _plain(value)))
    return table_id


def _other_option(table: Location, name: str, values: str) -> ArgumentError:
    return ArgumentError(
        lambda shown: (
            f"the table {table.uri} was begun with {shown(name)} {values}: repeat the option of the first run, or "
            f"{ANOTHER_TABLE}"
        )
    )


def check_not_foreign(table: Location, layout: TableLayout) -> None:
    """Raises ConfigError if the folder holds anything but a table of ours, or one with the log of the wanted format, to
    add to. An empty folder is allowed. Writes nothing. Raises StorageError."""
    names = table.children()
    wanted, other = format_of(layout.table_format), format_of_log(names)
    others = [name for name in names if name != STATE]
    if not others or wanted.log_folder in names:
        return
    text = _text_of(table)
    if _STREAM_LOG in names:
        raise ConfigError(
            f"{table.uri} has {_STREAM_LOG}: a streaming query of Spark writes to this folder, too, and Spark reads "
            f"only the files of that query. Give the query a folder of its own, and remove {table.uri}/{_STREAM_LOG}"
        )
    if text is None:
        raise ConfigError(
            f"{table.uri} holds something other than a table of odradek: {others[0]}; there is no {STATE}/{TABLE_FILE}"
            f". Choose an empty --output. {_LOST_FOLDER}"
        )
    if other is not None and _parse(table, text).layout.get("table_format") == layout.table_format:
        raise ConfigError(
            f"{table.uri} was begun as a {wanted.title} table, and another tool has converted it to {other.title} "
            f"since: readers of {other.title} would not see new files. Give the folder {other.log_folder} another "
            f"place to go on with {wanted.title}, or {ANOTHER_TABLE}"
        )


def begin_table(
    table: Location,
    layout: TableLayout,
    log_has_records: Callable[[], bool] = lambda: True,
    *,
    isolation: str = READ_UNCOMMITTED,
) -> str:
    """Returns the table's id. Begins the table if there is none, or begins it again with the same id if it holds
    nothing and has another layout. ``isolation``: that of the run. Raises the errors of ``check_table``.
    """
    table_id = check_table(table, layout, log_has_records)
    state = table.child(STATE)
    text = _text_of(table)
    held, wanted = {} if text is None else _parse(table, text).layout, _as_stored(layout)
    if table_id is None or text is None or (held != wanted and not _has_records(table, held, wanted, log_has_records)):
        table_id = table_id or uuid.uuid4().hex
        stored = {"version": 1, "id": table_id, _RUNS: True, ISOLATION: isolation, "shape": wanted}
        content = json.dumps(stored, indent=1) + "\n"
        if text is not None:  # the layout of a table that holds nothing
            state.write_text(TABLE_FILE, content)
        elif not state.create(TABLE_FILE, content):  # another run has begun the table meanwhile
            return begin_table(table, layout, log_has_records, isolation=isolation)
    elif isolation != READ_COMMITTED and is_begun_committed(text):
        state.create(READ_UNCOMMITTED, "")
    return table_id


def is_described(table: Location) -> bool:
    """Returns whether a table was begun. Raises StorageError."""
    return _text_of(table) is not None


def layout_of_table(table: Location) -> TableLayout | None:
    """Returns the layout with which a table was begun; None if none was. Raises StorageError."""
    text = _text_of(table)
    return None if text is None else _layout_of(_parse(table, text).layout)


def _layout_of(held: dict[str, Any]) -> TableLayout:
    return TableLayout(**{**held, "partition_by": tuple(held["partition_by"])})


def has_runs(table: Location) -> bool:
    """Returns whether a version of odradek began the table that notes the run of each micro-batch. Raises
    StorageError."""
    text = _text_of(table)
    return text is not None and _parse(table, text).has_runs


class _Stored(NamedTuple):
    """What the table's file says. ``has_runs``: as the function of this name."""

    table_id: str
    layout: dict[str, object]
    has_runs: bool


def _parse(table: Location, text: str) -> _Stored:
    """Reads the table's file. Raises StorageError."""
    name = f"{table.child(STATE).uri}/{TABLE_FILE}"
    try:
        stored = parse_json(text)
        found = _Stored(str(stored["id"]), dict(stored["shape"]), stored.get(_RUNS) is True)
        version = stored["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(name, fault_of(text, error), RESTORE_FILE) from error
    if version != 1:
        raise StorageError(
            f"{name} was written by another version of odradek (it has version {version!r}, and not 1). Use that "
            f"version for this table, or {ANOTHER_TABLE}"
        )
    return found


def _text_of(table: Location) -> str | None:
    """Returns the text of the table's file; None if there is none. Raises StorageError."""
    with remedied_by(RESTORE_FILE):
        return table.child(STATE).read_text(TABLE_FILE)


def _as_stored(layout: TableLayout) -> dict[str, object]:
    """Returns the layout as it is after a round trip through JSON."""
    held: dict[str, object] = json.loads(json.dumps(vars(layout)))
    return held


def _has_records(
    table: Location, held: dict[str, object], wanted: dict[str, object], has_records: Callable[[], bool]
) -> bool:
    """Returns whether the table holds anything. If it was begun with the same format, our own notes decide
    (``has_records``), because other writers may have added rows to a Delta table. Otherwise its files decide.
    """
    if held.get("table_format") == wanted["table_format"]:
        return has_records()
    has_log = format_of_log(table.children()) is not None
    return bool(table.child(STATE).child(BATCHES).children() or has_log or table.data_files())


def stored_layout(table: Location) -> TableLayout:
    """Returns the layout with which a table was begun. Raises ConfigError if there is none, StorageError."""
    text = _text_of(table)
    if text is None and (other := format_of_log(table.children())) is not None:
        raise ConfigError(
            f"{table.uri} is a {other.title} table without {STATE}/{TABLE_FILE}, which has the options that it was "
            "begun with: copy this file from the table of which this one is a copy, or from a backup, and repeat the "
            f"command; or {ANOTHER_TABLE}"
        )
    if text is None:
        raise ConfigError(f"{table.uri} is not a table of odradek: it has no {STATE}/{TABLE_FILE}. {_LOST_FOLDER}")
    return _layout_of(_parse(table, text).layout)


def _plain(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "nothing"
    return "none" if value is None else " ".join(str(value).split())


def _two_texts(held: str, wanted: str) -> str:
    """Returns ``held, not wanted``; of long texts the 60 characters from a little before the first difference."""
    pairs = zip(held, wanted, strict=False)
    same = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(held), len(wanted)))
    start = max(0, same - 20) if max(len(held), len(wanted)) > _SHOWN else 0
    parts = [("…" if start else "") + text[start : start + _SHOWN] for text in (held, wanted)]
    return f"{parts[0]}, not {parts[1]}"
