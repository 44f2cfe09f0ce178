"""An Iceberg table in a simulated world: a catalogue with compare-and-set, and snapshots of several writers.

Other writers append, set ``main`` back to an earlier snapshot, and expire snapshots. What a run reads and writes is
that of ``iceberg/notes``; the catalogue makes a commit only if its demands hold.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from sim_table_store import HeldBatch, SimStore, SimVersions

from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.state import BatchPlan, RunTag, TableState, key_of
from odradek.pipelines.files import file_names
from odradek.pipelines.iceberg import notes
from odradek.pipelines.iceberg.notes import AncestorEvidence, EntryFiles, Note, SnapshotNote, TableView

_HISTORY = 6
"""The earlier metadata files that are kept."""


@dataclass(frozen=True)
class SimSnapshot:
    """``files``: those that it adds. ``content``: those of the table. ``batches``: the micro-batches whose rows it
    has."""

    note: SnapshotNote
    content: tuple[str, ...] = ()
    batches: tuple[HeldBatch, ...] = ()


@dataclass(frozen=True)
class SimSeen:
    """The table as a run has read it."""

    view: TableView
    note: Note


@dataclass
class SimSnapshots(SimVersions):
    """The table and its catalogue."""

    COPIED = (*SimStore.COPIED, "snapshots", "main", "tag", "sequence", "note", "history")
    snapshots: dict[int, SimSnapshot] = field(default_factory=dict)
    main: int | None = None
    tag: int | None = None
    sequence: int = 0
    note: str | None = None
    history: list[tuple[SnapshotNote, ...]] = field(default_factory=list)
    ids: int = 0  # of snapshots; a copy of the table does not take them back
    has_expired: bool = False
    was_unknown: bool = False

    def do(self, tag: RunTag, operation: Any) -> Any:
        if isinstance(operation, op.HasLeftovers):
            return bool(self.sequence) and any(not name.startswith(tag.text) for name in self._left())
        return super().do(tag, operation)

    # --- what a run reads

    def view(self) -> TableView:
        by_id = {number: one.note for number, one in self.snapshots.items()}
        return TableView(self.sequence, self.main, self.tag, by_id, self.note)

    def _found(self) -> tuple[TableState, Note]:
        return notes.read(self.view(), "t", AncestorEvidence(self._older, self._has_files, self._has_rows))

    def _older(self) -> Iterator[tuple[SnapshotNote, ...]]:
        yield from reversed(self.history)

    def _has_files(self, files: EntryFiles) -> bool:
        prefix = f"{files.run.text}/{key_of(files.query)}-{files.batch}-"
        return sum(name.startswith(prefix) for name in self.visible_files()) == files.number

    def _has_rows(self) -> bool:
        names = (name for name in self.visible_files() if not file_names.is_named(name, file_names.REPLAYS))
        return any(self.data[name][0] < self.data[name][1] for name in names)

    def _read(self, plan: BatchPlan | None) -> op.LogPosition:
        if not self.sequence:
            return op.LogPosition(-1, TableState(is_whole=True))
        state, note = self._found()
        self.was_unknown |= "have expired" in state.restored
        return op.LogPosition(self.sequence, state, content=SimSeen(self.view(), note))

    def state(self) -> TableState:
        return self._found()[0] if self.sequence else TableState(is_whole=True)

    # --- what a run writes

    def is_demanded(self, seen: TableView) -> bool:
        """Returns whether the demands of a commit hold."""
        return (self.main, self.tag) == (seen.main, seen.tag)

    def _commit(self, base: op.LogPosition, change: op.TableChange) -> bool:
        seen = base.content or SimSeen(TableView(0, None, None, {}), Note())
        if not self.is_demanded(seen.view):
            return False
        number = self._new_id()
        note, summary = seen.note.after(change, base.state, number)
        files = () if change.files is None else tuple(change.files.content[0])
        content = (self.snapshots[self.main].content if self.main is not None else ()) + files
        self.publish(change)
        self._add(SimSnapshot(SnapshotNote(number, self.main, summary), content, tuple(self.batches)))
        self.tag, self.note = number, note.text
        return True

    def _new_id(self) -> int:
        self.ids += 1
        return self.ids

    def _add(self, snapshot: SimSnapshot) -> None:
        self._note_history()
        self.snapshots = {**self.snapshots, snapshot.note.id: snapshot}
        self.main = snapshot.note.id
        self.sequence += 1

    def _note_history(self) -> None:
        """Keeps the present metadata file, and removes the oldest one."""
        self.history = [*self.history, tuple(one.note for one in self.snapshots.values())][-_HISTORY:]

    # --- other writers

    def foreign_commit(self) -> None:
        """Another writer appends; it knows nothing of our state. Sometimes snapshots expire."""
        if self.main is None:
            return
        if self.random.random() < 0.3:
            self._expire()
            return
        held = self.snapshots[self.main]
        self._add(SimSnapshot(SnapshotNote(self._new_id(), self.main), held.content, held.batches))

    def _expire(self) -> None:
        """All snapshots expire except the newest ones and the tagged one. Some tools remove the parents that expire."""
        self._note_history()
        kept = {self.main, self.tag, *sorted(self.snapshots)[-self.random.choice([1, 2, 5]) :]}
        self.has_expired |= not self.snapshots.keys() <= kept
        self.snapshots = {number: one for number, one in self.snapshots.items() if number in kept}
        if self.random.random() < 0.5:
            self.snapshots = {number: self._without_gone(one) for number, one in self.snapshots.items()}
        held = {name for one in self.snapshots.values() for name in one.content}
        self.published = {name: piece for name, piece in self.published.items() if name in held}

    def _without_gone(self, one: SimSnapshot) -> SimSnapshot:
        parent = one.note.parent if one.note.parent in self.snapshots else None
        return replace(one, note=replace(one.note, parent=parent))

    def foreign_restore(self, random: Random) -> None:
        """Another writer sets ``main`` to an earlier snapshot, or replaces the table by an empty one."""
        earlier = [number for number in self.snapshots if number != self.main]
        if not earlier:
            return
        to = random.choice(sorted(earlier)[-random.choice([1, 1, 2, 3, len(earlier)]) :])
        if random.random() < 0.1:
            self._add(SimSnapshot(SnapshotNote(self._new_id(), None)))
        else:
            self._note_history()
            self.main = to
        assert self.main is not None
        held = self.snapshots[self.main]
        self.restores += held.batches != tuple(self.batches)
        self.batches = list(held.batches)
        self.is_changed = True

    # --- files

    def _held(self) -> list[str]:
        return [name for one in self.snapshots.values() for name in one.content]

    def _left(self) -> list[str]:
        return sorted(set(self.data) - set(self._held()))

    def visible_files(self) -> tuple[str, ...]:
        return self.snapshots[self.main].content if self.main is not None else ()


__all__ = ["SimSeen", "SimSnapshot", "SimSnapshots"]
