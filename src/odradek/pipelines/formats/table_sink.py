"""A table of any format, as a run of a pipeline writes it: what does the operations of the run's commit machine."""

from __future__ import annotations

import contextlib
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, TypeVar

from odradek.core.errors import StorageError
from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.columns import Columns, RowColumns
from odradek.pipelines.commit.machine import CommitMachine, drive
from odradek.pipelines.commit.operations import (
    Answer,
    CommitGroup,
    CommitVersion,
    DiscardFiles,
    EntryOperation,
    FenceGroup,
    FindRowEnds,
    FinishEntry,
    HasLeftovers,
    LogPosition,
    NewFiles,
    ReadVersion,
    RemoveLeftovers,
    Steps,
    TableChange,
    TableOperation,
    VersionOperation,
    WriteRows,
)
from odradek.pipelines.commit.state import Added, BatchPlan, QueryState, RunTag, TableState
from odradek.pipelines.files.file_names import REPLAYS
from odradek.pipelines.files.table_rows import Marks, Spans

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from odradek.pipelines.files.batch_rows import BatchRows

T = TypeVar("T")


def next_number(least: int) -> int:
    """Returns the number of a run that is the only one. ``least``: that of the newest run before."""
    return least + 1


class TableSink(ABC):
    """A table for one run, from ``prepare`` to ``close``. ``_NO_FILES``: the files of a micro-batch without rows."""

    # Subclasses use _NO_FILES, _add, _begin_run, _discard, _drive, _finish, _has_leftovers, _machine, _perform_in_log,
    # _reading, _remove_leftovers, _rows, _run and _write.

    _NO_FILES: ClassVar[NewFiles]
    lost: frozenset[str] = frozenset()
    """The files of the newest micro-batch that are nowhere, if the run allows that."""
    lost_offsets: Mapping[TopicPartition, tuple[int, int]] = {}
    """The start and the end of that micro-batch in each partition, as far as the notes have them."""
    row_columns: RowColumns | None = None
    """The columns of the run's rows, and whether they may change those of the table. None: they may not."""

    def __init__(self) -> None:
        self._rows: BatchRows | None = None
        self._run: CommitMachine | None = None
        self._commit_offsets: Callable[[QueryState], bool | None] = lambda batch: None
        self._fence_commits: Callable[[], bool] = lambda: False

    # --- the run

    @abstractmethod
    def prepare(
        self,
        dead: Collection[str] | None = None,
        take_number: Callable[[int], int] = next_number,
        gone: Collection[str] = (),
    ) -> None:
        """Begins the run: finishes what a killed run has published, and removes files of earlier runs.

        ``take_number``: returns the run's number, which is higher than the given one. ``dead``: runs of earlier
        versions that are dead; None: all. ``gone``: the runs that may have left files. Raises StorageError, RunFenced.
        """

    @abstractmethod
    def close(self) -> None:
        """Removes the files of this run, and of runs that can publish no more, that are in no entry of the log."""

    @abstractmethod
    def _begin_run(self, take_number: Callable[[int], int] = next_number) -> None:
        """Sets ``_run``. ``take_number``: as for ``prepare``."""

    @property
    def _machine(self) -> CommitMachine:
        if self._run is None:
            self._begin_run()
        assert self._run is not None
        return self._run

    # --- notes and rows

    def state(self, plan: BatchPlan | None = None) -> TableState:
        """Returns the table's run, and the state of the query of ``plan``. Raises StorageError."""
        with self._reading():
            return self._drive(self._machine.look(plan))

    @abstractmethod
    def check_notes(self, query: str) -> None:
        """Raises TableRefused if the table has files of this query, or of any later run, that its log does not know.
        ``query``: the id of a query or a replay, or empty. Raises StorageError."""

    def offsets(self, plan: BatchPlan) -> dict[TopicPartition, int]:
        """Returns the offsets after the newest micro-batch of the query of ``plan``, in its partitions that the table
        has noted."""
        known = self.state().of(plan.query)
        held = {} if known is None or known.offsets is None else known.offsets
        return {tp: held[tp] for tp in plan.offsets if tp in held}

    def tails(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogTail]:
        """Returns the last batches that the newest query has read in these partitions, as far as they are noted."""
        newest = self.state().newest_query
        return {} if newest is None else {tp: tail for tp, tail in newest.tails.items() if tp in partitions}

    def has_batches(self, *, is_begun: bool = True, has_runs: Callable[[], bool] = lambda: False) -> bool | None:
        """Returns whether a query has added a micro-batch; None if it may have. ``is_begun``: whether the table was
        begun as ours when this run opened it. ``has_runs``: returns whether all micro-batches of the table have noted
        their runs. Raises StorageError."""
        return self.state().newest_query is not None

    def columns(self) -> Columns | None:
        """Returns the columns of the rows of our runs; None if there are none, or if an earlier version has not noted
        them. Raises StorageError."""
        return self.state().columns

    @abstractmethod
    def has_records(self) -> bool:
        """Returns whether a query or a replay has added anything. True if that is unknown. Raises StorageError."""

    @abstractmethod
    def row_ends(
        self, partitions: Collection[TopicPartition] | None = None, left_out: re.Pattern[str] = REPLAYS
    ) -> dict[TopicPartition, int]:
        """Returns the offset after the last row of each of these partitions that has rows; None: of all partitions.
        Files with the names ``left_out`` do not count. Reads the table. Raises ConfigError if it lacks the columns for
        that, StorageError."""

    @abstractmethod
    def marks(self, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
        """Returns the times and keys of the rows in these ranges (``files_of``: as for ``table_rows.marks_in``). Reads
        the table. Raises ConfigError, StorageError."""

    # --- micro-batches

    def check(self, frame: DataFrame) -> None:  # noqa: B027  some formats accept all columns
        """Raises ConfigError if an existing table cannot have the columns of these rows, StorageError."""

    @abstractmethod
    def begin(self, columns: pa.Schema) -> None:
        """Accepts the columns of the rows that workers write. Raises ConfigError, StorageError."""

    @abstractmethod
    def add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        """Adds a micro-batch, unless the table already has it; returns its counts.

        Raises TableRefused, RunFenced, ConfigError, StorageError, and the errors of ``BatchRows.write``.
        """

    def _add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        """Lets the machine add a micro-batch of these rows."""
        self._rows = rows
        try:
            return self._drive(self._machine.add(replace(plan, columns=self.row_columns))).added
        finally:
            self._rows = None

    def adopt(self, plan: BatchPlan, seen: QueryState | None) -> None:
        """Publishes an entry with the offsets of ``plan``, without rows: it ends all earlier runs and queries.
        ``seen``: as in ``CommitMachine.adopt``. Raises TableRefused, RunFenced, StorageError.
        """
        self._drive(self._machine.adopt(plan, self._NO_FILES, seen))

    def commit_group(
        self, plan: BatchPlan, commit: Callable[[QueryState], bool | None], fence: Callable[[], bool] = lambda: False
    ) -> bool:
        """Calls ``commit`` with the newest micro-batch of the query of ``plan``, to commit its offsets to the group, if
        no newer run has published. Returns whether this run may do that. ``commit`` returns False if another run has
        fenced this one since ``fence``, which returns whether commits are fenced. Raises StorageError.
        """
        self._commit_offsets, self._fence_commits = commit, fence
        with self._reading():
            return self._drive(self._machine.commit_offsets(plan))

    # --- the operations of the machine

    def _drive(self, steps: Steps[T]) -> T:
        return drive(steps, self._perform)

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Turns the errors of reading the table's log into StorageError."""
        return contextlib.nullcontext()

    def _perform(self, operation: TableOperation) -> Answer:
        match operation:
            case FindRowEnds(partitions):
                return operation.answer(self.row_ends(partitions))
            case WriteRows(plan):
                return operation.answer(self._write(plan))
            case FinishEntry(position):
                self._finish(position)
            case DiscardFiles(files):
                self._discard(files)
            case HasLeftovers():
                return operation.answer(self._has_leftovers())
            case RemoveLeftovers(can_publish):
                self._remove_leftovers(can_publish)
            case FenceGroup():
                return operation.answer(self._fence_commits())
            case CommitGroup(batch):
                return operation.answer(self._commit_offsets(batch) is not False)
            case _:
                return self._perform_in_log(operation)
        return operation.answer(None)

    @abstractmethod
    def _perform_in_log(self, operation: EntryOperation | VersionOperation) -> Answer: ...

    @abstractmethod
    def _write(self, plan: BatchPlan) -> NewFiles:
        """Writes ``_rows``. Their names have the run, so two runs never write the same file."""

    @abstractmethod
    def _finish(self, position: LogPosition) -> None: ...

    @abstractmethod
    def _discard(self, files: NewFiles) -> None: ...

    @abstractmethod
    def _has_leftovers(self) -> bool:
        """Returns whether an entry of this run is needed before files of other runs can be removed."""

    @abstractmethod
    def _remove_leftovers(self, can_publish: Callable[[RunTag], bool]) -> None: ...


class VersionedTableSink(TableSink):
    """A table whose format has versions: Delta, Iceberg."""

    # Subclasses use _adding, _commit and _newest.

    def __init__(self) -> None:
        super().__init__()
        self._adding = threading.Lock()

    def close(self) -> None:
        """Removes files of this run and of ended runs that no version has. Keeps files that this run has committed or
        may have committed. A task of a dead run may have written more files since ``prepare``."""
        if self._run is None or not self._adding.acquire(blocking=False):
            return  # another thread is about to commit: a later run removes the files
        try:
            with contextlib.suppress(StorageError, OSError), self._reading():  # a later run removes them
                self._drive(self._run.end())
        finally:
            self._adding.release()

    def _perform_in_log(self, operation: EntryOperation | VersionOperation) -> Answer:
        match operation:
            case ReadVersion(plan):
                with self._reading():
                    return operation.answer(self._newest(plan))
            case CommitVersion(base, change):
                return operation.answer(self._commit(base, change))
            case _:
                raise TypeError(f"a table of versions has no {operation}")

    def _finish(self, position: LogPosition) -> None:
        """Does nothing: a reader sees the files as soon as the log has them."""

    @abstractmethod
    def _newest(self, plan: BatchPlan | None = None) -> LogPosition:
        """Returns the newest version, with the state that belongs to its rows."""

    @abstractmethod
    def _commit(self, base: LogPosition, change: TableChange) -> bool:
        """Makes the version after ``base``; returns False if it exists already."""
