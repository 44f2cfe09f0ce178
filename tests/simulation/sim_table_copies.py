"""An operator in the simulated world of a table, who puts back older copies of the whole table, and adopts its offsets.

A copy has the data files and the table's notes, and perhaps the checkpoint. Between two copies partitions are added to
the topics, and a topic is added to the subscription: so a copy may lack them, although the group stands behind their
records. Runs begin with ``--from latest`` or ``earliest``.

The ledger: after an adoption and the following runs, each record that the broker has is in the table once, or the run
has stopped with one line. From an adoption on, the group never stands above the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from sim_table_checkpoint import Checkpoint
from sim_table_store import TP, Broken

from odradek.core.ids import TopicPartition

if TYPE_CHECKING:
    from sim_table import TableScenario


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
    is done, because a copy was put back or an adoption was killed."""

    def __init__(self, world: TableScenario, seed: int) -> None:
        self._world = world
        self.random = Random(f"{seed} copies of the table")
        self.is_on = self.random.random() < 0.4 and world.faults.is_exclusive and not world.restores_table
        self._is_from_latest = self.random.random() < 0.5
        self._options = Random(f"{seed} options of the runs")
        self._options_vary = self._options.random() < 0.4
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

    @property
    def begins_at_latest(self) -> bool:
        """Whether a run has ``--from latest``: in some worlds each run has the same options, in others not."""
        is_from_latest = self._options.random() < 0.5 if self._options_vary else self._is_from_latest
        return self.is_on and is_from_latest

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
        self.copies.append(WholeTable(world.store.copied(), world.checkpoint.copy(), world.numbers, frozenset(offsets)))
        world.note(f"the table is copied, with {sorted(map(str, offsets))}")

    def _put_back(self, found: WholeTable, *, has_checkpoint: bool) -> None:
        """Puts a copy back. No run works meanwhile: the operator has ended all."""
        world = self._world
        lacks = world.group.offsets.keys() - found.partitions - {TP}
        world.drivers.clear()
        world.store.put_back(found.content)
        world.numbers = found.numbers
        if has_checkpoint:
            world.checkpoint = found.checkpoint.copy()
        rows = set(world.store.visible())
        world.finished = [plan for plan in world.finished if plan.rows <= rows]
        world.lowered, self.is_group_ours = None, False
        self.is_waiting = self.random.random() < 0.5
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
        self.is_waiting = not is_complete and self.random.random() < 0.5
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
