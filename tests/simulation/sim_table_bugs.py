"""Planted bugs of the commit machine: each fault that was seen, and each guard taken out. The simulation finds each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import sim_table
import sim_table_store
from sim_table import TableScenario
from sim_table_adoption import ADOPTED, SimCheckpointFolder
from sim_table_snapshots import SimSnapshots
from sim_table_store import SimFiles, SimVersions, Version

from odradek.pipelines.commit import columns, logs, machine, state
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.columns import RowColumns
from odradek.pipelines.commit.logs import FileLog
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.restores import HeldVersion, VersionCommit
from odradek.pipelines.commit.state import QueryState, RunTag, TableState, to_json
from odradek.pipelines.files import file_names
from odradek.pipelines.iceberg import notes
from odradek.pipelines.iceberg.notes import Note
from odradek.pipelines.ingestion import adoption

Bug = Callable[[], Any]
_ADOPT = CommitMachine.adopt


def _replacing(owner: Any, name: str, new: Any) -> Bug:
    return lambda: patch.object(owner, name, new)


def _steps(result: Any) -> Callable[..., Any]:
    """A part of the machine that does nothing and returns ``result``."""

    def nothing(*given: Any, **named: Any) -> Iterator[Any]:
        yield from ()
        return result

    return nothing


def _unless_unknown(real: Any) -> Any:
    def check(known: QueryState, plan: Any, table: str) -> None:
        if known.covers is not None:
            real(known, plan, table)

    return check


@contextmanager
def _unknown_is_agreement() -> Iterator[None]:
    names = ("_check_equal", "_check_continued")
    with patch.multiple(state, **{name: _unless_unknown(getattr(state, name)) for name in names}):
        yield


def _forgotten_means_never_added(real: Any) -> Any:
    def held(table: TableState, plan: Any, name: str) -> Any:
        known = table.of(plan.query)
        return None if known is not None and plan.batch < known.batch else real(table, plan, name)

    return held


def _old_means_held(real: Any) -> Any:
    def held(table: TableState, plan: Any, name: str) -> Any:
        known = table.of(plan.query)
        return known if known is not None and plan.batch < known.batch else real(table, plan, name)

    return held


def _create_over(self: SimFiles, number: int, text: str) -> bool:
    import json

    change = self.pending[json.loads(text)["key"]]
    self.entries[number] = text, change
    self.listed_at[number] = self.later()
    self.highest = max(self.highest, number)
    self.publish(change)
    return True


def _removal_without_an_entry(self: CommitMachine) -> Any:
    newest = yield from self._newest_finished(None)
    if (yield op.HasLeftovers()):
        yield op.RemoveLeftovers(lambda run: run == self.run)
    return newest.state


def _offsets_of_any_run(self: CommitMachine, plan: Any) -> Any:
    yield op.CommitGroup(QueryState(plan.batch, plan.covers, plan.ends))
    return True


def _no_second_look(self: CommitMachine, plan: Any) -> Any:
    newest = yield from self._log.newest(plan, is_sure=True)
    batch = newest.state.of(plan.query)
    if batch is not None and newest.state.may_publish(self.run):
        yield op.CommitGroup(batch)
    return True


def _look_before_the_fence(self: CommitMachine, plan: Any) -> Any:
    newest = yield from self._log.newest(plan, is_sure=True)
    is_fenced = yield op.FenceGroup()
    while is_fenced or newest is not None:
        batch = newest.state.of(plan.query)
        if batch is None or not newest.state.may_publish(self.run) or (yield op.CommitGroup(batch)):
            return True
        newest = yield from self._log.newest(plan, is_sure=True)
        is_fenced = yield op.FenceGroup()
    return True


def _no_look_after_a_refusal(self: CommitMachine, plan: Any) -> Any:
    yield op.FenceGroup()
    newest = yield from self._log.newest(plan, is_sure=True)
    batch = newest.state.of(plan.query)
    while batch is not None and newest.state.may_publish(self.run) and not (yield op.CommitGroup(batch)):
        yield op.FenceGroup()
    return True


def _old_epochs_commit(real: Any) -> Any:
    def commit(self: TableScenario, driver: Any, batch: QueryState) -> bool:
        driver.epoch = self.group.epoch if driver.epoch is not None else None
        return bool(real(self, driver, batch))

    return commit


def _descending(self: FileLog, newest: op.LogPosition) -> Any:
    for number in range(newest.number - self._kept, self._lowest - 1, -1):
        yield op.DeleteEntry(number)
    self._lowest = max(self._lowest, newest.number - self._kept + 1)


def _end_after_a_failure(real: Any) -> Any:
    def add(self: CommitMachine, plan: Any) -> Any:
        try:
            return (yield from real(self, plan))
        except logs.OutcomeUnknown:
            yield op.RemoveLeftovers(lambda run: run != self.run)
            raise

    return add


def _only_the_newest_is_listed(self: FileLog, plan: Any, *, is_sure: bool = False) -> Any:
    self._known = yield from self._found()
    return self._known


def _committed_over(self: SimVersions, base: op.LogPosition, change: op.TableChange) -> bool:
    self.commit(change)
    return True


def _without_restores(newest: int, read: Any) -> HeldVersion:
    return HeldVersion(newest)


def _of_the_newest_restore(newest: int, read: Any) -> HeldVersion:
    """Looks only at the newest RESTORE, and at no RESTORE before it."""
    at = next((version for version in range(newest, -1, -1) if read(version).is_entry), 0)
    by = next((version for version in range(newest, at, -1) if read(version).restored is not None), None)
    if by is None:
        return HeldVersion(newest)
    held = next((version for version in range(read(by).restored, -1, -1) if read(version).is_entry), 0)
    return HeldVersion(newest) if held == at else HeldVersion(held, (by, read(by).restored))


def _state_of_all_actions(self: SimVersions, change: op.TableChange) -> None:
    """An entry after a RESTORE does not take back the actions: the next reader finds those of the lost entries."""
    state = self.versions[-1].state if self.versions else TableState(is_whole=True)
    files = () if change.files is None else tuple(change.files.content[0])
    content = self.versions[-1].content if self.versions else ()
    after, is_entry = change.state_after(state), change.plan is not None and change.files is not None
    if change.plan is None:
        is_entry = True  # the entry of a run hides the RESTORE
    self.publish(change)
    self.versions.append(Version(after, files, content + files, tuple(self.batches), VersionCommit(is_entry)))


def _never_finished(self: CommitMachine, position: op.LogPosition) -> Any:
    if position.state.run == self.run:
        yield op.FinishEntry(position)


def _removed_targets(real: Any) -> Any:
    def finish(self: SimFiles, position: op.LogPosition) -> None:
        real(self, position)
        for name in () if position.content is None else position.content["files"]:
            if name in self.moved and self.random.random() < 0.05:
                self.data.pop(name, None)

    return finish


def _kept_queries(self: TableState, run: RunTag, query: str, batch: QueryState) -> TableState:
    return TableState(run, {**self.queries, query: batch})


def _any_note_is_done(known: QueryState | None, plan: Any, table: str) -> QueryState | None:
    """As before: a replay that the table knows adds nothing, whatever it selects now."""
    return known


def _of_the_group(table: Any, admin: Any) -> Any:
    return {tp: one.offset for tp, one in admin.list_group_offsets("g").items()}, adoption.NOTES, {}


@contextmanager
def _no_check_of_starts() -> Iterator[None]:
    """Neither the first look of a run nor its publication compares the group's commits with the notes."""
    nothing = patch.object(machine, "check_starts", lambda *given: None)
    with nothing, patch.object(sim_table, "check_starts", lambda *given: None):
        yield


def _adopted_unseen(self: CommitMachine, plan: Any, no_files: Any, seen: Any) -> Any:
    newest = yield from self.look(plan)
    yield from _ADOPT(self, plan, no_files, newest.newest_query)


def _is_adoption(change: op.TableChange | None) -> bool:
    return change is not None and change.plan is not None and change.plan.query.startswith(ADOPTED)


@contextmanager
def _adoptions_overwritten() -> Iterator[None]:
    """A paused run replaces the entry of an adoption, in files and in versions."""
    create, commit = SimFiles._create, SimVersions._commit

    def create_over(self: SimFiles, number: int, text: str) -> bool:
        over = _is_adoption(self.entries[number][1]) if number in self.entries else False
        return (_create_over if over else create)(self, number, text)

    def commit_over(self: SimVersions, base: op.LogPosition, change: op.TableChange) -> bool:
        is_over = len(self.versions) == base.number + 2 and self.batches[-1].query.startswith(ADOPTED)
        return (_committed_over if is_over else commit)(self, base, change)

    with patch.object(SimFiles, "_create", create_over), patch.object(SimVersions, "_commit", commit_over):
        yield


def _group_moved(real: Any) -> Any:
    """A replay commits the end that it has read up to."""

    def check(self: TableScenario) -> None:
        self.group.commit({sim_table_store.TP: self.topics.ends[sim_table_store.TP]})
        real(self)

    return check


def _end_without_unfinished(real: Any) -> Any:
    """A run whose files could not be moved removes them when it ends, although its entry names them."""

    def end(self: CommitMachine) -> Any:
        self._needs_files = False
        yield from real(self)

    return end


def _run_of_the_rows(real: Any) -> Any:
    """The run is that of the snapshot to which the table was set back, and not the newest one."""

    def read(view: Any, table: str, evidence: Any) -> Any:
        found, note = real(view, table, evidence)
        held = view.snapshots.get(view.main)
        run = None if held is None else RunTag.parse(held.summary.get(notes.RUN_PROPERTY, ""))
        return replace(found, run=found.run if run is None else run), note

    return read


def _state_of_the_property(view: Any, table: str, evidence: Any) -> Any:
    note = Note() if view.note is None else Note.parse(view.note, table)
    return replace(note.state, run=note.run), note


def _any_snapshot_is_an_entry(real: Any) -> Any:
    """The snapshot of a run without a micro-batch has the state, too."""

    def after(self: Note, change: op.TableChange, base: TableState, snapshot: int) -> Any:
        note, summary = real(self, change, base, snapshot)
        if change.plan is None:
            note = Note(change.run, snapshot, self.state)
            summary[notes.STATE_PROPERTY] = json.dumps(to_json(self.state))
        return note, summary

    return after


@contextmanager
def _any_run_committed() -> Iterator[None]:
    """A commit demands only the branch main. Other writers set it back more often, so that it stands where it was."""
    with patch.object(SimSnapshots, "is_demanded", lambda self, seen: self.main == seen.main):
        yield


def _compared_once(real: Any) -> Any:
    """The columns of a driver's rows are compared with the table that it sees first, and not when its entry fails."""
    seen: list[Any] = []

    def check(self: RowColumns, held: Any, table: str, **named: Any) -> None:
        if not any(one is self for one in seen):
            real(self, held, table, **named)
        seen.append(self)

    return check


def _or_missing(real: Any) -> Any:
    def is_allowed(self: RowColumns, change: columns.ColumnChange) -> bool:
        return change.new is None or real(self, change)

    return is_allowed


def _without_columns(real: Any) -> Any:
    """A replay or an adoption notes no columns, and forgets those of the table."""

    def after(self: op.TableChange, before: TableState) -> TableState:
        found: TableState = real(self, before)
        has_none = self.plan is not None and self.plan.columns is None
        return replace(found, columns=None) if has_none else found

    return after


ICEBERG_BUGS: dict[str, Bug] = {
    "a commit demands nothing": _replacing(SimSnapshots, "is_demanded", lambda self, seen: True),
    "a commit demands only main": _any_run_committed,
    "a commit demands only the tag": _replacing(SimSnapshots, "is_demanded", lambda self, seen: self.tag == seen.tag),
    "the property decides after a rollback": _replacing(notes, "read", _state_of_the_property),
    "the rows decide which run is the newest": _replacing(notes, "read", _run_of_the_rows(notes.read)),
    "the snapshot of a run hides a rollback": _replacing(Note, "after", _any_snapshot_is_an_entry(Note.after)),
    "an expired snapshot is agreement": _replacing(notes, "_unknown", lambda state, evidence, table: state),
    "only the current snapshot holds files": _replacing(SimSnapshots, "_held", lambda self: list(self.visible_files())),
    "a replaced table has a new query start anywhere": _replacing(state, "check_lost", lambda found, plan: None),
}
"""Bugs of the notes and commits of Iceberg tables."""
BUGS: dict[str, Bug] = {
    "columns are not compared": _replacing(RowColumns, "check", lambda *given, **named: None),
    "columns are compared at the first look only": lambda: patch.object(
        RowColumns, "check", _compared_once(RowColumns.check)
    ),
    "any run may change columns": _replacing(
        RowColumns,
        "_is_allowed",
        lambda self, change: change.new is not None and (change.old is None or change.is_wider),
    ),
    "a type may become narrower": _replacing(columns.ColumnChange, "is_wider", property(lambda self: True)),
    "a column may be missing": _replacing(RowColumns, "_is_allowed", _or_missing(RowColumns._is_allowed)),
    "the log does not note columns": _replacing(logs, "to_json", lambda found: to_json(replace(found, columns=None))),
    "an entry without rows forgets the columns": _replacing(
        op.TableChange, "state_after", _without_columns(op.TableChange.state_after)
    ),
    "a run removes files that it could not move": _replacing(
        CommitMachine, "end", _end_without_unfinished(CommitMachine.end)
    ),
    "an adoption takes rows of a replay for the position": _replacing(file_names, "REPLAYS", re.compile("(?!)")),
    "a replay moves the group": _replacing(
        TableScenario, "check_after_replay", _group_moved(TableScenario.check_after_replay)
    ),
    "an adoption forgets what the copy lacks": _replacing(adoption, "is_of_table", lambda *given, **named: False),
    "the commits of an adoption do not name the table": _replacing(
        adoption, "with_output", lambda commit, table: commit
    ),
    "a run begins behind records that the table lacks": _no_check_of_starts,
    "an adoption does not see a run that publishes meanwhile": _replacing(CommitMachine, "adopt", _adopted_unseen),
    "an adoption takes the group's offsets": _replacing(adoption, "_offsets_of", _of_the_group),
    "a paused run overwrites an adoption": _adoptions_overwritten,
    "an adoption keeps the old checkpoint": _replacing(SimCheckpointFolder, "rename", lambda self, name: None),
    "a replay adds what another run has added": _replacing(state, "_held_replay", lambda known, plan, table: None),
    "a replay that is known adds nothing": _replacing(state, "_held_replay", _any_note_is_done),
    "the ranges of a replay are forgotten": _replacing(QueryState, "after", lambda self, former: self),
    "a missing digest is agreement": _unknown_is_agreement,
    "an old micro-batch counts as held": _replacing(machine, "held_batch", _old_means_held(machine.held_batch)),
    "a forgotten micro-batch was never added": _replacing(
        machine, "held_batch", _forgotten_means_never_added(machine.held_batch)
    ),
    "an entry replaces another": _replacing(SimFiles, "_create", _create_over),
    "a version replaces another": _replacing(SimVersions, "_commit", _committed_over),
    "a RESTORE is not seen": _replacing(sim_table_store, "held_version", _without_restores),
    "only the newest RESTORE is seen": _replacing(sim_table_store, "held_version", _of_the_newest_restore),
    "the entry of a run hides a RESTORE": _replacing(SimVersions, "commit", _state_of_all_actions),
    "a new query starts anywhere after a RESTORE": _replacing(state, "check_lost", lambda found, plan: None),
    "file names have no run": _replacing(RunTag, "text", property(lambda self: "000001.00000001")),
    "a move removes its target": _replacing(SimFiles, "_finish", _removed_targets(SimFiles._finish)),
    "leftovers are removed without an entry": _replacing(CommitMachine, "begin", _removal_without_an_entry),
    "an ended run publishes": _replacing(CommitMachine, "_check", lambda self, found: None),
    "the group gets the offsets of any run": _replacing(CommitMachine, "commit_offsets", _offsets_of_any_run),
    "the log is not read after the group's commit": _replacing(CommitMachine, "commit_offsets", _no_second_look),
    "the log is read before the fence": _replacing(CommitMachine, "commit_offsets", _look_before_the_fence),
    "a refused commit is repeated without a look": _replacing(
        CommitMachine, "commit_offsets", _no_look_after_a_refusal
    ),
    "the broker takes commits of an old epoch": _replacing(
        TableScenario, "_commit_offsets", _old_epochs_commit(TableScenario._commit_offsets)
    ),
    "a micro-batch follows any other": _replacing(state, "_check_continued", lambda known, plan, table: None),
    "a plan ends before the one before it": _replacing(state, "check_follows", lambda *given: None),
    "a plan follows another one": _replacing(state, "check_link", lambda *given: None),
    "a new query starts anywhere": _replacing(state, "_check_first", lambda table, plan, name: None),
    "a partition that is read again starts anywhere": _replacing(state, "_check_read_again", lambda *given: None),
    "offsets of partitions that are not read are forgotten": _replacing(state, "_with_former", lambda new, old: new),
    "rows of an earlier version are not looked for": _replacing(
        machine, "unnoted_partitions", lambda found, plan: set()
    ),
    "a query continues after another one": _replacing(TableState, "with_batch", _kept_queries),
    "a forgotten entry is created again": _replacing(FileLog, "_is_base_held", _steps(True)),
    "entries are forgotten in descending order": _replacing(FileLog, "forget", _descending),
    "a list is trusted": _replacing(FileLog, "newest", _only_the_newest_is_listed),
    "files are removed after a lost reply": _replacing(CommitMachine, "add", _end_after_a_failure(CommitMachine.add)),
    "a dead run's entry is not finished": _replacing(CommitMachine, "_finish", _never_finished),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Plants a bug while the block runs."""
    if name is None:
        yield
        return
    with (BUGS | ICEBERG_BUGS)[name]():
        yield
