"""What an Iceberg table notes of its runs and queries, and which part of it belongs to the table's rows. Pure.

The property ``odradek.state`` has the newest run, the newest entry, and the state after it. It changes in the same
commit as the snapshot of an entry, so it stays when old snapshots expire. The summary of an entry's snapshot has the
state, too: a rollback by another writer takes rows back, and not the property. So the state that counts is that of the
nearest entry among the ancestors of the current snapshot.

A snapshot without a micro-batch (``TableChange`` of a run) is no entry: it hides no rollback.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from odradek.core.errors import StorageError
from odradek.pipelines.commit.notes import RUN_PROPERTY, STATE_PROPERTY
from odradek.pipelines.commit.operations import TableChange
from odradek.pipelines.commit.state import (
    ANOTHER_TABLE,
    NO_RUN,
    REPLAY,
    QueryState,
    RunTag,
    TableRefused,
    TableState,
    of_json,
    to_json,
)
from odradek.text.json_depth import parse_json
from odradek.text.printable import one_line

QUERY, BATCH = "odradek.query", "odradek.micro-batch"
"""Names in the summaries of snapshots."""
TAG = "odradek"
"""The tag of the newest snapshot of a run. Each commit demands that it is still where the run has seen it. The branch
``main`` alone does not tell that another run has published: a rollback sets it back to an earlier snapshot."""
_VERSION = 1


@dataclass(frozen=True)
class SnapshotNote:
    """A snapshot: its id, that of its parent, and what its summary says."""

    id: int
    parent: int | None
    summary: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TableView:
    """What a table's metadata say. ``sequence``: rises with each snapshot. ``main``, ``tag``: the snapshots of these
    references. ``note``: the property ``odradek.state``."""

    sequence: int
    main: int | None
    tag: int | None
    snapshots: Mapping[int, SnapshotNote]
    note: str | None = None


class EntryFiles(NamedTuple):
    """The files of an entry: its run, query, micro-batch, and the number of its files."""

    run: RunTag
    query: str
    batch: int
    number: int


@dataclass(frozen=True)
class Note:
    """``run``: the newest run. ``entry``: the snapshot of the newest entry; None if there is none. ``state``: the state
    after that entry. ``files``: those of that entry; None if it is not known."""

    run: RunTag = NO_RUN
    entry: int | None = None
    state: TableState = field(default_factory=lambda: TableState(is_whole=True))
    files: EntryFiles | None = None

    @property
    def text(self) -> str:
        files = None if self.files is None else [list(self.files.run), *self.files[1:]]
        content = {"run": list(self.run), "entry": self.entry, "files": files, "state": to_json(self.state)}
        return json.dumps({"version": _VERSION, **content})

    @classmethod
    def parse(cls, text: str, table: str) -> Note:
        """Raises StorageError."""
        try:
            value = parse_json(text)
            if value["version"] != _VERSION:
                raise ValueError(f"version {value['version']} is not {_VERSION}")
            entry = None if value["entry"] is None else int(value["entry"])
            files = None if value["files"] is None else _files_of(*value["files"])
            return cls(_run_of(*value["run"]), entry, of_json(value["state"]), files)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"the property {STATE_PROPERTY} of {table} cannot be read: {one_line(error)}. Restore it from an "
                f"earlier metadata file of the table, or {ANOTHER_TABLE}"
            ) from error

    def after(self, change: TableChange, base: TableState, snapshot: int) -> tuple[Note, dict[str, str]]:
        """Returns the note after a change, and what the summary of its snapshot says. ``base``: the state of the rows
        before it. ``snapshot``: the id of its snapshot."""
        summary = {RUN_PROPERTY: change.run.text}
        if change.plan is None or change.files is None:
            return replace(self, run=change.run), summary
        after = change.state_after(base)
        summary |= {QUERY: change.plan.query, BATCH: str(change.plan.batch), STATE_PROPERTY: json.dumps(to_json(after))}
        files = EntryFiles(change.run, change.plan.query, change.plan.batch, change.files.added.files or 0)
        return Note(change.run, snapshot, after, files), summary


def _run_of(number: int, name: str) -> RunTag:
    return RunTag(int(number), str(name))


def _files_of(run: Sequence[Any], query: str, batch: int, number: int) -> EntryFiles:
    return EntryFiles(_run_of(*run), str(query), int(batch), int(number))


@dataclass(frozen=True)
class AncestorEvidence:
    """What is looked up only if the metadata do not suffice. ``older``: the snapshots of each earlier metadata file,
    newest first, up to the first one that is not there any more. ``has_files``: whether the current snapshot has all
    these files, of which there are some. ``has_rows``: whether it has files of anything but replays."""

    older: Callable[[], Iterable[Sequence[SnapshotNote]]] = tuple
    has_files: Callable[[EntryFiles], bool] = lambda files: False
    has_rows: Callable[[], bool] = lambda: True


def read(view: TableView, table: str, evidence: AncestorEvidence) -> tuple[TableState, Note]:
    """Returns the state that belongs to the table's rows, and the newest note. ``table``: its name for messages.

    Raises TableRefused if the note was removed, StorageError.
    """
    ancestors = _Ancestors(view, evidence.older)
    note = Note.parse(view.note, table) if view.note is not None else _recovered(view, ancestors, table)
    if note.entry is None:
        return replace(note.state, run=note.run), note
    held, is_known = ancestors.newest_entry(note.entry)
    if held == note.entry:
        return replace(note.state, run=note.run), note
    reason = f"another writer has set {table} back to an earlier snapshot or has replaced it, which took rows back"
    newest = note.state.newest_query
    lost = None if newest is None else dict(newest.offsets or {})
    if held is not None:
        state, reason = _of_summary(ancestors.known[held], table), f"{reason} (its newest entry is snapshot {held})"
        return replace(state, run=note.run, restored=reason, lost=None if state.newest_query else lost), note
    if is_known:  # all rows are gone
        return TableState(note.run, is_whole=True, restored=reason, lost=lost), note
    if note.files is not None and note.files.number and evidence.has_files(note.files):
        return replace(note.state, run=note.run), note
    return replace(_unknown(note.state, evidence, table), run=note.run), note


def _unknown(state: TableState, evidence: AncestorEvidence, table: str) -> TableState:
    """Returns the state if it is not known whether the newest entry is an ancestor of the current snapshot: neither a
    query nor a replay may go on. After an adoption, a replay counts as done."""
    reason = (
        f"the snapshots between the newest micro-batch of {table} and its current one have expired, so it is not "
        "known whether another writer has taken rows back"
    )
    replays = {key: one for key, one in state.queries.items() if key.startswith(REPLAY)}
    newest = state.newest_query
    if newest is None or not evidence.has_rows():  # there are no rows of queries
        lost = None if newest is None else dict(newest.offsets or {})
        return replace(state, queries=replays, is_whole=True, restored=reason, lost=lost, is_known=False)
    others = {key: QueryState(one.batch, None) for key, one in state.queries.items() if key not in replays}
    return replace(state, queries=replays | others, is_whole=False, restored=reason, is_known=False)


class _Ancestors:
    """The ancestors of the current snapshot. Where snapshots have expired, earlier metadata files have them.

    Some tools remove the parent of a snapshot whose parent expires. So a snapshot without a parent is surely the first
    one only if an earlier metadata file shows that it was added without one.
    """

    def __init__(self, view: TableView, older: Callable[[], Iterable[Sequence[SnapshotNote]]]) -> None:
        self._present = view.snapshots
        self.known = dict(view.snapshots)
        self._main = view.main
        self._older = older
        self._files: list[Mapping[int, SnapshotNote]] | None = None

    def newest_entry(self, entry: int | None = None) -> tuple[int | None, bool]:
        """Returns the nearest entry; None if there is none. The second value says whether this is known. ``entry``: the
        id of an entry, whose snapshot may have expired."""
        at = self._main
        while at is not None:
            if at == entry:
                return at, True
            snapshot = self._found(at)
            if snapshot is None:
                return None, False
            if STATE_PROPERTY in snapshot.summary:
                return at, True
            parent = snapshot.parent
            if parent is None:
                parent, is_first = self._former_parent(at)
                if parent is None:
                    return None, is_first
            at = parent
        return None, True

    @property
    def _earlier(self) -> list[Mapping[int, SnapshotNote]]:
        """The snapshots of earlier metadata files, newest first."""
        if self._files is None:
            self._files = [{one.id: one for one in snapshots} for snapshots in self._older()]
        return self._files

    def _found(self, number: int) -> SnapshotNote | None:
        if number not in self.known:
            older = next((one[number] for one in self._earlier if number in one), None)
            if older is not None:
                self.known[number] = older
        return self.known.get(number)

    def _former_parent(self, number: int) -> tuple[int | None, bool]:
        """Returns the parent that a snapshot has had; None if none is seen. The second value: whether it was added
        without one."""
        was_there = number in self._present
        for snapshots in self._earlier:
            if number not in snapshots:
                if was_there:
                    return None, True
                continue
            was_there = True
            if (parent := snapshots[number].parent) is not None:
                return parent, False
        return None, False


def _recovered(view: TableView, ancestors: _Ancestors, table: str) -> Note:
    """Returns the note of a table without the property: of a new one, or from the summaries of snapshots."""
    runs = [
        run for one in view.snapshots.values() if (run := RunTag.parse(one.summary.get(RUN_PROPERTY, ""))) is not None
    ]
    if not runs and view.tag is None:
        return Note()
    held, _ = ancestors.newest_entry()
    if held is None:
        raise TableRefused(
            f"{table} has snapshots of odradek, and not its property {STATE_PROPERTY}: the property was removed. "
            f"Restore it from an earlier metadata file of the table, or {ANOTHER_TABLE}"
        )
    state = _of_summary(ancestors.known[held], table)
    return Note(max([*runs, state.run]), held, state)


def _of_summary(snapshot: SnapshotNote, table: str) -> TableState:
    try:
        return of_json(parse_json(snapshot.summary[STATE_PROPERTY]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the summary of snapshot {snapshot.id} of {table} cannot be read: {one_line(error)}. {ANOTHER_TABLE}"
        ) from error
