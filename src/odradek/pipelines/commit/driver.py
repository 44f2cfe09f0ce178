"""How a table of any format drives the commit state machine of its run, and commits the group's offsets through it."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.machine import TableRun, drive
from odradek.pipelines.commit.operations import CommitGroup, FenceGroup, NewFiles
from odradek.pipelines.commit.state import BatchPlan, QueryState, TableState


def next_number(least: int) -> int:
    """Returns the number of a run that is the only one. ``least``: that of the newest run before."""
    return least + 1


class CommitDriver(ABC):
    """A table that does the operations of its state machine. ``_NO_FILES``: the files of a micro-batch without rows."""

    # Subclasses use _NO_FILES, _begun, _drive, _machine, _perform, _reading and _run.

    _NO_FILES: ClassVar[NewFiles]

    def __init__(self) -> None:
        self._run: TableRun | None = None
        self._commit_offsets: Callable[[QueryState], bool | None] = lambda batch: None
        self._fence_commits: Callable[[], bool] = lambda: False

    @abstractmethod
    def _begun(self, take_number: Callable[[int], int] = next_number) -> None:
        """Begins the run: sets ``_run``. ``take_number`` returns its number, which is higher than the given one."""

    @property
    def _machine(self) -> TableRun:
        if self._run is None:
            self._begun()
        assert self._run is not None
        return self._run

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Turns the errors of reading the table's log into StorageError."""
        return contextlib.nullcontext()

    def _drive(self, steps: Any) -> Any:
        return drive(steps, self._perform)

    def _perform(self, operation: object) -> object:
        """Does an operation of the state machine. Subclasses do those of their log and files."""
        match operation:
            case CommitGroup(batch):
                return self._commit_offsets(batch) is not False
            case FenceGroup():
                return self._fence_commits()
            case _:
                raise TypeError(f"a table has no operation {operation}")

    def state(self, plan: BatchPlan | None = None) -> TableState:
        """Returns the table's run, and the state of the query of ``plan``. Raises StorageError."""
        with self._reading():
            found: TableState = self._drive(self._machine.look(plan))
        return found

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

    def adopt(self, plan: BatchPlan, seen: QueryState | None) -> None:
        """Publishes an entry with the offsets of ``plan``, without rows: it ends all earlier runs and queries.
        ``seen``: as in ``TableRun.adopt``. Raises TableRefused, RunFenced, StorageError.
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
            done: bool = self._drive(self._machine.commit_offsets(plan))
        return done
