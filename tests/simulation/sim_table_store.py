"""The store of a table, and the group, in a simulated world. They do the operations of the commit machine.

The store knows the truth about itself, and checks after each change that no published file is lost.
"""

from __future__ import annotations

import copy
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

from odradek.core.errors import StorageError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.columns import Columns
from odradek.pipelines.commit.restores import VersionCommit, held_version
from odradek.pipelines.commit.state import Added, BatchPlan, RunTag, TableState, key_of
from odradek.pipelines.files import file_names

TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
"""The query always reads the first one. It does not read the other one for a while."""
ADDED, LATER, GROWN = TopicPartition("t", 1), TopicPartition("v", 0), TopicPartition("v", 1)
"""Partitions that the topics get later, and a topic that the pipeline reads later."""
REPLAYED = TopicPartition("w", 0)
"""A partition that is only replayed at first. Until the pipeline reads it, its topic may be deleted and created
again."""
ROWS = 1_000_000
FIRST_ROWS = {TP: 0, OTHER: ROWS, ADDED: 3 * ROWS, LATER: 4 * ROWS, GROWN: 5 * ROWS, REPLAYED: 6 * ROWS}
"""The number of each partition's first row."""
PARTITIONS = {first // ROWS: tp for tp, first in FIRST_ROWS.items()}
REPLAYS_ROWS = 100 * ROWS
"""The number of the first row that replays add: they read records once more."""


def replayed_row(command: int, generation: int, tp: TopicPartition, offset: int) -> int:
    """Returns the number of a row that a replay has added. ``generation``: of the topic that is created again."""
    generation = generation if tp == REPLAYED else 0
    return REPLAYS_ROWS + (1000 * generation + 10 * command) * ROWS + FIRST_ROWS[tp] + offset


def partition_of(row: int) -> TopicPartition:
    """Returns the partition that a row names, as its columns ``topic`` and ``partition``."""
    return PARTITIONS[row // ROWS % 10]


_READS = (op.ListEntries, op.ReadEntry, op.IsMarked, op.ReadEarlier, op.HasLeftovers, op.ReadVersion)


@dataclass(frozen=True)
class SimPlan(BatchPlan):
    """``pieces``: the rows of the micro-batch, as (first, end). ``read``: the offsets of partitions that it reads."""

    pieces: tuple[tuple[int, int], ...] = ()
    read: Mapping[TopicPartition, int] = field(default_factory=dict)

    @property
    def rows(self) -> set[int]:
        return {row for start, end in self.pieces for row in range(start, end)}


@dataclass(frozen=True)
class HeldBatch:
    """A micro-batch in the table."""

    query: str
    batch: int
    pieces: tuple[tuple[int, int], ...]
    read: Mapping[TopicPartition, int]
    ends: str = ""
    columns: Columns | None = None

    @property
    def rows(self) -> set[int]:
        return {row for start, end in self.pieces for row in range(start, end)}


class Broken(AssertionError):
    """An invariant does not hold."""


class RowRanges:
    """The rows of a table as ascending ranges. Raises Broken if two of them have a row in common."""

    def __init__(self, pieces: Iterable[tuple[int, int]]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(piece for piece in pieces if piece[0] < piece[1]):
            if not self._ends or start > self._ends[-1]:
                self._starts.append(start)
                self._ends.append(end)
            elif start < self._ends[-1]:
                raise Broken(f"rows are in the table twice: {start} and the next ones")
            else:
                self._ends[-1] = end

    def has(self, start: int, end: int) -> bool:
        """Returns whether all rows from ``start`` to before ``end`` are there."""
        at = bisect_right(self._starts, start) - 1
        return start >= end or (at >= 0 and end <= self._ends[at])


@dataclass
class Faults:
    """The faults of a store. ``is_exclusive``: whether a create fails if the name is taken. ``list_delay``: after how
    many events at most a change of a file is in lists. ``chance``: of a fault in an operation."""

    is_exclusive: bool = True
    list_delay: int = 0
    chance: float = 0.0


@dataclass
class SimStore:
    """What all tables have: data files with their offsets, a truth, and requests that arrive late."""

    COPIED: ClassVar[tuple[str, ...]] = ("data", "published", "batches")
    """What a copy of the whole table has."""
    random: Random
    faults: Faults
    now: int = 0
    data: dict[str, tuple[int, int]] = field(default_factory=dict)
    published: dict[str, tuple[int, int]] = field(default_factory=dict)
    batches: list[HeldBatch] = field(default_factory=list)
    """The micro-batches whose rows the table has."""
    ever: list[HeldBatch] = field(default_factory=list)
    """All micro-batches, also those whose rows a RESTORE took back."""
    restores: int = 0
    late: list[Callable[[], Any]] = field(default_factory=list)
    writes: int = 0
    is_changed: bool = True
    on_publish: Callable[[SimPlan], None] = lambda plan: None
    was_put_back: bool = False

    def copied(self) -> dict[str, Any]:
        """Returns a copy of the whole table, with its notes and the files beside it."""
        return {name: copy.copy(getattr(self, name)) for name in self.COPIED}

    def put_back(self, content: Mapping[str, Any]) -> None:
        """Replaces the whole table by a copy of it."""
        for name, held in content.items():
            setattr(self, name, copy.copy(held))
        self.late.clear()
        self.is_changed = self.was_put_back = True

    def perform(self, tag: RunTag, operation: Any) -> Any:
        """Does an operation of a run. Raises StorageError for a fault: it may be done, not done, or be done later."""
        self.now += 1
        self.is_changed |= not isinstance(operation, _READS)
        if self.random.random() < self.faults.chance:
            changes = isinstance(operation, (op.CreateEntry, op.CommitVersion))
            fate = self.random.choice(["before", "after", "late"] if changes else ["before", "after"])
            if fate == "late":
                self.late.append(lambda: self.do(tag, operation))
            if fate == "after":
                self.do(tag, operation)
            raise StorageError(f"the reply is lost ({fate})")
        return self.do(tag, operation)

    def do(self, tag: RunTag, operation: Any) -> Any:
        raise NotImplementedError

    def publish(self, change: op.TableChange) -> None:
        """Notes the truth about an entry that counts."""
        if change.plan is not None and change.files is not None:
            plan = change.plan
            assert isinstance(plan, SimPlan)
            columns = None if plan.columns is None else plan.columns.types
            self.batches.append(HeldBatch(plan.query, plan.batch, plan.pieces, plan.read, plan.ends, columns))
            self.ever.append(self.batches[-1])
            self.on_publish(plan)
            for name in change.files.content[0]:
                self.published[name] = self.data.get(name, (-1, -1))

    def write(self, tag: RunTag, plan: BatchPlan) -> op.NewFiles:
        """Writes the rows of a micro-batch into two files, or three."""
        assert isinstance(plan, SimPlan)
        self.writes += 1
        (start, end), *others = plan.pieces
        middle = (start + end) // 2
        parts = {
            f"{tag.text}/{key_of(plan.query)}-{plan.batch}-{self.name_of_write()}{number}": piece
            for number, piece in enumerate([(start, middle), (middle, end), *others])
        }
        self.data.update(parts)
        return op.NewFiles((tuple(parts),), Added(sum(end - start for start, end in plan.pieces), 0, len(parts), 0))

    def row_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Returns the offset after the last row of each of these partitions that has rows, as the tables do it: by the
        names of files."""
        ends: dict[TopicPartition, int] = {}
        for name in self.visible_files():
            if not file_names.is_named(name, file_names.REPLAYS):
                for row in range(*self.data.get(name, (0, 0))):
                    tp = partition_of(row)
                    ends[tp] = max(ends.get(tp, 0), row % ROWS + 1)
        return {tp: end for tp, end in ends.items() if tp in partitions}

    def name_of_write(self) -> str:
        return ""

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self.data.pop(name, None)

    def visible_files(self) -> Iterable[str]:
        """The data files that a reader sees."""
        raise NotImplementedError

    def visible(self) -> list[int]:
        """The rows that a reader sees, with repetitions."""
        return [row for name in self.visible_files() for row in range(*self.data.get(name, (0, 0)))]

    def check(self) -> RowRanges:
        """Returns the rows that a reader sees. Raises Broken if one is there twice or a published file is lost."""
        for name, piece in self.published.items():
            if self.data.get(name) != piece:
                raise Broken(f"the published file {name} is gone or changed")
        return RowRanges(self.data[name] for name in self.visible_files() if name in self.data)


@dataclass
class SimFiles(SimStore):
    """A Parquet table: files that are staged, entries in files, and files that were moved into the table."""

    COPIED = (*SimStore.COPIED, "entries", "listed_at", "unlisted_at", "again", "highest", "is_marked", "moved")
    entries: dict[int, tuple[str, op.TableChange | None]] = field(default_factory=dict)
    listed_at: dict[int, int] = field(default_factory=dict)
    unlisted_at: dict[int, int] = field(default_factory=dict)
    again: set[int] = field(default_factory=set)  # entries that follow none, and count for nothing
    highest: int = 0
    is_marked: bool = False
    earlier: TableState = field(default_factory=TableState)
    moved: set[str] = field(default_factory=set)
    pending: dict[str, op.TableChange] = field(default_factory=dict)

    def describe(self, change: op.TableChange) -> dict[str, Any]:
        """The part of an entry about its files. ``key``: finds the change again for the truth."""
        key = f"{change.run.text}.{len(self.pending)}"
        self.pending[key] = change
        return {"key": key, "files": [] if change.files is None else list(change.files.content[0])}

    def do(self, tag: RunTag, operation: Any) -> Any:
        match operation:
            case op.ListEntries():
                return self._list()
            case op.ReadEntry(number):
                return self.entries[number][0] if number in self.entries else None
            case op.CreateEntry(number, text):
                return self._create(number, text)
            case op.DeleteEntry(number):
                if self.entries.pop(number, None) is not None:
                    self.unlisted_at[number] = self.later()
                    if number > self.highest:
                        self.again.discard(number)
            case op.IsMarked():
                return self.is_marked
            case op.MarkForgotten():
                self.is_marked = True
            case op.ReadEarlier():
                return self.earlier
            case op.WriteRows(plan):
                return self.write(tag, plan)
            case op.FindRowEnds(partitions):
                return self.row_ends(partitions)
            case op.FinishEntry(position):
                self._finish(position)
            case op.DiscardFiles(files):
                self.remove(files.content[0])
            case op.HasLeftovers():
                return any(not name.startswith(tag.text) for name in self._staged())
            case op.RemoveLeftovers(can_publish):
                gone = [n for n in self._staged() if not can_publish(RunTag.parse(n.partition("/")[0]) or tag)]
                self.remove(gone)
        return None

    def _staged(self) -> list[str]:
        return [name for name in self.data if name not in self.moved]

    def later(self) -> int:
        """Returns when lists show a change. Lists may show a newer change earlier than an older one."""
        return self.now + (self.random.randint(0, self.faults.list_delay) if self.faults.list_delay else 0)

    def _list(self) -> list[int]:
        if not self.faults.list_delay:
            return sorted(self.entries)
        again = self.again.intersection(self.entries)
        if again and self.random.random() < 0.5:  # the worst list: it has such an entry and no newer one
            return sorted(number for number in self.entries if number <= max(again))
        there = [number for number in self.entries if self.listed_at[number] <= self.now]
        gone = [number for number, at in self.unlisted_at.items() if at > self.now]
        return sorted({*there, *gone})

    def _create(self, number: int, text: str) -> bool:
        if number in self.entries and self.faults.is_exclusive:
            return False
        if number in self.entries and self.entries[number][0] != text:
            raise Broken(f"entry {number} is overwritten")
        change = self.pending[json.loads(text)["key"]]
        self.entries[number] = text, change
        self.listed_at[number] = self.later()
        self.unlisted_at.pop(number, None)
        if number <= self.highest or (self.was_put_back and not self._is_linked(number, text)):
            self.again.add(number)
        else:
            if number != self.highest + 1:
                raise Broken(f"entry {number} follows entry {self.highest}")
            self.highest = number
            self.publish(change)
        return True

    def _is_linked(self, number: int, text: str) -> bool:
        """Returns whether an entry follows the one before it, and not one that the table had before a copy of it was
        put back."""
        token = json.loads(self.entries[number - 1][0])["token"] if number - 1 in self.entries else None
        return bool(number == 1 or token == json.loads(text)["previous"])

    def _finish(self, position: op.LogPosition) -> None:
        names = [] if position.content is None else position.content["files"]
        for name in names:
            if name in self.data:
                self.moved.add(name)
                if self.random.random() < self.faults.chance:
                    raise StorageError("a move failed")

    def visible_files(self) -> Iterable[str]:
        return self.moved


@dataclass(frozen=True)
class Version:
    """A version of Delta's log. ``state``: what its ``txn`` actions say. ``files``: those that it adds. ``content``:
    the files of the table. ``batches``: the micro-batches whose rows the table has."""

    state: TableState
    files: tuple[str, ...]
    content: tuple[str, ...]
    batches: tuple[HeldBatch, ...]
    commit: VersionCommit


@dataclass
class SimVersions(SimStore):
    """A Delta table: versions of a log, also by other writers, and files in the table's folder."""

    COPIED = (*SimStore.COPIED, "versions")
    versions: list[Version] = field(default_factory=list)

    def do(self, tag: RunTag, operation: Any) -> Any:
        match operation:
            case op.ReadVersion(plan):
                return self._read(plan)
            case op.CommitVersion(base, change):
                return self._commit(base, change)
            case op.FindRowEnds(partitions):
                return self.row_ends(partitions)
            case op.WriteRows(plan):
                return self.write(tag, plan)
            case op.DiscardFiles(files):
                self.remove(set(files.content[0]) - set(self._held()))
            case op.HasLeftovers():
                return bool(self.versions) and any(not name.startswith(tag.text) for name in self._left())
            case op.RemoveLeftovers(can_publish):
                self.remove(n for n in self._left() if not can_publish(RunTag.parse(n.partition("/")[0]) or tag))
        return None

    def name_of_write(self) -> str:
        return f"{self.writes}-"

    def _held(self) -> list[str]:
        return [name for version in self.versions for name in version.files]

    def _left(self) -> list[str]:
        return sorted(set(self.data) - set(self._held()))

    def _read(self, plan: BatchPlan | None) -> op.LogPosition:
        if not self.versions:
            return op.LogPosition(-1, TableState(is_whole=True))
        newest = len(self.versions) - 1
        if plan is None:
            return op.LogPosition(newest, TableState(self.versions[-1].state.run))
        state = self.state()
        own = state.of(plan.query)
        if own is None or plan.first or plan.is_replay:
            return op.LogPosition(newest, state)
        queries = {plan.query: replace(own, offsets=None)}
        found = TableState(state.run, queries, restored=state.restored, columns=state.columns)
        return op.LogPosition(newest, found)

    def state(self) -> TableState:
        """The state that belongs to the table's rows, as ``DeltaRestores`` finds it."""
        if not self.versions:
            return TableState(is_whole=True)
        newest = self.versions[-1].state
        held = held_version(len(self.versions) - 1, lambda version: self.versions[version].commit)
        if held.by is None:
            return newest
        assert held.at is not None
        found = self.versions[held.at]
        state = found.state if found.commit.is_entry else TableState(is_whole=True)
        before = newest.newest_query
        lost = None if before is None or state.newest_query is not None else before.offsets
        restored = f"version {held.by[0]} restored version {held.by[1]}"
        return replace(state, run=newest.run, restored=restored, lost=lost)

    def _commit(self, base: op.LogPosition, change: op.TableChange) -> bool:
        if len(self.versions) != base.number + 1:
            return False
        self.commit(change)
        return True

    def commit(self, change: op.TableChange) -> None:
        is_entry = change.plan is not None and change.files is not None
        state = self.state() if is_entry or not self.versions else self.versions[-1].state
        files = () if change.files is None else tuple(change.files.content[0])
        content = self.versions[-1].content if self.versions else ()
        after = replace(change.state_after(state), restored="", lost=None)
        self.publish(change)
        self.versions.append(Version(after, files, content + files, tuple(self.batches), VersionCommit(is_entry)))

    def foreign_commit(self) -> None:
        """Another writer adds a version; it knows nothing of our state, and keeps it."""
        if self.versions:
            self.versions.append(replace(self.versions[-1], files=(), commit=VersionCommit(is_entry=False)))

    def foreign_restore(self, random: Random) -> None:
        """Another writer makes the content of an earlier version the newest one. The actions with our state stay."""
        if len(self.versions) < 2:
            return
        last = len(self.versions) - 1
        to = max(0, last - random.choice([1, 1, 2, 2, 3, 4, 6, 10, last]))
        held, commit = self.versions[to], VersionCommit(is_entry=False, restored=to)
        self.versions.append(Version(self.versions[-1].state, (), held.content, held.batches, commit))
        self.restores += held.batches != tuple(self.batches)
        self.batches = list(held.batches)
        self.is_changed = True

    def visible_files(self) -> Iterable[str]:
        return self.versions[-1].content if self.versions else ()


@dataclass
class SimGroup:
    """The group's offsets. ``store``: knows how far the table is. ``marked``: the partitions whose commit names the
    table, as that of a run does."""

    store: SimStore
    fences: bool = False
    """Whether the group's commits are fenced, as by a transactional id."""
    epoch: int = 0
    offsets: dict[TopicPartition, int] = field(default_factory=lambda: {TP: 0})
    marked: set[TopicPartition] = field(default_factory=set)

    @property
    def offset(self) -> int:
        """The offset of the first partition."""
        return self.offsets[TP]

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A run commits."""
        self.offsets |= offsets
        self.marked |= offsets.keys()

    def set(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Another client commits, or an adoption."""
        self.offsets |= offsets
        self.marked -= offsets.keys()


__all__ = [
    "ADDED",
    "FIRST_ROWS",
    "GROWN",
    "LATER",
    "OTHER",
    "PARTITIONS",
    "REPLAYED",
    "REPLAYS_ROWS",
    "ROWS",
    "TP",
    "Broken",
    "Faults",
    "HeldBatch",
    "SimFiles",
    "SimGroup",
    "SimPlan",
    "SimStore",
    "SimVersions",
    "Version",
    "partition_of",
    "replayed_row",
]
