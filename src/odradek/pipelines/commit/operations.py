"""The operations of the commit machine. It yields them, and a table or the simulation does them. Pure data.

Each operation has the type of its result: the machine gets it by ``yield from operation``, and what does the operation
returns it by ``operation.answer``. An operation that fails raises an error into the machine. After a failed
``CreateEntry`` or ``CommitVersion`` it is unknown whether it was done, because the reply may be lost; it may even be
done later.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NewType, TypeAlias, TypeVar, cast

from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.state import Added, BatchPlan, QueryState, RunTag, TableState, new_starts

T = TypeVar("T")
R = TypeVar("R")
Answer = NewType("Answer", object)
"""The result of an operation, on its way into the machine."""
Steps: TypeAlias = "Generator[TableOperation, Answer, T]"
"""A part of the machine: yields operations, gets their results, and returns a T."""


class TypedOperation(Generic[R]):
    """An operation with a result of the type R."""

    def __iter__(self) -> Steps[R]:
        return cast("R", (yield cast("TableOperation", self)))

    def answer(self, result: R) -> Answer:
        """Returns the result for the machine."""
        return Answer(result)


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
        columns = before.columns if self.plan.columns is None else self.plan.columns.after(before.columns)
        return replace(after, is_whole=after.is_whole or self.plan.is_whole, starts=starts, columns=columns)


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
class ListEntries(TypedOperation[list[int]]):
    """→ the numbers of the entries that a list shows. The newest may be missing."""


@dataclass(frozen=True)
class ReadEntry(TypedOperation[str | None]):
    """→ the text of the entry; None if there is no such file."""

    number: int


@dataclass(frozen=True)
class CreateEntry(TypedOperation[bool]):
    """→ True if this call has created the entry, False if there is a file of this name."""

    number: int
    text: str


@dataclass(frozen=True)
class DeleteEntry(TypedOperation[None]):
    """Removes an entry if it exists."""

    number: int


@dataclass(frozen=True)
class IsMarked(TypedOperation[bool]):
    """→ whether entries of the log were forgotten."""


@dataclass(frozen=True)
class MarkForgotten(TypedOperation[None]):
    """Notes for ever that entries were forgotten."""


@dataclass(frozen=True)
class ReadEarlier(TypedOperation[TableState]):
    """→ the TableState in the notes of an earlier version of odradek; an empty one if there are none."""


# --- versions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadVersion(TypedOperation[LogPosition]):
    """→ the LogPosition of the newest version. ``plan``: a micro-batch whose query is wanted; None: only the run.
    If the table has no state of that query, → also the state of the newest other query."""

    plan: BatchPlan | None


@dataclass(frozen=True)
class CommitVersion(TypedOperation[bool]):
    """Makes the version after ``base``. → True if it was made, False if another writer has made that version."""

    base: LogPosition
    change: TableChange


# --- any table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FindRowEnds(TypedOperation[Mapping[TopicPartition, int]]):
    """→ the offset after the last row of each of these partitions that has rows. Reads the table."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class WriteRows(TypedOperation[NewFiles]):
    """Writes the rows of a micro-batch into files of this run. → NewFiles."""

    plan: BatchPlan


@dataclass(frozen=True)
class FinishEntry(TypedOperation[None]):
    """Makes the files of a published entry visible. It may be done several times, by several runs."""

    position: LogPosition


@dataclass(frozen=True)
class DiscardFiles(TypedOperation[None]):
    """Removes files of this run that are in no entry."""

    files: NewFiles


@dataclass(frozen=True)
class HasLeftovers(TypedOperation[bool]):
    """→ whether there are files of other runs that are in no entry."""


@dataclass(frozen=True)
class RemoveLeftovers(TypedOperation[None]):
    """Removes files that are in no entry, of the runs that cannot publish any more: ``can_publish`` is False."""

    can_publish: Callable[[RunTag], bool]


@dataclass(frozen=True)
class FenceGroup(TypedOperation[bool]):
    """Makes the broker refuse the commits that other runs have not sent yet, until another run does the same.
    → whether it does; False: commits are not fenced."""


@dataclass(frozen=True)
class CommitGroup(TypedOperation[bool]):
    """Commits the offsets of a query's newest micro-batch to its group. → False if another run has fenced this one
    since ``FenceGroup``; True otherwise."""

    batch: QueryState


EntryOperation = ListEntries | ReadEntry | CreateEntry | DeleteEntry | IsMarked | MarkForgotten | ReadEarlier
VersionOperation = ReadVersion | CommitVersion
FileOperation = FindRowEnds | WriteRows | FinishEntry | DiscardFiles | HasLeftovers | RemoveLeftovers
TableOperation = EntryOperation | VersionOperation | FileOperation | FenceGroup | CommitGroup
