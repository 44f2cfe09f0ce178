"""Replays in the simulated world of a table: of ranges, of dead letters, to the present end, of a recreated topic.

Each of them is one command, which is started again and again, killed in the middle, and mixed with adoptions. Its rows
have numbers of their own, so each row that a finished replay has read must be in the table once, however often the
command runs. Replays say nothing about the position of the ingest: see ``SimStore.row_ends``.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from sim_table_store import REPLAYED, REPLAYS_ROWS, ROWS, TP, Broken, SimPlan, replayed_row

from odradek.core.errors import StorageError
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.state import REPLAY, BatchPlan, Piece, RunTag, covers_of, ends_of, merged, topic_of
from odradek.pipelines.ranges import subtract
from odradek.spark.offsets.offset_ranges import Range

if TYPE_CHECKING:
    from sim_table import Driver, TableScenario

UP_TO_THE_END, RANGE, LETTERS, OF_REPLAYED_TOPIC = range(4)
"""The commands: of the first partition up to its end; of a range; of single records of all partitions; of the topic
that is only replayed at first."""


@dataclass(frozen=True)
class SimReplay:
    """What a run of a replay selects. ``pieces``: merged ranges. ``topics``: the digests of the ids of their topics."""

    command: int
    pieces: tuple[Piece, ...]
    topics: dict[str, str]

    @property
    def query(self) -> str:
        return REPLAY + str(self.command) * 64

    def plan(self, left: Iterable[Piece], generation: int) -> SimPlan:
        """Returns the micro-batch of the ranges that are left."""
        ranges = tuple(left)
        rows = tuple(
            (replayed_row(self.command, generation, tp, start), replayed_row(self.command, generation, tp, end))
            for tp, start, end in ranges
        )
        asked = dict.fromkeys((tp for tp, _, _ in self.pieces), 0)
        return SimPlan(
            self.query, 0, covers_of(ranges), ends_of({}),
            offsets=asked, topics=self.topics, ranges=ranges, pieces=rows, read={},
        )  # fmt: skip


class SimReplays:
    """The replays of a world. ``is_on``: whether it has some."""

    def __init__(self, world: TableScenario, seed: int) -> None:
        self._world = world
        self.random = Random(f"{seed} replays")
        self.is_on = self.random.random() < 0.5
        self._given: dict[int, tuple[Piece, ...]] = {}
        if self.is_on:
            world.topics.ends[REPLAYED] = 8

    def event(self) -> None:
        """Perhaps a replay begins, and the topic that is only replayed changes."""
        world, random, topics = self._world, self.random, self._world.topics
        if len(world.drivers) < world.most_drivers and random.random() < 0.04:
            self.start(random.randrange(4))
        if random.random() < 0.04:
            topics.ends[REPLAYED] += random.randint(1, 10)
        if REPLAYED in topics.read:
            return
        if random.random() < 0.02 and REPLAYED not in world.group.offsets:
            topics.generation += 1
            topics.ends[REPLAYED] = random.choice([0, 4, 30])
            world.note(f"topic {REPLAYED.topic} is created again")
        if random.random() < 0.005:
            topics.subscribe(REPLAYED.topic)
            world.note(f"topic {REPLAYED.topic} is read from now on")

    def start(self, command: int, *, is_last: bool = False) -> Driver:
        """Starts a run of a command."""
        chosen = self._selected(command)
        generation = self._world.topics.generation
        driver = self._world.begin_driver(f"replays {chosen.pieces}", is_last=is_last)
        driver.steps = self._run(driver, chosen, generation)
        return driver

    def _selected(self, command: int) -> SimReplay:
        """Returns what a command selects now. Ranges and single records are named in the command."""
        ends, random = self._world.topics.ends, self.random
        there = sorted(tp for tp in ends if tp != REPLAYED)
        if command == UP_TO_THE_END:
            pieces: tuple[Piece, ...] = ((TP, 0, ends[TP]),)
        elif command == OF_REPLAYED_TOPIC:
            pieces = ((REPLAYED, 0, ends[REPLAYED]),)
        elif command == RANGE:
            tp = random.choice(there)
            start = random.randint(0, ends[tp])
            pieces = self._given.setdefault(command, ((tp, start, random.randint(start, ends[tp])),))
        else:
            letters = [(tp, at, at + 1) for tp in there for at in range(ends[tp]) if random.random() < 0.3]
            pieces = self._given.setdefault(command, merged(letters))
        topics = {tp.topic: topic_of(self._world.topics.id_of(tp.topic)) for tp, _, _ in pieces}
        return SimReplay(command, merged(pieces), topics)

    def _run(self, driver: Driver, chosen: SimReplay, generation: int) -> Generator[Any, Any, None]:
        """As ``replays.job._into_table``."""
        world = self._world
        log = world.table_log()
        newest = yield from log.newest(None)
        world.numbers = max(world.numbers, newest.state.run.number) + 1
        driver.tag = RunTag(world.numbers, driver.tag.id)
        run = CommitMachine(driver.tag, log, "t")
        yield from run.begin()
        found = yield from run.look(chosen.plan((), generation))
        known = found.of(chosen.query)
        done = [] if known is None else known.done_in(chosen.topics)
        left = subtract([Range(*piece) for piece in chosen.pieces], [Range(*piece) for piece in done])
        plan = chosen.plan([(tp, start, end) for tp, start, end in left], generation)
        if plan.ranges:
            plan = replace(plan, columns=driver.columns)
            yield from run.add(plan)
            if not world.store.restores or plan.rows <= set(world.store.visible()):
                world.finished.append(plan)
        world.store.is_changed = True
        world.check_after_replay()
        yield from run.end()

    def check_topics(self, plan: BatchPlan) -> None:
        """Raises StorageError if a replay would read a topic that was created again since it began: a reader demands
        the topic's id."""
        if any(topic_of(self._world.topics.id_of(topic)) != digest for topic, digest in plan.topics.items()):
            raise StorageError("the topic was deleted and created again")

    def check_end(self) -> None:
        """Runs each command once more, without faults. Then the table has each of its rows."""
        if not self.is_on:
            return
        world = self._world
        wanted: set[int] = set()
        for command in (*self._given, UP_TO_THE_END, OF_REPLAYED_TOPIC):
            world.drain(self.start(command, is_last=True))
            if world.ends[-1] != "finished":
                raise Broken(f"the last replay ends with: {world.ends[-1]}")
            chosen = self._selected(command)
            wanted |= chosen.plan(chosen.pieces, world.topics.generation).rows
        rows = {row for row in world.store.visible() if row >= REPLAYS_ROWS}
        expected = {row for row in wanted if row >= REPLAYS_ROWS}
        if missing := sorted(expected - rows):
            raise Broken(f"rows of replays are missing: {missing[:5]}")
        if more := sorted(row for row in rows - expected if not self._is_of_former_topic(row)):
            raise Broken(f"the table has rows that no replay has selected: {more[:5]}")

    def _is_of_former_topic(self, row: int) -> bool:
        former = (replayed_row(OF_REPLAYED_TOPIC, one, REPLAYED, 0) for one in range(self._world.topics.generation))
        return any(first <= row < first + ROWS for first in former)


__all__ = ["SimReplay", "SimReplays"]
