"""Drivers that ingest into one table, in a seeded world: pauses, crashes, lost replies, restored checkpoints.

The drivers run the same machine as the pipelines (``odradek.pipelines.commit``). After each event:

* every row that a finished micro-batch names is in the table once, and no row is in it twice;
* a published file is never removed or changed;
* the group never stands above the table. In half of the worlds commits are fenced, and it never goes back. In the
  others it goes back only if a driver is paused between its look at the log and its commit, and then the next look of
  that driver repairs it (Kafka has no conditional commit).

In some worlds another writer restores a Delta table to an earlier version, which takes rows back, and a user lets a run
adopt the table's offsets. There the group may stand above the table until then, and go back.

In some worlds, replays of the first partition up to its present end add its rows once more, under other numbers: each
row that a finished replay has read is there once, however often the same replay runs.

Then the faults end. One more run finishes, or it says in one line why it cannot; after ``adopt`` it finishes.
"""

from __future__ import annotations

import copy
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from sim_table_store import (
    OTHER,
    OTHER_ROWS,
    REPLAYED_ROWS,
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

from odradek.core.errors import OdradekError
from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import operations as op
from odradek.pipelines.commit import state
from odradek.pipelines.commit.logs import FileLog, VersionLog
from odradek.pipelines.commit.machine import TableRun, drive
from odradek.pipelines.commit.state import (
    Added,
    Piece,
    QueryState,
    RunFenced,
    RunTag,
    TableRefused,
    TableState,
    covers_of,
    ends_of,
)

KEPT = 5, 3, 3
"""How many entries a simulated log keeps; the machine needs three. A driver's pause is soon longer than that."""


class PlannedBatch(NamedTuple):
    """A micro-batch in a checkpoint. ``other``: the range of the other partition, if that is read now. ``absent``: its
    next offset if it was read before. ``after``: the digest of the offsets after which it was planned; empty in a
    checkpoint of an earlier version."""

    start: int
    end: int
    other: tuple[int, int] | None = None
    absent: int | None = None
    after: str = ""

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        other = self.absent if self.other is None else self.other[1]
        return {TP: self.end} | ({} if other is None else {OTHER: other})

    @property
    def ranges(self) -> list[tuple[TopicPartition, int, int]]:
        return [(TP, self.start, self.end)] + ([] if self.other is None else [(OTHER, *self.other)])

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """The rows."""
        moved = {TP: 0, OTHER: OTHER_ROWS}
        return tuple((start + moved[tp], end + moved[tp]) for tp, start, end in self.ranges)


@dataclass
class Checkpoint:
    """Spark's checkpoint: the planned start and end of each micro-batch, and those that are done."""

    query: str = ""
    planned: dict[int, PlannedBatch] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)

    def plan(self, batch: int) -> SimPlan:
        planned, before = self.planned[batch], self.planned.get(batch - 1)
        known = {} if before is None else before.offsets
        state.check_follows(known, planned.offsets, (), batch, "the checkpoint")
        state.check_link(planned.after, ends_of(known), batch, "the checkpoint")
        if before is not None:  # as in the files of a checkpoint, which have no starts
            planned = planned._replace(start=before.end)
            if planned.other is not None and OTHER in known:
                planned = planned._replace(other=(known[OTHER], planned.other[1]))
        starts = {TP: planned.start} | ({} if planned.other is None else {OTHER: planned.other[0]})
        return SimPlan(
            self.query,
            batch,
            covers_of(planned.ranges),
            ends_of(planned.offsets),
            None if batch == 0 else ends_of(known),
            None if before is None else covers_of(before.ranges),
            planned.offsets,
            {tp: start for tp, start in starts.items() if tp not in known},
            pieces=planned.pieces,
            read={tp: end for tp, _, end in planned.ranges},
        )


REPLAY = "replay-" + "0" * 64


def left_of(wanted: Piece, done: Iterable[Piece]) -> list[Piece]:
    """Returns the parts of a range that are not done."""
    tp, start, end = wanted
    left = []
    for _, low, high in sorted(done):
        left.append((tp, start, min(low, end)))
        start = max(start, high)
    return [piece for piece in [*left, (tp, start, end)] if piece[1] < piece[2]]


def _replay_plan(ranges: list[Piece]) -> SimPlan:
    pieces = tuple((start + REPLAYED_ROWS, end + REPLAYED_ROWS) for _, start, end in ranges)
    return SimPlan(
        REPLAY, 0, covers_of(ranges), ends_of({}), offsets={TP: 0}, ranges=tuple(ranges), pieces=pieces, read={}
    )


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


class TableScenario:
    """One seed: a table of one kind, its drivers, and the events."""

    def __init__(self, seed: int, events: int = 250) -> None:
        self.random = random = Random(seed)
        self.events = events
        self.kind = random.choice(["parquet", "delta"])
        is_exclusive = self.kind == "delta" or random.random() < 0.85
        self.faults = Faults(is_exclusive, random.choice([0, 0, 3, 12, 60, 200]), random.choice([0.0, 0.02, 0.1]))
        self.kept = random.choice(KEPT)
        self.store: SimStore = (SimFiles if self.kind == "parquet" else SimVersions)(random, self.faults)
        self.group = SimGroup(self.store, fences=random.random() < 0.5)
        self.most_drivers = random.randint(2, 4) if is_exclusive else 1  # without exclusive create: one driver
        self.restores = random.random() < 0.5
        self.restores_parts = random.random() < 0.5
        self.restoring = Random(f"{seed} restores the table")
        self.restores_table = self.kind == "delta" and self.restoring.random() < 0.25
        self.checkpoint = Checkpoint()
        self.copies: list[Checkpoint] = []
        self.drivers: list[Driver] = []
        self.replaying = Random(f"{seed} replays")
        self.replays = self.replaying.random() < 0.3
        self.end = self.other_end = 10
        self.has_other = random.random() < 0.6
        self.reads_other = self.has_other
        self.forgets = random.random() < 0.2  # the checkpoint is of a version that does not note absent partitions
        self.now = self.started = self.numbers = 0
        self.finished: list[SimPlan] = []
        self.ends: list[str] = []
        self.was_restored = False
        self.lowered: tuple[Driver, int] | None = None
        self.log: list[str] = []
        self._begin_earlier()

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
        self.group.offset = 6
        if self.has_other and self.random.random() < 0.5:
            self._begin_with_other(self.store)

    def _begin_with_other(self, store: SimFiles) -> None:
        """The earlier version has read the other partition once, and forgot it."""
        name, piece = "000000.00000000/other", (OTHER_ROWS, OTHER_ROWS + 4)
        store.data[name] = store.published[name] = piece
        store.moved.add(name)
        store.batches.append(HeldBatch("q0", -1, (piece,), {OTHER: 4}))
        store.ever.append(store.batches[-1])
        self.group.other = self.random.choice([None, 4])
        self.was_restored = True  # if the commit expires, a run says that rows would come again

    # --- a driver

    def start(self, *, clean: bool = False) -> Driver:
        self.started += 1
        if not self.faults.is_exclusive:  # one driver at a time: all requests of the one before have ended
            self._late_requests()
        tag = RunTag(0, f"{self.started:08x}")
        if not self.checkpoint.query:  # Spark writes the query's id exclusively
            self.checkpoint.query = f"q{self.started}-{self.now}"
        driver = Driver(tag, iter(()))
        driver.steps = self._run(driver, copy.deepcopy(self.checkpoint))
        self.drivers.append(driver)
        self.note(f"driver {self.started} starts{' without faults' if clean else ''}")
        return driver

    def _log(self) -> Any:
        if self.kind == "delta":
            return VersionLog("t")
        assert isinstance(self.store, SimFiles)
        return FileLog("t", self.store.describe, self.kept)

    def _run(self, driver: Driver, seen: Checkpoint) -> Generator[Any, Any, None]:
        log = self._log()
        newest = yield from log.newest(None)
        self.numbers = max(self.numbers, newest.state.run.number) + (self.random.random() < 0.9)
        driver.tag = RunTag(max(self.numbers, newest.state.run.number + 1), driver.tag.id)
        run = TableRun(driver.tag, log, "t")
        yield from run.begin()
        while True:
            batch = max(seen.planned, default=-1)
            if batch < 0 or batch in seen.done:
                batch += 1
                if not self._plan(seen, batch):
                    if batch:
                        yield from run.commit_offsets(seen.plan(batch - 1))
                    yield from run.end()
                    return
            plan = seen.plan(batch)
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

    def start_replay(self) -> Driver:
        """A run of a replay of the first partition, from the log's start or a little later to its present end."""
        if not self.faults.is_exclusive:
            self._late_requests()
        self.started += 1
        driver = Driver(RunTag(0, f"{self.started:08x}"), iter(()))
        driver.steps = self._replay(driver, self.end)
        self.drivers.append(driver)
        self.note(f"driver {self.started} replays up to {self.end}")
        return driver

    def _replay(self, driver: Driver, end: int) -> Generator[Any, Any, None]:
        log = self._log()
        newest = yield from log.newest(None)
        self.numbers = max(self.numbers, newest.state.run.number) + 1
        driver.tag = RunTag(self.numbers, driver.tag.id)
        run = TableRun(driver.tag, log, "t")
        yield from run.begin()
        found = yield from run.look(_replay_plan([]))
        known = found.of(REPLAY)
        plan = _replay_plan(left_of((TP, 0, end), () if known is None else known.done))
        if plan.ranges:
            yield from run.add(plan)
            if not self.store.restores or plan.rows <= set(self.store.visible()):
                self.finished.append(plan)
        self.store.is_changed = True
        yield from run.end()

    def _plan(self, seen: Checkpoint, batch: int) -> bool:
        """Plans the next micro-batch, and writes it to the checkpoint that all drivers share."""
        planned = self._planned_after(seen.planned[batch - 1] if batch else None)
        if planned is None:
            return False
        seen.planned[batch] = planned
        shared = self.checkpoint
        if shared.query == seen.query:
            if batch in shared.planned:
                seen.planned[batch] = shared.planned[batch]  # another driver was first
            shared.planned[batch] = seen.planned[batch]
        return True

    def _planned_after(self, before: PlannedBatch | None) -> PlannedBatch | None:
        """Plans the micro-batch after another one; returns None if there is nothing new."""
        start = self.group.offset if before is None else before.end
        known = None if before is None else before.offsets.get(OTHER)
        other = (self.group.other or 0) if known is None else known
        has_new = self.reads_other and other < self.other_end
        if start >= self.end and not has_new:
            return None
        planned = PlannedBatch(start, min(self.end, start + self.random.randint(1, 8)))
        if self.reads_other:
            planned = planned._replace(other=(other, min(self.other_end, other + self.random.randint(1, 8))))
        elif not self.forgets:
            planned = planned._replace(absent=known)
        if not self.forgets:
            planned = planned._replace(after=ends_of({} if before is None else before.offsets))
        return planned

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
        own = [one for one in self.store.ever if one.query != REPLAY]
        held = [one for one in own if one.batch == batch.batch and batch.ends in (None, one.ends)]
        (offset,) = {one.read[TP] for one in held}
        before = self.group.offset
        self.group.commit(held[-1].read)
        is_sure = self.group.fences or len(self.store.ever) == driver.looked_at
        if self.store.restores:  # the group may go back with the table
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
        if len(self.drivers) < self.most_drivers and random.random() < 0.06:
            self.start()
        if self.replays and len(self.drivers) < self.most_drivers and self.replaying.random() < 0.03:
            self.start_replay()
        if random.random() < 0.05:
            self.end += random.randint(1, 10)
        if self.has_other:
            self._change_other()
        if random.random() < 0.1:
            self.copies.append(copy.deepcopy(self.checkpoint))
        if self.restores and self.copies and random.random() < self._restore_chance():
            self._restore()
        if self.restores and self.restores_parts and len(self.checkpoint.planned) > 1 and random.random() < 0.01:
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
            self.other_end += random.randint(1, 10)
        if random.random() < 0.04:
            self.reads_other = not self.reads_other
            self.note(f"the other partition is {'' if self.reads_other else 'not '}read")
        if random.random() < 0.04:
            self.group.other = None
            self.note("the commit of the other partition has expired")

    def _restore_chance(self) -> float:
        """The chance that an older copy of the checkpoint is put back now."""
        return 0.04 if self.restores_parts else 0.01

    def _restore(self) -> None:
        """Puts a copy back in place of the checkpoint. In some worlds, its files are copied over those of the
        checkpoint, so that newer ones stay, or only the offsets or only the commits are copied."""
        found = copy.deepcopy(self.random.choice(self.copies[-30:] if self.restores_parts else self.copies))
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
        before, reads_other = planned[self.random.choice(sorted(planned)[-4:-1])], self.reads_other
        self.reads_other = self.has_other
        last = self._planned_after(before)
        self.reads_other = reads_other
        found = None if last is None else self._planned_after(last)
        if found is None or (not found.after and OTHER in found.offsets.keys() - planned[batch - 1].offsets):
            return  # without ``after``, no check can know that a partition that is read first skips records
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
        self.store.check()
        rows = set(self.store.visible())
        for start, end in {piece for plan in self.finished for piece in plan.pieces}:
            if missing := [row for row in range(start, end) if row not in rows]:
                raise Broken(f"rows of a finished micro-batch are missing: {missing[:5]}")

    # --- the end

    def _recover(self) -> None:
        """The faults end, and paused drivers go on: then a run finishes, or it says why it cannot."""
        self.faults.list_delay = 0
        for driver in list(self.drivers):
            self._drain(driver)
        self._late_requests()
        self.reads_other = self.has_other
        how = self._last_run()
        if how.startswith("TableRefused") and (self.was_restored or self.forgets or self.store.restores):
            self._adopt()
            how = self._last_run()
        if how != "finished":
            raise Broken(f"the last run ends with: {how}")
        if self.replays:
            self._drain(self.start_replay())
            if self.ends[-1] != "finished":
                raise Broken(f"the last replay ends with: {self.ends[-1]}")
        rows = sorted(self.store.visible())
        others = range(OTHER_ROWS, OTHER_ROWS + self.other_end) if self.has_other else ()
        replayed = range(REPLAYED_ROWS, REPLAYED_ROWS + self.end) if self.replays else ()
        expected = [*range(self.end), *others, *replayed]
        if rows != expected:
            missing = sorted(set(expected) - set(rows))
            raise Broken(f"the table has {len(rows)} of {len(expected)} rows; missing: {missing[:5]}")
        if self.group.offset != self.end:
            raise Broken(f"the group stands at {self.group.offset}, not at {self.end}")

    def _late_requests(self) -> None:
        for request in self.store.late:
            request()
        self.store.late.clear()

    def _drain(self, driver: Driver) -> None:
        for _ in range(2000):
            if not self.step(driver, chance=0.0):
                return
            self.check()
        raise Broken(f"{driver.tag.text} does not end")

    def _last_run(self) -> str:
        self._drain(self.start(clean=True))
        return self.ends[-1]

    def _adopt(self) -> None:
        """A new checkpoint begins at the table's offsets, which are noted in the table."""
        rows = {row for held in self.store.batches for row in held.rows if row < REPLAYED_ROWS}
        others = sum(row >= OTHER_ROWS for row in rows)
        at = {TP: len(rows) - others, OTHER: others}
        if isinstance(self.store, SimVersions):
            noted = self.store.state().newest_query
            if noted is not None and noted.offsets is not None and noted.offsets[TP] != at[TP]:
                raise Broken(f"the table has {at[TP]} rows, and its notes end at {noted.offsets[TP]}")
        self.group.offset, self.group.other = at[TP], at[OTHER]
        self.checkpoint = Checkpoint()
        self.numbers += self.started + 1
        tag = RunTag(self.numbers, "adoption")
        self.note(f"adoption at {at}")
        plan = SimPlan("adopted", 0, ends_of({}), ends_of(at), offsets=at, is_whole=True, read=at)
        no_files = op.NewFiles(((),), Added(0, 0, 0, 0))
        drive(TableRun(tag, self._log(), "t").adopt(plan, no_files), lambda operation: self.store.do(tag, operation))

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:4} {text}")


__all__ = ["RunFenced", "TableRefused", "TableScenario"]
