"""The mark of a checkpoint: the table to which it belongs, so that a table is not used with another table's checkpoint.

The file ``odradek-table`` in the checkpoint has the id of the table's description (``table_description``). Two cases
are refused, because records would be missing or be added twice: a table with micro-batches whose checkpoint is missing,
and a checkpoint that belongs to another table or query.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.file_damage import DamagedFile, remedied_by
from odradek.pipelines.commit.notes import STATE, TABLE_FILE
from odradek.pipelines.commit.state import ANOTHER_TABLE
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_description import RESTORE_FILE, is_described
from odradek.pipelines.option_checks import check_local_folder
from odradek.pipelines.values.arguments import wrong

TABLE_MARK = "odradek-table"
CHECKPOINT = "checkpoint"
_RESTORE_MARK = (
    "It has the id of the table to which the checkpoint belongs: restore the checkpoint from a copy, or let a new one "
    "begin at the table's offsets: `odradek pipeline adopt` shows how"
)
_ID = re.compile(r"[0-9a-f]{32}")
_BEGUN = frozenset(("offsets", "metadata"))
"""Spark's files, of which a checkpoint has one as soon as its query has begun."""
_OF_A_CHECKPOINT = _BEGUN | {"commits", "sources", "state", TABLE_MARK}


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


def check_table_folders(output: Path, checkpoint: Path | None) -> None:
    """Raises ConfigError if a new table or a new checkpoint would be among the files of a table. Those that have begun
    there go on. Only looks."""
    table = Path(os.path.realpath(output))
    around = [folder for folder in table.parents if (folder / STATE / TABLE_FILE).is_file()]
    if around and not (table / STATE / TABLE_FILE).is_file():
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


def check_new(checkpoint: Location, table: Location) -> None:
    """Raises ConfigError if a new table gets the checkpoint of another query. Writes nothing."""
    is_used = _is_used(checkpoint, _mark_of(checkpoint))  # before the table: another run may begin both meanwhile
    is_new = not is_described(table) and not set(table.children()) - {STATE}
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
        raise ConfigError(f"{table.uri} has lost {STATE}/{TABLE_FILE}, with which it began. {RESTORE_FILE}")
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
