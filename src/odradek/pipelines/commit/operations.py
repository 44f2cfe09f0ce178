"""The operations of the commit state machine. It yields them, and a table or the simulation does them. Pure data.

An operation that fails raises an error into the state machine. After a failed ``Create`` or ``CommitVersion`` it is
unknown whether it was done, because the reply may be lost; it may even be done later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.state import Added, BatchPlan, QueryState, RunTag, TableState, new_starts

T = TypeVar("T")
Steps = Generator[Any, Any, T]
"""A part of the state machine: yields operations, gets their results, and returns a T."""


@dataclass(frozen=True)
class NewFiles:
    """The files of a micro-batch that were written and not published yet. ``content``: for the table that wrote them.
    ``added``: their counts. ``tails``: the last batches of the ranges that were read, as far as they are known."""

    content: Any
    added: Added
    tails: Mapping[TopicPartition, LogTail] = field(default_factory=dict)


@dataclass(frozen=True)
class TableChange:
    """What an entry adds to the log: a run, and a micro-batch of it with its files, if there is one."""

    run: RunTag
    plan: BatchPlan | None = None
    files: NewFiles | None = None

    def state_after(self, before: TableState) -> TableState:
        """Returns the table's state after this change."""
        if self.plan is None or self.files is None:
            return before.with_run(self.run)
        after = before.with_batch(self.run, self.plan.query, self.plan.state(self.files.added, self.files.tails))
        starts = {**before.starts, **new_starts(before, self.plan)}
        return replace(after, is_whole=after.is_whole or self.plan.is_whole, starts=starts)


@dataclass(frozen=True)
class LogPosition:
    """The newest entry of a log, as it was read. ``token``: distinguishes it from any other entry of this number.
    ``content``: for the table, for example the files of the entry."""

    number: int
    state: TableState
    token: str = ""
    content: Any = None


# --- entries that are files -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ListEntries:
    """→ the numbers of the entries that a list shows. The newest may be missing."""


@dataclass(frozen=True)
class ReadEntry:
    """→ the text of the entry; None if there is no such file."""

    number: int


@dataclass(frozen=True)
class CreateEntry:
    """→ True if this call has created the entry, False if there is a file of this name."""

    number: int
    text: str


@dataclass(frozen=True)
class DeleteEntry:
    """Removes an entry if it exists."""

    number: int


@dataclass(frozen=True)
class IsMarked:
    """→ whether entries of the log were forgotten."""


@dataclass(frozen=True)
class MarkForgotten:
    """Notes for ever that entries were forgotten."""


@dataclass(frozen=True)
class ReadEarlier:
    """→ the TableState in the notes of an earlier version of odradek; an empty one if there are none."""


# --- versions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadVersion:
    """→ the LogPosition of the newest version. ``plan``: a micro-batch whose query is wanted; None: only the run.
    If the table has no state of that query, → also the state of the newest other query."""

    plan: BatchPlan | None


@dataclass(frozen=True)
class CommitVersion:
    """Makes the version after ``base``. → True if it was made, False if another writer has made that version."""

    base: LogPosition
    change: TableChange


# --- any table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FindRowEnds:
    """→ the offset after the last row of each of these partitions that has rows. Reads the table."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class WriteRows:
    """Writes the rows of a micro-batch into files of this run. → NewFiles."""

    plan: BatchPlan


@dataclass(frozen=True)
class FinishEntry:
    """Makes the files of a published entry visible. It may be done several times, by several runs."""

    position: LogPosition


@dataclass(frozen=True)
class DiscardFiles:
    """Removes files of this run that are in no entry."""

    files: NewFiles


@dataclass(frozen=True)
class HasLeftovers:
    """→ whether there are files of other runs that are in no entry."""


@dataclass(frozen=True)
class RemoveLeftovers:
    """Removes files that are in no entry, of the runs that cannot publish any more: ``can_publish`` is False."""

    can_publish: Callable[[RunTag], bool]


@dataclass(frozen=True)
class FenceGroup:
    """Makes the broker refuse the commits that other runs have not sent yet, until another run does the same.
    → whether it does; False: commits are not fenced."""


@dataclass(frozen=True)
class CommitGroup:
    """Commits the offsets of a query's newest micro-batch to its group. → False if another run has fenced this one
    since ``FenceGroup``; True otherwise."""

    batch: QueryState
