"""The link between a table and a query's checkpoint, so that a table is not used with another table's checkpoint.

``_odradek/table.json`` in the table has the table's layout (``TableLayout``) and the table's id; ``odradek-table`` in
the checkpoint has the same id. Both files are written after all checks and before the query's first run, so a mistyped
schema begins no table. A table that was begun but holds nothing, because its first micro-batch failed, can be begun
again with another layout. Two cases are refused, because records would be missing or be added twice: a table with
micro-batches whose checkpoint is missing, and a checkpoint that belongs to another table or query.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.commit.damaged_files import DamagedFile, fault_of, remedied_by
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.pipelines.filesystems import Location
from odradek.pipelines.formats.table_format import format_of, format_of_log
from odradek.pipelines.given_options import check_local_folder
from odradek.pipelines.values.arguments import ArgumentError, wrong
from odradek.text.json_depth import parse_json

STATE = "_odradek"
BATCHES = "batches"
_FILE = "table.json"
TABLE_MARK = "odradek-table"
_STREAM_LOG = "_spark_metadata"
_RUNS = "has_runs"
_ISOLATION, _COMMITTED, _UNCOMMITTED = "isolation", "read_committed", "read_uncommitted"
"""The table's file says that it was begun with ``read_committed``. A file of the name ``read_uncommitted`` says that a
later run was not (``verify`` reads both)."""
CHECKPOINT = "checkpoint"
_LOST_FOLDER = (
    f"If it was one, its folder {STATE} is lost or was replaced: restore this folder from a copy of the table, or "
    f"{ANOTHER_TABLE}"
)
_RESTORE_FILE = f"It has the table's id and layout: restore this file from a copy of the table, or {ANOTHER_TABLE}"
_RESTORE_MARK = (
    "It has the id of the table to which the checkpoint belongs: restore the checkpoint from a copy, or let a new one "
    "begin at the table's offsets: `odradek pipeline adopt` shows how"
)
_ID = re.compile(r"[0-9a-f]{32}")
_BEGUN = frozenset(("offsets", "metadata"))
"""Spark's files, of which a checkpoint has one as soon as its query has begun."""
_OF_A_CHECKPOINT = _BEGUN | {"commits", "sources", "state", TABLE_MARK}
_SHOWN = 60
"""Characters of an option in an error."""


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


def check_checkpoint_folder(path: Path) -> None:
    """Raises ConfigError if a folder of this machine is no place for a checkpoint. Creates nothing.

    Spark writes its files among those of another program, for example of a table, which no reader can read then."""
    check_local_folder("checkpoint", path)
    names = {one.name for one in path.iterdir()} if path.is_dir() and os.access(path, os.R_OK) else set()
    others = sorted(name for name in names if not name.startswith("."))
    if others and not names & _OF_A_CHECKPOINT:
        raise wrong(
            "checkpoint", f" {path} holds something else, {others[0]} for one: give an empty folder, or a new one"
        )


def staging_of(table: Location) -> Location:
    """Returns the folder for files that are not in the table yet: beside it, if there can be one."""
    return table.sibling(".", ".staging") or table.child(STATE).child("staging")


def check_table_folders(output: Path, checkpoint: Path | None) -> None:
    """Raises ConfigError if a new table or a new checkpoint would be among the files of a table. Those that have begun
    there go on. Only looks."""
    table = Path(os.path.realpath(output))
    around = [folder for folder in table.parents if (folder / STATE / _FILE).is_file()]
    if around and not (table / STATE / _FILE).is_file():
        raise wrong("output", f" {output} is inside of the table {around[0]}: give a folder outside of it")
    if checkpoint is None or (checkpoint / TABLE_MARK).is_file():
        return
    folder = Path(os.path.realpath(checkpoint))
    is_hidden = table in folder.parents and folder.relative_to(table).parts[0][0] in "_."
    if table in (folder, *folder.parents) and not is_hidden:
        raise wrong(
            "checkpoint",
            f" {checkpoint} is inside of the table {output}, and readers would meet Spark's files: give a folder "
            "beside the table, or leave the option out",
        )


def check_table(table: Location, shape: TableLayout, log_has_records: Callable[[], bool] = lambda: True) -> str | None:
    """Returns the table's id; None if no table was begun. ``log_has_records``: whether the table's own notes have
    anything. Raises ConfigError if the location has a table of another layout that is not empty, or
    anything that ``check_not_foreign`` refuses; StorageError.
    """
    text = _text_of(table)
    if text is None:
        check_not_foreign(table, shape)
        return None
    table_id, held, _ = _parse(table, text)
    wanted = _as_stored(shape)
    for name, value in wanted.items():
        if held.get(name) != value and _has_records(table, held, wanted, log_has_records):
            raise _other_option(table, name, _two_texts(_plain(held.get(name)), _plain(value)))
    return table_id


def _other_option(table: Location, name: str, values: str) -> ArgumentError:
    return ArgumentError(
        lambda shown: (
            f"the table {table.uri} was begun with {shown(name)} {values}: repeat the option of the first run, or "
            f"{ANOTHER_TABLE}"
        )
    )


def check_not_foreign(table: Location, shape: TableLayout) -> None:
    """Raises ConfigError if the folder holds anything but a table of ours, or one with the log of the wanted format, to
    add to. An empty folder is allowed. Writes nothing. Raises StorageError."""
    names = table.children()
    wanted, other = format_of(shape.table_format), format_of_log(names)
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
            f"{table.uri} holds something other than a table of odradek: {others[0]}; there is no {STATE}/{_FILE}. "
            f"Choose an empty --output. {_LOST_FOLDER}"
        )
    if other is not None and _parse(table, text).layout.get("table_format") == shape.table_format:
        raise ConfigError(
            f"{table.uri} was begun as a {wanted.title} table, and another tool has converted it to {other.title} "
            f"since: readers of {other.title} would not see new files. Give the folder {other.log_folder} another "
            f"place to go on with {wanted.title}, or {ANOTHER_TABLE}"
        )


def begin_table(
    table: Location,
    shape: TableLayout,
    log_has_records: Callable[[], bool] = lambda: True,
    *,
    isolation: str = _UNCOMMITTED,
) -> str:
    """Returns the table's id. Begins the table if there is none, or begins it again with the same id if it holds
    nothing and has another layout. ``isolation``: that of the run. Raises the errors of ``check_table``.
    """
    table_id = check_table(table, shape, log_has_records)
    state = table.child(STATE)
    text = _text_of(table)
    if table_id is None or text is None or _parse(table, text).layout != _as_stored(shape):
        table_id = table_id or uuid.uuid4().hex
        stored = {"version": 1, "id": table_id, _RUNS: True, _ISOLATION: isolation, "shape": _as_stored(shape)}
        content = json.dumps(stored, indent=1) + "\n"
        if text is not None:  # the layout of a table that holds nothing
            state.write_text(_FILE, content)
        elif not state.create(_FILE, content):  # another run has begun the table meanwhile
            return begin_table(table, shape, log_has_records, isolation=isolation)
    elif isolation != _COMMITTED and parse_json(text).get(_ISOLATION) == _COMMITTED:
        state.create(_UNCOMMITTED, "")
    return table_id


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
    name = f"{table.child(STATE).uri}/{_FILE}"
    try:
        stored = parse_json(text)
        found = _Stored(str(stored["id"]), dict(stored["shape"]), stored.get(_RUNS) is True)
        version = stored["version"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(name, fault_of(text, error), _RESTORE_FILE) from error
    if version != 1:
        raise StorageError(
            f"{name} was written by another version of odradek (it has version {version!r}, and not 1). Use that "
            f"version for this table, or {ANOTHER_TABLE}"
        )
    return found


def _text_of(table: Location) -> str | None:
    """Returns the text of the table's file; None if there is none. Raises StorageError."""
    with remedied_by(_RESTORE_FILE):
        return table.child(STATE).read_text(_FILE)


def _as_stored(shape: TableLayout) -> dict[str, object]:
    """Returns the layout as it is after a round trip through JSON."""
    held: dict[str, object] = json.loads(json.dumps(vars(shape)))
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


def check_new(checkpoint: Location, table: Location) -> None:
    """Raises ConfigError if a new table gets the checkpoint of another query. Writes nothing."""
    is_used = _is_used(checkpoint, _mark_of(checkpoint))  # before the table: another run may begin both meanwhile
    is_new = _text_of(table) is None and not set(table.children()) - {STATE}
    if is_used and is_new:
        raise ConfigError(
            f"the checkpoint {checkpoint.uri} belongs to another query, and {table.uri} is a new table: give it a "
            "--checkpoint of its own"
        )


def check_checkpoint(checkpoint: Location, table: Location, table_id: str | None, *, has_batches: bool | None) -> None:
    """Raises ConfigError if the checkpoint belongs to another table, or is new although the table has micro-batches.
    ``has_batches``: None if it may have some."""
    mark = _mark_of(checkpoint)
    if mark is not None and mark == table_id:
        return
    is_inside = checkpoint.uri.startswith(f"{table.uri.rstrip('/')}/")
    if table_id is None and (has_batches or (mark is not None and is_inside)):
        raise ConfigError(f"{table.uri} has lost {STATE}/{_FILE}, with which it began. {_RESTORE_FILE}")
    if table_id is None and has_batches is False:
        check_new(checkpoint, table)
    if _is_used(checkpoint, mark):
        new = "with a new folder as --checkpoint shows how"
        if _is_in(checkpoint, table):
            new = "shows how, and gives that folder another name"
        raise ConfigError(
            f"the checkpoint {checkpoint.uri} belongs to another query than the one for {table.uri}. Put the "
            "checkpoint of this table back, or name it with --checkpoint; if there is none, let a new one begin at "
            f"the table's offsets: `odradek pipeline adopt` {new}"
        )
    if has_batches is None:
        raise ConfigError(
            f"the table {table.uri} may hold micro-batches of a query whose checkpoint is not {checkpoint.uri}: old "
            "commits were removed from its log, and with them perhaps the notes of these micro-batches; give the old "
            "--checkpoint, let a new one begin after the table's rows (`odradek pipeline adopt` shows how), or "
            f"{ANOTHER_TABLE}"
        )
    if has_batches:
        raise ConfigError(
            f"the table {table.uri} holds micro-batches of a query whose checkpoint is not {checkpoint.uri}: with a "
            "new one records could be missing or be added twice; give the old --checkpoint, or let a new one begin at "
            "the table's offsets: `odradek pipeline adopt` shows how"
        )


def _mark_of(checkpoint: Location) -> str | None:
    """Returns the id of the table whose query has this checkpoint; None if it has no mark."""
    with remedied_by(_RESTORE_MARK):
        text = checkpoint.read_text(TABLE_MARK)
    if text is not None and _ID.fullmatch(text.strip()) is None:
        fault = "it is empty" if not text.strip() else "it has no id of a table"
        raise DamagedFile(f"{checkpoint.uri}/{TABLE_MARK}", fault, _RESTORE_MARK)
    return None if text is None else text.strip()


def _is_used(checkpoint: Location, mark: str | None) -> bool:
    """Returns whether a query has begun with this checkpoint. ``mark``: its mark."""
    return mark is not None or not _BEGUN.isdisjoint(checkpoint.children())


def _is_in(checkpoint: Location, table: Location) -> bool:
    """Returns whether the checkpoint is at its place in the table's own folder."""
    return checkpoint.uri == table.child(STATE).child(CHECKPOINT).uri


def check_own_checkpoint(checkpoint: Location, table: Location, table_id: str | None) -> None:
    """Raises ConfigError if an adoption would rename a folder that is not the checkpoint of this table: it may be in
    use, or be something else. An empty folder is allowed."""
    held = checkpoint.children()
    if not held or _is_in(checkpoint, table):
        return
    mark = _mark_of(checkpoint)
    if mark is not None and mark == table_id:
        return
    if _is_used(checkpoint, mark):
        what = f"is the checkpoint of another query than the one for {table.uri}"
    else:
        what = f"is no checkpoint: it has {held[0]}"
    raise ConfigError(
        f"--checkpoint {checkpoint.uri} {what}. An adoption gives the table's checkpoint another name: name this "
        "checkpoint, or a new folder in which the next one begins"
    )


def bind(checkpoint: Location, table: Location, table_id: str, *, has_batches: bool | None) -> None:
    """Marks the checkpoint as that of this table. Raises the errors of ``check_checkpoint``."""
    check_checkpoint(checkpoint, table, table_id, has_batches=has_batches)
    if not mark(checkpoint, table_id):  # another run has marked it meanwhile, perhaps for another table
        check_checkpoint(checkpoint, table, table_id, has_batches=has_batches)


def mark(checkpoint: Location, table_id: str) -> bool:
    """Marks a checkpoint as that of a table, unless it has a mark: then returns False."""
    if _mark_of(checkpoint) is not None:
        return False
    checkpoint.make()
    return checkpoint.create(TABLE_MARK, table_id + "\n")


def stored_layout(table: Location) -> TableLayout:
    """Returns the layout with which a table was begun. Raises ConfigError if there is none, StorageError."""
    text = _text_of(table)
    if text is None and (other := format_of_log(table.children())) is not None:
        raise ConfigError(
            f"{table.uri} is a {other.title} table without {STATE}/{_FILE}, which has the options that it was begun "
            "with: copy this file from the table of which this one is a copy, or from a backup, and repeat the "
            f"command; or {ANOTHER_TABLE}"
        )
    if text is None:
        raise ConfigError(f"{table.uri} is not a table of odradek: it has no {STATE}/{_FILE}. {_LOST_FOLDER}")
    held: dict[str, Any] = _parse(table, text).layout
    return TableLayout(**{**held, "partition_by": tuple(held["partition_by"])})


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
