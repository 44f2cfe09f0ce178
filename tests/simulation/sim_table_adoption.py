"""``odradek pipeline adopt`` in the simulated world of a table: the real function with a simulated table and broker.

``adoption.adopt`` runs as it is, with its order of steps. Between any two steps the command may be killed, or it is
paused while drivers and other adoptions go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from sim_table_checkpoint import Checkpoint
from sim_table_store import FIRST_ROWS, ROWS, Broken, SimPlan

from odradek.core.errors import OdradekError
from odradek.core.ids import EARLIEST, OffsetAndMetadata, TopicPartition
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit.machine import CommitMachine, drive
from odradek.pipelines.commit.state import ANY_REPLAY, REPLAY, Added, BatchPlan, QueryState, RunTag, TableState
from odradek.pipelines.ingestion import adoption
from odradek.pipelines.tables.group_fence import FenceLost
from odradek.spark.offsets.commit_marks import is_output, mark_commit, with_output

if TYPE_CHECKING:
    from sim_table import TableScenario

TABLE = "t"
ADOPTED = "adopted-"
"""The start of the id of an adoption's query."""
_NO_FILES = op.NewFiles(((),), Added(0, 0, 0, 0))


class AdoptionKilled(BaseException):
    """The process of an adoption is killed."""


class SimAdmin:
    """What an adoption asks a broker. ``step``: is called before each change."""

    def __init__(self, world: TableScenario, step: Callable[[str], None]) -> None:
        self._world = world
        self._step = step

    def __enter__(self) -> SimAdmin:
        return self

    def __exit__(self, *error: object) -> None: ...

    def describe_topics(self, names: Collection[str] | None = None, *, missing_ok: bool = False) -> dict[str, Any]:
        found: dict[str, list[Any]] = {}
        for tp in sorted(self._world.topics.ends):
            if names is None or tp.topic in names:
                found.setdefault(tp.topic, []).append(SimpleNamespace(partition=tp.partition))
        return {
            name: SimpleNamespace(partitions=parts, topic_id=self._world.topics.id_of(name))
            for name, parts in found.items()
        }

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        topics = self._world.topics
        found = {tp: topics.starts.get(tp, 0) if at == EARLIEST else topics.ends[tp] for tp, at in wanted.items()}
        return {tp: SimpleNamespace(offset=at) for tp, at in found.items()}

    def list_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        held = self._world.group
        return {
            tp: with_output(mark_commit(at), TABLE) if tp in held.marked else OffsetAndMetadata(at)
            for tp, at in held.offsets.items()
        }

    def alter_group_offsets(self, group: str, commits: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._step("the group's commit")
        held = self._world.group
        held.set({tp: one.offset for tp, one in commits.items()})
        held.marked |= {tp for tp, one in commits.items() if is_output(one, TABLE)}
        self._step("the end")


class SimFence:
    """The fenced commits of an adoption."""

    def __init__(self, world: TableScenario, step: Callable[[str], None]) -> None:
        self._world = world
        self._step = step
        self._epoch: int | None = None

    def fence(self) -> None:
        self._step("the fence")
        if self._epoch is None:
            self._world.group.epoch += 1
            self._epoch = self._world.group.epoch

    def commit(self, admin: SimAdmin, group: str, commits: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._step("the fenced commit")
        if self._epoch != self._world.group.epoch:
            self._epoch = None
            raise FenceLost
        admin.alter_group_offsets(group, commits)

    def close(self) -> None: ...


class SimCheckpointFolder:
    """The folder of the present checkpoint."""

    def __init__(self, world: TableScenario, step: Callable[[str], None]) -> None:
        self._world = world
        self._step = step
        self.uri = "the checkpoint"

    def children(self) -> list[str]:
        return ["offsets"] if self._world.checkpoint.planned else []

    def rename(self, name: str) -> None:
        self._step("the rename")
        self._world.checkpoint = Checkpoint(is_bound=False)


class AdoptedTable:
    """The table that an adoption has opened. It does the machine's operations in the world's store."""

    def __init__(self, world: TableScenario, adopting: SimAdoption, id_of_run: str) -> None:
        self._world = world
        self._adoption, self._step = adopting, adopting.step
        self.location = SimpleNamespace(uri=TABLE)
        self.checkpoint = SimCheckpointFolder(world, adopting.step)
        self.lost_files: frozenset[str] = frozenset()
        self.lost_offsets: Mapping[TopicPartition, tuple[int, int]] = {}
        self.adopted: Mapping[TopicPartition, int] = {}
        log = world.table_log()
        newest = drive(log.newest(None), self._perform).state.run.number
        self.tag = RunTag(max(world.numbers, newest) + 1, id_of_run)
        world.numbers = self.tag.number
        self._run = CommitMachine(self.tag, log, TABLE)
        drive(self._run.begin(), self._perform)

    def _perform(self, operation: Any) -> Any:
        if not isinstance(operation, (op.ReadEntry, op.ListEntries, op.IsMarked)):
            self._step(type(operation).__name__)
        return self._adoption.perform(getattr(self, "tag", RunTag(0, "")), operation)

    def check_own_checkpoint(self) -> None: ...

    def check_notes(self) -> None: ...

    def row_ends(self) -> dict[TopicPartition, int]:
        return self._world.store.row_ends(self._world.topics.ends)

    def notes(self, partitions: Iterable[TopicPartition]) -> TableState:
        plan = BatchPlan("", 0, "", "", offsets=dict.fromkeys(partitions, 0))
        found: TableState = drive(self._run.look(plan), self._perform)
        lost = None if found.lost is None else {tp: at for tp, at in found.lost.items() if tp in plan.offsets}
        newest = found.newest_query
        if newest is None or newest.offsets is None or self._world.kind != "delta":
            return replace(found, lost=lost)
        known = {tp: at for tp, at in newest.offsets.items() if tp in plan.offsets}  # Delta's are asked for by name
        queries = {name: replace(one, offsets=known) if one is newest else one for name, one in found.queries.items()}
        return replace(found, lost=lost, queries=queries)

    def has_replays(self) -> bool:
        found: TableState = drive(self._run.look(BatchPlan(ANY_REPLAY, 0, "", "")), self._perform)
        return any(query.startswith(REPLAY) for query in found.queries)

    def foreign_row_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {}  # no other writer rewrites files

    def adopt(self, plan: BatchPlan, seen: QueryState | None) -> None:
        self.adopted = plan.offsets
        named = SimPlan(**{**vars(plan), "read": plan.offsets})
        self._step("the entry")
        drive(self._run.adopt(named, _NO_FILES, seen), self._perform)

    def bind_anew(self) -> None:
        self._step("the mark of the checkpoint")
        self._world.checkpoint.is_bound = True

    def fenced_commits(self, client: object) -> SimFence | None:
        return SimFence(self._world, self._step) if self._world.group.fences else None

    def close(self) -> None:
        drive(self._run.end(), self._perform)


class SimAdoption:
    """The adoptions of a world. ``depth``: how many run now; a paused one lets others begin."""

    def __init__(self, world: TableScenario) -> None:
        self._world = world
        self.depth = self.count = 0
        self._is_quiet = True
        self.was_alone = True
        """Whether nothing has disturbed the last adoption."""
        self.last: adoption.Adoption | None = None

    def run(self, *, execute: bool, is_quiet: bool = False) -> str:
        """Runs the command; returns how it ends: ``done``, ``killed`` or a line. ``is_quiet``: nothing disturbs it."""
        world = self._world
        self.count += 1
        number, was_quiet, self._is_quiet = self.count, self._is_quiet, is_quiet
        world.note(f"adoption {number} begins{' (only shown)' if not execute else ''}")
        self.depth += 1
        self.was_alone = True
        try:
            with self._in_the_world(f"adopt{number:03d}"):
                found = adoption.adopt("host:9092", group="g", output=TABLE, execute=execute)
        except AdoptionKilled:
            how = "killed"
        except OdradekError as error:
            how = f"{type(error).__name__}: {error}"
        else:
            how = "done"
            self.last = found
        finally:
            self.depth -= 1
            self._is_quiet = was_quiet
        if "\n" in how:
            raise Broken(f"an error of several lines: {how!r}")
        world.note(f"adoption {number} ends: {how}")
        return how

    @contextlib.contextmanager
    def _in_the_world(self, id_of_run: str) -> Iterator[None]:
        world = self._world
        admin = SimAdmin(world, self.step)

        @contextlib.contextmanager
        def opened(target: object, get_spark: object) -> Iterator[tuple[AdoptedTable, object]]:
            table = AdoptedTable(world, self, id_of_run)
            yield table, get_spark
            table.close()

        with patch.multiple(
            adoption,
            Admin=lambda client: admin,
            open_table=opened,
            _target=lambda options, get_spark: None,
        ):
            yield

    def perform(self, tag: RunTag, operation: Any) -> Any:
        """Does an operation of the machine, perhaps with a fault."""
        store = self._world.store
        if self._is_quiet:
            store.faults.chance = 0.0
            return store.do(tag, operation)
        store.faults.chance = self._world.operator.random.choice([0.0, 0.0, 0.05])
        try:
            return store.perform(tag, operation)
        except OdradekError:
            self.was_alone = False
            raise

    def step(self, what: str) -> None:
        """Something happens before a step of the command: it is killed, or paused while the world goes on."""
        world = self._world
        if self._is_quiet:
            return
        dice = world.operator.random.random()
        if dice < 0.02:
            self.was_alone = False
            world.note(f"the adoption is killed before {what}")
            raise AdoptionKilled
        if dice < 0.12:
            world.note(f"the adoption is paused before {what}")
            for _ in range(world.operator.random.choice([1, 4, 15])):
                world.go_on()
            self.was_alone = False
            world.note("the adoption goes on")

    def check_entry(self, plan: BatchPlan) -> None:
        """Checks an entry. An adoption has ended the queries before it. Its offsets are those of the rows that the
        table has."""
        world = self._world
        if not plan.query.startswith(ADOPTED):
            held = [one.query for one in world.store.batches[:-1]]
            last = max((number for number, query in enumerate(held) if query.startswith(ADOPTED)), default=0)
            if plan.batch and plan.query in held[:last] and plan.query not in held[last:]:
                raise Broken(f"query {plan.query} goes on after an adoption")
            return
        rows = {row for held in world.store.batches for row in held.rows}
        for tp, at in plan.offsets.items():
            missing = [row for row in world.topics.rows_below(tp, at) if row not in rows]
            first = FIRST_ROWS[tp]
            again = [row for row in rows if row // ROWS == first // ROWS and row >= first + at]
            if missing or again:
                raise Broken(f"the adoption begins {tp} at {at}: missing {missing[:3]}, again {again[:3]}")


__all__ = ["ADOPTED", "AdoptedTable", "SimAdmin", "SimAdoption", "SimFence"]
