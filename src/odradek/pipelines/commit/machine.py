"""One run's commits to a table. Pure: it yields operations, and the table or the simulation does them.

The order of a micro-batch: read the newest entry, agree with it, write the files, publish an entry, finish it, forget
old entries. docs/notes/table-commits.md has the reasons.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from odradek.pipelines.commit.logs import CommitLog, OutcomeUnknown
from odradek.pipelines.commit.operations import (
    Answer,
    CommitGroup,
    DiscardFiles,
    FenceGroup,
    FindRowEnds,
    FinishEntry,
    HasLeftovers,
    LogPosition,
    NewFiles,
    RemoveLeftovers,
    Steps,
    TableChange,
    TableOperation,
    WriteRows,
)
from odradek.pipelines.commit.partition_starts import check_linked, check_starts
from odradek.pipelines.commit.run_errors import fenced, overtaken
from odradek.pipelines.commit.state import (
    Added,
    BatchPlan,
    QueryState,
    RunTag,
    TableRefused,
    TableState,
    check_rows,
    held_batch,
    unnoted_partitions,
)

T = TypeVar("T")
_MOST_REFUSED = 10
"""Two runs that commit at the same time fence each other. One of them can soon publish no more."""


class Published(NamedTuple):
    """A micro-batch in the table. ``is_held``: the table had it already, so this run has added nothing."""

    state: QueryState
    is_held: bool

    @property
    def added(self) -> Added:
        return self.state.added


class CommitMachine:
    """A run of a pipeline on one table. ``name``: the table's name for messages."""

    def __init__(self, run: RunTag, log: CommitLog, name: str) -> None:
        self.run = run
        self._log = log
        self._name = name
        self._finished = -1  # the number of the newest entry whose files are visible
        self._begun: LogPosition | None = None  # the newest entry when the run began
        self.is_open = False
        """Whether an entry of this run may still appear in the log."""
        self._needs_files = False  # whether an entry is published whose files could not be made visible

    def begin(self) -> Steps[TableState]:
        """Finishes the newest entry, and removes the files of runs that left some. Returns the table's state.

        An entry of this run ends the other runs before their files are removed. Raises RunFenced, StorageError.
        """
        newest = yield from self._newest_finished(None)
        has_leftovers = yield from HasLeftovers()
        while has_leftovers and newest.state.run != self.run:
            self._check(newest.state)
            appended = yield from self._append(newest, TableChange(self.run))
            if appended is None:
                newest = yield from self._newest_finished(None)
            else:
                newest, self._finished = appended, appended.number
        if has_leftovers:
            yield from RemoveLeftovers(newest.state.may_publish)
        self._begun = newest
        return newest.state

    def add(self, plan: BatchPlan) -> Steps[Published]:
        """Adds a micro-batch, unless the table has it. Raises TableRefused, ConfigError for other columns than those of
        the table, RunFenced, OutcomeUnknown, and the errors of the write."""
        files: NewFiles | None = None
        while True:
            newest = yield from self._newest_finished(plan)
            self._check(newest.state)
            held = self._held(newest, plan)
            if held is not None:
                if files is not None:
                    yield from DiscardFiles(files)
                return Published(held, is_held=True)
            if plan.columns is not None:  # another run may have changed them since the one before was read
                plan.columns.check(newest.state.columns, self._name)
            check_linked(plan.unlinked, plan.batch, self._name)
            check_starts(newest.state, plan.ours, plan.at_end, self._name)
            if files is None:
                if unnoted := unnoted_partitions(newest.state, plan):
                    check_rows((yield from FindRowEnds(frozenset(unnoted))), plan, self._name)
                files = yield from self._write(plan)
            appended = yield from self._append(newest, TableChange(self.run, plan, files))
            if appended is not None:
                yield from self._finish(appended)
                yield from self._log.forget(appended)
                return Published(plan.state(files.added), is_held=False)

    def adopt(self, plan: BatchPlan, no_files: NewFiles, seen: QueryState | None) -> Steps[None]:
        """Publishes the offsets of ``plan`` as those of the table. Earlier runs and queries can add nothing then.
        ``seen``: the newest query of the notes from which the plan was made. Raises TableRefused if another run has
        added a micro-batch since, RunFenced, OutcomeUnknown."""
        appended: LogPosition | None = None
        while appended is None:
            newest = yield from self._newest_finished(plan)
            self._check(newest.state)
            if newest.state.newest_query != seen:
                raise TableRefused(
                    f"a run has added a micro-batch to {self._name} meanwhile. Nothing was adopted: stop that run, and "
                    "repeat the command"
                )
            appended = yield from self._append(newest, TableChange(self.run, plan, no_files))

    def look(self, plan: BatchPlan | None = None) -> Steps[TableState]:
        """Returns the table's state now. ``plan``: the micro-batch whose query is wanted."""
        newest = yield from self._log.newest(plan)
        return newest.state

    def commit_offsets(self, plan: BatchPlan) -> Steps[bool]:
        """Commits the offsets of the query's newest micro-batch to its group, if this run is the newest.

        Returns whether it is. If commits are fenced, a run that has read the log before the last commit of another run
        cannot commit: it fences the other run and reads the log again. Otherwise the log is read again afterwards: if
        another run has published meanwhile, its offsets are committed in place of ours.
        """
        committed: QueryState | None = None
        refused = 0
        is_fenced = yield from FenceGroup()
        while True:
            newest = yield from self._log.newest(plan, is_sure=True)
            batch = newest.state.of(plan.query)
            if batch is None and committed is not None:  # another query has followed meanwhile
                batch = newest.state.newest_query
            if batch is None or batch == committed:
                return newest.state.may_publish(self.run)
            if committed is None and not newest.state.may_publish(self.run):
                return False
            if not (yield from CommitGroup(batch)):
                refused += 1
                if refused > _MOST_REFUSED:
                    return False
                is_fenced = yield from FenceGroup()
            elif is_fenced:
                return newest.state.may_publish(self.run)
            else:
                committed = batch

    def end(self) -> Steps[None]:
        """Removes files of runs that can publish no more, and of this run if no entry needs them: neither an open one
        nor a published one whose files could not be made visible. The next run does that."""
        newest = yield from self._log.newest(None)
        is_open = self.is_open or self._needs_files

        def can_publish(run: RunTag) -> bool:
            return is_open if run == self.run else newest.state.may_publish(run)

        yield from RemoveLeftovers(can_publish)

    def _newest_finished(self, plan: BatchPlan | None) -> Steps[LogPosition]:
        """Returns the newest entry, after its files are visible: the run that published it may have died before that.
        So all entries before the newest one are finished at any time."""
        newest = yield from self._log.newest(plan)
        yield from self._finish(newest)
        return newest

    def _finish(self, position: LogPosition) -> Steps[None]:
        if position.number > self._finished:
            self._needs_files = True
            yield from FinishEntry(position)
            self._finished, self._needs_files = position.number, False

    def _write(self, plan: BatchPlan) -> Steps[NewFiles]:
        """Writes the files of a micro-batch. If that fails because a newer run has removed them, raises RunFenced."""
        try:
            return (yield from WriteRows(plan))
        except Exception as error:
            newest = yield from self._log.newest(None, is_sure=True)
            if not newest.state.may_publish(self.run):
                raise fenced(self.run, newest.state, self._name) from error
            raise

    def _append(self, base: LogPosition, change: TableChange) -> Steps[LogPosition | None]:
        self.is_open = True
        appended = yield from self._log.append(base, change)
        self.is_open = False
        return appended

    def _held(self, newest: LogPosition, plan: BatchPlan) -> QueryState | None:
        """Returns the micro-batch if the table has it. If the table has gone on by another run since this run began,
        that run is the reason why they do not agree, and not the checkpoint. Raises TableRefused, RunFenced."""
        try:
            return held_batch(newest.state, plan, self._name)
        except TableRefused as error:
            known, begun = newest.state.of(plan.query), self._begun
            has_gone_on = begun is not None and newest.number > begun.number and newest.state.run != self.run
            if plan.is_replay or known is None or plan.batch > known.batch or not has_gone_on:
                raise
            raise overtaken(self.run, newest.state, known, self._name) from error

    def _check(self, state: TableState) -> None:
        if not state.may_publish(self.run):
            raise fenced(self.run, state, self._name)


def drive(steps: Steps[T], perform: Callable[[TableOperation], Answer]) -> T:
    """Runs a part of the machine: ``perform`` does each operation. Returns the part's result; raises its errors."""
    try:
        operation = next(steps)
        while True:
            try:
                result = perform(operation)
            except Exception as error:
                operation = steps.throw(error)
            else:
                operation = steps.send(result)
    except StopIteration as stop:
        done: T = stop.value
        return done


__all__ = ["CommitMachine", "OutcomeUnknown", "Published", "drive"]
