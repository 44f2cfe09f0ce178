"""Drivers that ingest into one table, in a seeded world: pauses, crashes, lost replies, restored checkpoints.

The drivers run the same machine as the pipelines (``odradek.pipelines.commit``). After each event:

* every row that a finished micro-batch names is in the table once, and no row is in it twice;
* a published file is never removed or changed;
* the group never stands above the table. In half of the worlds commits are fenced, and it never goes back. In the
  others it goes back only if a driver is paused between its look at the log and its commit, and then the next look of
  that driver repairs it (Kafka has no conditional commit).

In some worlds another writer restores a Delta table to an earlier version, which takes rows back, and a user lets a run
adopt the table's offsets. There the group may stand above the table until then, and go back.

In half of the worlds, replays add rows once more (``sim_table_replays``): each row that a finished replay has read is
there once, and no replay moves the position of an ingest or the group.

In some worlds the schema changes, and drivers have newer and older ones (``sim_table_columns``).

In some worlds an operator puts back older copies of the whole table, and adopts its offsets (``sim_table_copies``).

Then the faults end. One more run finishes, or it says in one line why it cannot; after ``adopt`` it finishes.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from sim_table_adoption import SimAdoption
from sim_table_checkpoint import NO_START, Checkpoint, PlannedBatch, SimStart
from sim_table_columns import SimColumns, check_published
from sim_table_copies import NOTHING, TableOperator
from sim_table_replays import SimReplays
from sim_table_snapshots import SimSnapshots
from sim_table_store import (
    FIRST_ROWS,
    OTHER,
    REPLAYS_ROWS,
    TP,
    Broken,
    Faults,
    HeldBatch,
    SimFiles,
    SimGroup,
    SimPlan,
    SimStore,
    SimVersions,
)
from sim_table_topics import SimTopics

from odradek.core.errors import ConfigError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit import state
from odradek.pipelines.commit.columns import RowColumns
from odradek.pipelines.commit.logs import FileLog, VersionLog
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.partition_starts import check_starts
from odradek.pipelines.commit.state import (
    REPLAY,
    BatchPlan,
    QueryState,
    RunFenced,
    RunTag,
    TableRefused,
    TableState,
    covers_of,
    ends_of,
)
from odradek.pipelines.iceberg.notes import Note

STORES: Mapping[str, type[SimStore]] = {"parquet": SimFiles, "delta": SimVersions, "iceberg": SimSnapshots}
RESTORING = {"delta": 0.25, "iceberg": 0.5}
"""The share of worlds in which another writer sets a table back to an earlier version or snapshot."""
KEPT = 5, 3, 3
"""How many entries a simulated log keeps; the machine needs three. A driver's pause is soon longer than that."""


class WaitForTrigger:
    """A driver has noted a micro-batch as done, and plans the next one at its next trigger."""


@dataclass
class Driver:
    """A process. ``paused_until``: the event at which it goes on."""

    tag: RunTag
    steps: Generator[Any, Any, None]
    reply: Any = None
    error: Exception | None = None
    operation: Any = None
    paused_until: int = 0
    looked_at: int = 0
    epoch: int | None = None
    columns: RowColumns | None = None


class TableScenario:
    """One seed: a table of one kind, its drivers, and the events."""

    def __init__(self, seed: int, events: int = 250, kind: str | None = None) -> None:
        self.random = random = Random(seed)
        self.events = events
        self.kind = random.choice(["parquet", "delta"])
        self.kind = self.kind if kind is None else kind
        is_exclusive = self.kind != "parquet" or random.random() < 0.85
        self.faults = Faults(is_exclusive, random.choice([0, 0, 3, 12, 60, 200]), random.choice([0.0, 0.02, 0.1]))
        self.kept = random.choice(KEPT)
        self.store: SimStore = STORES[self.kind](random, self.faults)
        self.group = SimGroup(self.store, fences=random.random() < 0.5)
        self.most_drivers = random.randint(2, 4) if is_exclusive else 1  # without exclusive create: one driver
        self.restores = random.random() < 0.5
        self.restores_parts = random.random() < 0.5
        self.restoring = Random(f"{seed} restores the table")
        self.restores_table = self.kind != "parquet" and self.restoring.random() < RESTORING[self.kind]
        self.checkpoint = Checkpoint()
        self.copies: list[Checkpoint] = []
        self.drivers: list[Driver] = []
        self.topics = SimTopics()
        self.replays = SimReplays(self, seed)
        self.has_other = random.random() < 0.6
        if self.has_other:
            self.topics.add_other()
        self.operator = TableOperator(self, seed)
        self.adoption = SimAdoption(self)
        self.columns = SimColumns(seed)
        self.store.on_publish = self._check_entry
        self.forgets = random.random() < 0.2  # the checkpoint is of a version that does not note absent partitions
        self.upgrades = Random(f"{seed} another version")
        self.now = self.started = self.numbers = 0
        self.finished: list[SimPlan] = []
        self.ends: list[str] = []
        self.was_restored = False
        self.lowered: tuple[Driver, int] | None = None
        self.log: list[str] = []
        self._begin_earlier()
        if isinstance(self.store, SimFiles) and self.store.earlier.queries:
            self.operator.is_on = False  # notes of earlier versions cannot show that a table is an older copy

    def _begin_earlier(self) -> None:
        """Some tables have a micro-batch of an earlier version, with or without a digest."""
        if self.kind != "parquet" or self.random.random() < 0.7:
            return
        assert isinstance(self.store, SimFiles)
        end = self.random.choice([6, 6, 4])  # 4: an older copy of the checkpoint, which has planned other offsets
        self.checkpoint = Checkpoint("q0", {0: PlannedBatch(0, end)}, self.random.choice([{0}, set()]))
        covers = self.random.choice([covers_of([(TP, 0, 6)]), None])
        self.was_restored = covers is None or end < 6  # it is unknown or older, so a run may say so
        self.store.earlier = TableState(queries={"q0": QueryState(0, covers)})
        self.store.data["000000.00000000/earlier"] = self.store.published["000000.00000000/earlier"] = (0, 6)
        self.store.moved.add("000000.00000000/earlier")
        self.store.batches.append(HeldBatch("q0", 0, ((0, 6),), {TP: 6}, ends_of({TP: end})))
        self.store.ever.append(self.store.batches[-1])
        self.group.offsets[TP] = 6
        if self.has_other and self.random.random() < 0.5:
            self._begin_with_other(self.store)

    def _begin_with_other(self, store: SimFiles) -> None:
        """The earlier version has read the other partition once, and forgot it."""
        name, piece = "000000.00000000/other", (FIRST_ROWS[OTHER], FIRST_ROWS[OTHER] + 4)
        store.data[name] = store.published[name] = piece
        store.moved.add(name)
        store.batches.append(HeldBatch("q0", -1, (piece,), {OTHER: 4}))
        store.ever.append(store.batches[-1])
        if self.random.choice([False, True]):
            self.group.offsets[OTHER] = 4
        self.was_restored = True  # if the commit expires, a run says that rows would come again

    # --- a driver

    def start(self, *, clean: bool = False) -> Driver:
        driver = self.begin_driver(f"starts{' without faults' if clean else ''}", is_last=clean)
        if not self.checkpoint.query:  # Spark writes the query's id exclusively
            self.checkpoint.query = f"q{self.started}-{self.now}"
        driver.steps = self._run(driver, self.checkpoint.copy())
        return driver

    def begin_driver(self, what: str, *, is_last: bool = False) -> Driver:
        """Returns a new driver, which has nothing to do yet. ``is_last``: it is to finish."""
        self.started += 1
        if not self.faults.is_exclusive:  # one driver at a time: all requests of the one before have ended
            self._late_requests()
        driver = Driver(RunTag(0, f"{self.started:08x}"), iter(()))
        driver.columns = self.columns.of_driver(is_last=is_last)
        self.drivers.append(driver)
        self.note(f"driver {self.started} {what}")
        return driver

    def _check_entry(self, plan: SimPlan) -> None:
        self.adoption.check_entry(plan)
        if plan.columns is not None:
            check_published(self.store.batches[:-1], plan.columns)

    def table_log(self) -> Any:
        if self.kind != "parquet":
            return VersionLog("t")
        assert isinstance(self.store, SimFiles)
        return FileLog("t", self.store.describe, self.kept)

    def _run(self, driver: Driver, seen: Checkpoint) -> Generator[Any, Any, None]:
        log = self.table_log()
        runs: list[CommitMachine] = []
        try:
            yield from self._steps(driver, seen, log, runs)
        except OdradekError:
            for run in runs:  # as ``Table.close``, with its own faults
                yield from run.end()
            raise

    def _steps(
        self, driver: Driver, seen: Checkpoint, log: Any, runs: list[CommitMachine]
    ) -> Generator[Any, Any, None]:
        newest = yield from log.newest(None)
        self.numbers = max(self.numbers, newest.state.run.number) + (self.random.random() < 0.9)
        driver.tag = RunTag(max(self.numbers, newest.state.run.number + 1), driver.tag.id)
        run = CommitMachine(driver.tag, log, "t")
        runs.append(run)
        yield from run.begin()
        if not seen.is_bound and newest.state.newest_query is not None:
            raise ConfigError("the table holds micro-batches of a query whose checkpoint is another one: see adopt")
        start = yield from self._start_of_query(run, seen)
        while True:
            batch = max(seen.planned, default=-1)
            if batch < 0 or batch in seen.done:
                batch += 1
                if not self._plan(seen, batch, start):
                    if batch:
                        yield from run.commit_offsets(seen.plan(batch - 1))
                    yield from run.end()
                    return
            plan = self._plan_in_folder(seen, batch)
            if plan.first.keys() - set(start.read):  # as in ``Table.plan``
                before = seen.planned.get(batch - 1)
                start = self._look_at_group({} if before is None else before.offsets, is_at_end=start.is_at_end)
            plan = replace(start.of(plan), columns=driver.columns)
            yield from run.add(plan)
            if not self.store.restores or plan.rows <= set(self.store.visible()):
                self.finished.append(plan)
            self.store.is_changed = True
            yield from run.commit_offsets(plan)
            self._check_repaired(driver)
            seen.done.add(batch)
            if self.checkpoint.query == seen.query:
                self.checkpoint.done.add(batch)
            yield WaitForTrigger()

    def _start_of_query(self, run: CommitMachine, seen: Checkpoint) -> Generator[Any, Any, SimStart]:
        """What a run finds of its group before it plans, as ``Table.start_of_query``."""
        newest = max(seen.planned, default=None)
        known = {} if newest is None else seen.planned[newest].offsets
        if newest is not None and newest not in seen.done:
            before = seen.planned.get(newest - 1)
            known = {} if before is None else before.offsets
        start = self._look_at_group(known, is_at_end=self.operator.begins_at_latest)
        if newest == 0 and not seen.done:  # an earlier run has planned it, perhaps with other options
            firsts, log_starts = {TP: seen.planned[0].start}, self.topics.starts
            firsts |= {tp: at for tp, (at, _) in seen.planned[0].others.items()}
            begun = [tp for tp, at in firsts.items() if tp not in self.group.offsets and at > log_starts.get(tp, 0)]
            start = replace(start, at_end=begun)
        found = yield from run.look(BatchPlan("", 0, "", "", offsets=dict.fromkeys(self.topics.read, 0)))
        check_starts(found, {tp: at for tp, at in start.ours.items() if tp in self.topics.read}, start.at_end, "t")
        return start

    def _look_at_group(self, known: Mapping[TopicPartition, int], *, is_at_end: bool) -> SimStart:
        """What a run finds of its group, as ``group_start``. ``known``: the partitions of the checkpoint."""
        held, read = self.group.offsets, tuple(self.topics.read)
        ours = {tp: at for tp, at in held.items() if tp in self.group.marked and tp not in known}
        begun = [tp for tp in read if tp not in known and tp not in held] if is_at_end and not known else []
        return SimStart(ours, begun, is_at_end, read)

    def _plan(self, seen: Checkpoint, batch: int, start: SimStart) -> bool:
        """Plans the next micro-batch, and writes it to the checkpoint that all drivers share."""
        planned = self._planned_after(seen.planned[batch - 1] if batch else None, start)
        if planned is None:
            return False
        seen.planned[batch] = planned
        shared = self.checkpoint
        if shared.query == seen.query:
            if batch in shared.planned:
                seen.planned[batch] = shared.planned[batch]  # another driver was first
            shared.planned[batch] = seen.planned[batch]
        return True

    def _plan_in_folder(self, seen: Checkpoint, batch: int) -> SimPlan:
        """The plan of a micro-batch by the files of the checkpoint, where another copy may be meanwhile. A run reads
        them, and so do its workers: the driver's memory only says which micro-batch comes next."""
        shared = self.checkpoint
        return (shared if shared.query == seen.query else seen).plan(batch)

    def _planned_after(self, before: PlannedBatch | None, begun: SimStart) -> PlannedBatch | None:
        """Plans the micro-batch after another one; returns None if there is nothing new. Spark plans a query's first
        micro-batch also without records."""
        known = {} if before is None else before.offsets
        ends, begin = self.topics.ends, {}
        for tp in self.topics.read:
            begin[tp] = known[tp] if tp in known else self._begin_of(tp, begun if before is None else NO_START)
        if before is not None and all(at >= ends[tp] for tp, at in begin.items()):
            return None
        ranges = {}
        for tp, at in begin.items():
            chances = self.random if tp in (TP, OTHER) else self.operator.random
            ranges[tp] = at, min(ends[tp], at + chances.randint(1, 8))
        start, end = ranges.pop(TP)
        origins = frozenset(ranges.keys() - known.keys())
        if self.forgets:
            return PlannedBatch(start, end, ranges, origins=origins)
        absent = {tp: at for tp, at in known.items() if tp not in begin}
        return PlannedBatch(start, end, ranges, absent, ends_of(known), origins)

    def _begin_of(self, tp: TopicPartition, begun: SimStart) -> int:
        """Returns where a query begins to read a partition: at the group's commit, or else by ``--from``, which only
        concerns a query's first micro-batch."""
        start = self.topics.starts.get(tp, 0)
        if tp in self.group.offsets:
            return max(start, self.group.offsets[tp])
        if begun.is_at_end:
            self._skip(tp)
            return self.topics.ends[tp]
        return start

    def _skip(self, tp: TopicPartition) -> None:
        """A query begins at the end of a partition. That is right if the table has nothing of this topic."""
        self.note(f"a run begins {tp} at its end, {self.topics.ends[tp]}")
        if all(one.topic != tp.topic for one in self.noted_offsets() or {}):
            self.topics.skipped[tp] = self.topics.ends[tp]

    # --- events

    def step(self, driver: Driver, *, chance: float) -> bool:
        """Does the next operation of a driver; returns False if the driver has ended."""
        self.faults.chance = chance
        try:
            if driver.error is not None:
                error, driver.error = driver.error, None
                operation = driver.steps.throw(error)
            else:
                operation = driver.steps.send(driver.reply)
        except StopIteration:
            return self._ended(driver, "finished")
        except OdradekError as error:
            return self._ended(driver, f"{type(error).__name__}: {error}")
        driver.reply = None
        try:
            driver.reply = self._perform(driver, operation)
        except OdradekError as error:
            driver.error = error
        self.note(f"{driver.tag.text} {type(operation).__name__} → {driver.error or ''}")
        return True

    def _perform(self, driver: Driver, operation: Any) -> Any:
        driver.operation = operation
        if isinstance(operation, WaitForTrigger):
            return None
        if isinstance(operation, op.CommitGroup):
            return self._commit_offsets(driver, operation.batch)
        if isinstance(operation, op.FenceGroup):
            return self._fence(driver)
        if isinstance(operation, op.WriteRows):
            self.replays.check_topics(operation.plan)
        reply = self.store.perform(driver.tag, operation)
        if isinstance(operation, op.ReadVersion) or (isinstance(operation, op.ReadEntry) and reply is None):
            driver.looked_at = len(self.store.ever)  # the driver knows that this is the newest entry
        return reply

    def _fence(self, driver: Driver) -> bool:
        """As a transactional id does it: InitProducerId gives a higher epoch. A driver keeps its epoch until it is
        refused."""
        if self.group.fences and driver.epoch is None:
            self.group.epoch += 1
            driver.epoch = self.group.epoch
        return self.group.fences

    def _commit_offsets(self, driver: Driver, batch: QueryState) -> bool:
        if driver.epoch is not None and driver.epoch != self.group.epoch:
            driver.epoch = None
            return False
        own = [one for one in self.store.ever if not one.query.startswith(REPLAY)]
        held = [one for one in own if one.batch == batch.batch and batch.ends in (None, one.ends)]
        before, offset = self.group.offset, held[-1].read[TP]
        self.group.commit(held[-1].read)
        self.check_group()
        is_sure = self.group.fences or len(self.store.ever) == driver.looked_at
        if self.store.restores or not self.operator.is_group_ours:  # the group may go back with the table
            return True
        if self.group.offset < before and is_sure:
            raise Broken(f"the group went back from {before} to {offset}")
        if offset < before:
            self.lowered = driver, before
        return True

    def _check_repaired(self, driver: Driver) -> None:
        """A driver that was paused between its look at the log and its commit has looked again, and repaired it."""
        if self.lowered is not None and self.lowered[0] is driver and self.group.offset < self.lowered[1]:
            raise Broken(f"the group stays at {self.group.offset}, and it was at {self.lowered[1]}")

    def _ended(self, driver: Driver, how: str) -> bool:
        if "\n" in how:
            raise Broken(f"an error of several lines: {how!r}")
        self.note(f"{driver.tag.text} ends: {how}")
        self.ends.append(how)
        self.drivers.remove(driver)
        return False

    def run(self) -> None:
        for _ in range(self.events):
            self.now += 1
            self._event()
            self.check()
        self._recover()

    def _event(self) -> None:
        random = self.random
        if len(self.drivers) < self.most_drivers and random.random() < 0.06 and not self.operator.is_waiting:
            self.start()
        if self.replays.is_on and not self.operator.is_waiting:
            self.replays.event()
        if random.random() < 0.05:
            self.topics.ends[TP] += random.randint(1, 10)
        if self.forgets and self.upgrades.random() < 0.003:
            self.forgets = False
            self.was_restored = True  # rows that would come again are found now
            self.note("the next plans are of the present version")
        self.columns.event()
        if self.has_other:
            self._change_other()
        if self.operator.is_on:
            self.operator.event()
        if random.random() < 0.1:
            self.copies.append(self.checkpoint.copy())
        can_restore = self.restores and not self.operator.is_waiting
        if self.restores and self.copies and random.random() < self._restore_chance() and can_restore:
            self._restore()
        has_several = self.restores_parts and len(self.checkpoint.planned) > 1
        if self.restores and has_several and random.random() < 0.01 and can_restore:
            self._mix()
        if isinstance(self.store, SimVersions) and random.random() < 0.05:
            self.store.foreign_commit()
        if isinstance(self.store, SimVersions) and self.restores_table:
            self._restore_table(self.store)
        if self.store.late and random.random() < 0.1:
            self.store.late.pop(random.randrange(len(self.store.late)))()
            self.store.is_changed = True
        ready = [one for one in self.drivers if one.paused_until <= self.now]
        if not ready:
            return
        driver = random.choice(ready)
        dice, (killed, paused) = random.random(), self._dangers(driver.operation)
        if dice < killed:
            self.note(f"{driver.tag.text} is killed")
            self.drivers.remove(driver)
        elif dice < killed + paused:
            driver.paused_until = self.now + random.choice([3, 30, 100])
            driver.operation = None
        else:
            self.step(driver, chance=self._chance)

    def _restore_table(self, store: SimVersions) -> None:
        """Another writer restores the table to an earlier version. Later, a user adopts the table's offsets."""
        before = store.restores
        if self.restoring.random() < 0.02:
            store.foreign_restore(self.restoring)
        if store.restores > before:
            rows = set(store.visible())
            self.finished = [plan for plan in self.finished if plan.rows <= rows]
            self.lowered = None
            self.note(f"the table is restored: {len(rows)} rows stay")
        if store.restores and self.restoring.random() < 0.01:
            self._adopt()

    def _change_other(self) -> None:
        """The other partition gets records, is not read for a while, and loses its commit."""
        random = self.random
        if random.random() < 0.04:
            self.topics.ends[OTHER] += random.randint(1, 10)
        if random.random() < 0.04:
            is_read = OTHER not in self.topics.read
            self.topics.read_other(is_read=is_read)
            self.note(f"the other partition is {'' if is_read else 'not '}read")
        if random.random() < 0.04 and not self.operator.is_on:
            self.group.offsets.pop(OTHER, None)
            self.note("the commit of the other partition has expired")

    def _restore_chance(self) -> float:
        """The chance that an older copy of the checkpoint is put back now."""
        return 0.04 if self.restores_parts else 0.01

    def _restore(self) -> None:
        """Puts a copy back in place of the checkpoint. In some worlds, its files are copied over those of the
        checkpoint, so that newer ones stay, or only the offsets or only the commits are copied."""
        found = self.random.choice(self.copies[-30:] if self.restores_parts else self.copies).copy()
        shared, part = self.checkpoint, self.random.choice(["both", "offsets", "commits"])
        is_whole = not self.restores_parts or shared.query != found.query or self.random.random() < 0.5
        if not is_whole:
            planned, done = found.planned, found.done
            found = Checkpoint(shared.query, dict(shared.planned), set(shared.done))
            if part != "commits":
                found.planned |= planned
            if part != "offsets":
                found.done |= done
        self.checkpoint = found
        self.was_restored = True
        self.note(f"the checkpoint is restored{'' if is_whole else f': {part} over its files'}")

    def _mix(self) -> None:
        """The next micro-batch in the checkpoint is of another copy of it, which has gone on otherwise from an earlier
        one. A run that plans from memory writes it if the folder is replaced meanwhile."""
        planned, batch = self.checkpoint.planned, max(self.checkpoint.planned) + 1
        before, reads_other = planned[self.random.choice(sorted(planned)[-4:-1])], OTHER in self.topics.read
        self.topics.read_other(is_read=self.has_other)
        last = self._planned_after(before, NO_START)
        self.topics.read_other(is_read=reads_other)
        found = None if last is None else self._planned_after(last, NO_START)
        if found is None:
            return
        planned[batch] = found
        self.was_restored = True
        self.note(f"micro-batch {batch} in the checkpoint is of another copy")

    def _dangers(self, last: Any) -> tuple[float, float]:
        """The chances that a driver is killed or paused now. They are high at the worst moments: before a create, and
        after a forgotten entry was created again."""
        store = self.store
        if isinstance(last, op.CreateEntry) and isinstance(store, SimFiles) and last.number in store.again:
            return 0.7, 0.2
        return 0.02, 0.2 if isinstance(last, op.WriteRows) else 0.04

    @property
    def _chance(self) -> float:
        return self.random.choice([0.0, 0.02, 0.1])

    def check(self) -> None:
        if not self.store.is_changed:
            return
        self.store.is_changed = False
        rows = self.store.check()
        for start, end in {piece for plan in self.finished for piece in plan.pieces}:
            if not rows.has(start, end):
                raise Broken(f"rows of a finished micro-batch are missing: some of {start} to {end - 1}")

    # --- the end

    def _recover(self) -> None:
        """The faults end, and paused drivers go on: then a run finishes, or it says why it cannot."""
        self.faults.list_delay = 0
        for driver in list(self.drivers):
            self.drain(driver)
        self._late_requests()
        self.topics.read_other(is_read=self.has_other)
        for topic in ("v", "w"):
            self.topics.subscribe(topic)
        if self.operator.is_waiting:
            self._adopt()
        how = self._last_run()
        for _ in range(2):  # only the plan of a refused run may show an adoption a topic of Delta without rows
            if how.startswith(("TableRefused", "ConfigError")) and self._may_be_refused:
                self._adopt()
                how = self._last_run()
        if how != "finished":
            raise Broken(f"the last run ends with: {how}")
        if not (isinstance(self.store, SimSnapshots) and self.store.was_unknown):  # then a replay counts as done
            self.replays.check_end()
        self._check_end()

    @property
    def _may_be_refused(self) -> bool:
        has_expired = isinstance(self.store, SimSnapshots) and self.store.has_expired  # so a RESTORE would not be seen
        return self.was_restored or self.forgets or bool(self.store.restores) or self.operator.is_on or has_expired

    def _check_end(self) -> None:
        topics = self.topics
        rows = {row for row in self.store.visible() if row < REPLAYS_ROWS}
        expected = set(topics.rows())
        allowed = {FIRST_ROWS[tp] + at for tp in topics.read for at in range(topics.ends[tp])}
        if not expected <= rows <= allowed:
            missing = sorted(expected - rows)
            raise Broken(f"the table has {len(rows)} of {len(expected)} rows; missing: {missing[:5]}")
        if wrong := {str(tp): self.group.offsets.get(tp) for tp in topics.read if self._is_wrong(tp)}:
            raise Broken(f"the group stands at {wrong}, not at the ends {topics.ends}")

    def _is_wrong(self, tp: TopicPartition) -> bool:
        """Returns whether the group does not stand at the end of a partition. The commit of the other one expires."""
        return tp != OTHER and self.group.offsets.get(tp, self.topics.first_of(tp)) != self.topics.ends[tp]

    def check_group(self) -> None:
        """The group does not stand above the table."""
        is_copied = self.operator.is_on
        if is_copied and not self.operator.is_group_ours:
            return
        published = set().union(*(held.rows for held in (self.store.batches if is_copied else self.store.ever)))
        for tp, offset in self.group.offsets.items():
            if any(row not in published for row in self.topics.rows_below(tp, offset)):
                raise Broken(f"the group stands at {offset} of {tp}, above the table")

    def check_after_replay(self) -> None:
        """A replay does not move the group."""
        if not self.store.restores:
            self.check_group()

    def noted_offsets(self) -> Mapping[TopicPartition, int] | None:
        """The offsets in the table's newest notes; None if there are none."""
        store = self.store
        if isinstance(store, SimSnapshots):
            query = None if store.note is None else Note.parse(store.note, "t").state.newest_query
        elif isinstance(store, SimVersions):
            query = store.state().newest_query
        elif isinstance(store, SimFiles) and store.highest in store.entries:
            query = state.of_json(json.loads(store.entries[store.highest][0])["state"]).newest_query
        else:
            query = None
        return None if query is None else query.offsets

    def go_on(self) -> None:
        """Something happens while an adoption is paused."""
        self.now += 1
        self._event()
        self.check()

    def _late_requests(self) -> None:
        for request in self.store.late:
            request()
        self.store.late.clear()

    def drain(self, driver: Driver) -> None:
        for _ in range(2000):
            if not self.step(driver, chance=0.0):
                return
            self.check()
        raise Broken(f"{driver.tag.text} does not end")

    def _last_run(self) -> str:
        self.drain(self.start(clean=True))
        return self.ends[-1]

    def _adopt(self) -> None:
        """A new checkpoint begins at the table's offsets. Nothing disturbs this adoption."""
        how = self.operator.adopt(is_quiet=True)
        if how != "done" and NOTHING not in how:
            raise Broken(f"an adoption without faults ends with: {how}")

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:4} {text}")


__all__ = ["RunFenced", "TableRefused", "TableScenario"]
