"""An operator in the simulated world of a table, who puts back older copies of the whole table, and adopts its offsets.

A copy has the data files and the table's notes, and perhaps the checkpoint. Between two copies partitions are added to
the topics, and a topic is added to the subscription: so a copy may lack them, although the group stands behind their
records. Runs begin with ``--from latest`` or ``earliest``.

The ledger: after an adoption and the following runs, each record that the broker has is in the table once, or the run
has stopped with one line. From an adoption on, the group never stands above the table.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from sim_table_checkpoint import Checkpoint
from sim_table_store import TP, Broken

from odradek.core.ids import TopicPartition

if TYPE_CHECKING:
    from sim_table import TableScenario


KNOWN = {
    "unnamed commit": "the commits of an adoption do not name the table. If an older copy is put back afterwards, "
    "which lacks a partition, a second adoption leaves the group behind the records of this partition",
    "partition of a lacking topic": "the copy lacks a topic, and the topic has got a partition that the group does not "
    "have: after the adoption, a run with --from latest begins this partition at its end",
    "partition after an adoption": "a topic gets a partition between an adoption and the next run: a run with --from "
    "latest begins it at its end",
    "run before the adoption": "a copy that lacks a partition is put back with its checkpoint. A run before the "
    "adoption is not refused, and reads the partition from the group's commit, behind the records that the copy lacks",
    "run after a killed adoption": "an adoption is killed before it commits the group. If the other offsets agree, a "
    "run before its repetition is not refused, and reads a partition that the copy lacks from the group's commit",
    "RESTORE after an adoption": "a RESTORE to a version that lacks a partition comes between an adoption and the next "
    "run. If the other offsets agree, the run is not refused, and reads the partition from the group's commit",
    "origin of a later query": "the copy lacks a partition that the present checkpoint began to read in the middle, "
    "as after an earlier adoption: a second adoption sets the group there, behind the records that the copy lacks",
    "run during an adoption": "an adoption does not see what an earlier run publishes between its look at the table "
    "and its entry: the table's notes go back, and the rows come twice",
}
"""Faults of the program that are known: a world lets them happen only if it is asked to."""
NOTHING = "there is nothing to adopt"


@dataclass(frozen=True)
class WholeTable:
    """A copy of a table. ``numbers``: the highest number of a run in it."""

    content: dict[str, Any]
    checkpoint: Checkpoint
    numbers: int
    partitions: frozenset[TopicPartition]


class TableOperator:
    """The operator. ``is_on``: whether the world has one. ``is_waiting``: whether no run may start before an adoption
    is done, because a copy was put back or an adoption was killed. ``fault``: a known fault that may happen."""

    def __init__(self, world: TableScenario, seed: int, fault: str) -> None:
        self._world = world
        self.fault = fault
        self.random = Random(f"{seed} copies of the table")
        self.is_on = self.random.random() < 0.4 and world.faults.is_exclusive and not world.restores_table
        self.copies: list[WholeTable] = []
        self.is_waiting = False
        self.is_group_ours = True

    def event(self) -> None:
        """What the operator and the owners of the topics do now."""
        world, random = self._world, self.random
        self._change_topics()
        if world.adoption.depth == 0:
            if random.random() < 0.06:
                self._copy()
            if self.copies and random.random() < 0.015:
                self._put_back(random.choice(self.copies), has_checkpoint=random.random() < 0.5)
        if random.random() < (0.15 if self.is_waiting else 0.004) and world.adoption.depth < 2:
            self.adopt()

    def begins_at_latest(self, tp: TopicPartition) -> bool:
        """Returns whether a new query begins a partition, which the group does not have, with ``--from latest``."""
        if not self.is_on or self.random.random() < 0.5:
            return False
        world = self._world
        if all(one.topic != tp.topic for one in world.group.offsets):
            return True
        if tp not in world.adoption.present and self.fault != "partition after an adoption":
            return False
        noted = world.noted_offsets() or {}
        return any(one.topic == tp.topic for one in noted) or self.fault == "partition of a lacking topic"

    def _change_topics(self) -> None:
        topics, random = self._world.topics, self.random
        if topics.missing and random.random() < 0.015:
            tp = random.choice(topics.missing)
            topics.add_partition(tp, random.choice([0, 0, 3]))
            self._world.note(f"{tp} is there")
        for tp in topics.ends:
            if tp.topic == "v" and tp not in topics.read and random.random() < 0.02:
                topics.subscribe("v")
                self._world.note("topic v is read from now on")
        grown = [tp for tp in topics.ends if tp in topics.starts and random.random() < 0.08]
        for tp in grown:
            topics.ends[tp] += random.randint(1, 10)

    def _copy(self) -> None:
        world = self._world
        offsets = world.noted_offsets()
        if offsets is None:
            return
        self.copies.append(
            WholeTable(world.store.copied(), copy.deepcopy(world.checkpoint), world.numbers, frozenset(offsets))
        )
        world.note(f"the table is copied, with {sorted(map(str, offsets))}")

    def _is_known_fault(self, lacks: Collection[TopicPartition], checkpoint: Checkpoint) -> bool:
        """Returns whether an adoption meets a known fault, if the table lacks partitions, with this checkpoint."""
        world = self._world
        origins = checkpoint.origins
        is_unnamed = bool(set(lacks) - world.group.marked)
        begins_later = any(origins.get(tp, 0) > world.topics.first_of(tp) for tp in lacks)
        return (is_unnamed and self.fault != "unnamed commit") or (
            begins_later and self.fault != "origin of a later query"
        )

    def is_known_after_restore(self) -> bool:
        """Returns whether the next run, or an adoption, meets a known fault after a RESTORE."""
        checkpoint = self._world.checkpoint
        lacks = self._world.group.offsets.keys() - (self._world.noted_offsets() or {}).keys() - {TP}
        if lacks and not checkpoint.planned:
            return self.fault != "RESTORE after an adoption"
        return self._is_known_fault(lacks, checkpoint)

    def _put_back(self, found: WholeTable, *, has_checkpoint: bool) -> None:
        """Puts a copy back. No run works meanwhile: the operator has ended all."""
        world = self._world
        lacks = world.group.offsets.keys() - found.partitions - {TP}
        if self._is_known_fault(lacks, found.checkpoint if has_checkpoint else world.checkpoint):
            return
        world.drivers.clear()
        world.store.put_back(found.content)
        world.numbers = found.numbers
        if has_checkpoint:
            world.checkpoint = copy.deepcopy(found.checkpoint)
        rows = set(world.store.visible())
        world.finished = [plan for plan in world.finished if plan.rows <= rows]
        world.lowered, self.is_group_ours = None, False
        must_wait = bool(lacks) and self.fault != "run before the adoption"
        self.is_waiting = must_wait or self.random.random() < 0.5
        world.note(
            f"a copy of the table is put back with{'' if has_checkpoint else 'out'} its checkpoint: {len(rows)} rows, "
            f"it lacks {sorted(map(str, lacks))}"
        )

    def adopt(self, *, is_quiet: bool = False) -> str:
        """Shows what an adoption does, then does it. Returns how it ends."""
        world = self._world
        before = self._state()
        shown = world.adoption.run(execute=False, is_quiet=is_quiet)
        is_alone = world.adoption.was_alone
        if is_alone and shown == "done" and before != self._state():
            raise Broken("an adoption that was only shown has changed something")
        plan = world.adoption.last
        how = world.adoption.run(execute=True, is_quiet=is_quiet)
        if how == "done" and is_alone and world.adoption.was_alone and shown == "done":
            self._check_shown(plan, world.adoption.last)
        is_complete = how == "done" or NOTHING in how
        self.is_waiting = not is_complete and self.fault != "run after a killed adoption"
        if how == "done":
            self.is_group_ours = True
            if world.adoption.was_alone:
                world.check_group()
        return how

    def _state(self) -> tuple[Any, ...]:
        world = self._world
        return world.noted_offsets(), dict(world.group.offsets), world.checkpoint.query

    def _check_shown(self, shown: Any, done: Any) -> None:
        names = ("offsets", "known_by", "new", "forgotten", "deleted", "replaced")
        if other := [name for name in names if getattr(shown, name) != getattr(done, name)]:
            raise Broken(f"an adoption does something else than it has shown: {other}")


__all__ = ["TableOperator", "WholeTable"]
