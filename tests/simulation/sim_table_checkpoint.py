"""Spark's checkpoint in the simulated world of a table: the planned micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sim_table_store import FIRST_ROWS, TP, SimPlan

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit import state
from odradek.pipelines.commit.state import Piece, covers_of, ends_of


@dataclass(frozen=True)
class PlannedBatch:
    """A micro-batch in a checkpoint. ``others``: the ranges of the other partitions that are read now. ``absent``: the
    next offsets of those that were read before. ``after``: the digest of the offsets after which it was planned; empty
    in a checkpoint of an earlier version. ``origins``: the partitions whose start it notes, because the one before it
    does not have them."""

    start: int
    end: int
    others: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    absent: Mapping[TopicPartition, int] = field(default_factory=dict)
    after: str = ""
    origins: frozenset[TopicPartition] = frozenset()

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        return {TP: self.end, **self.absent, **{tp: end for tp, (_, end) in self.others.items()}}

    @property
    def ranges(self) -> list[Piece]:
        return [(TP, self.start, self.end), *((tp, *at) for tp, at in self.others.items())]

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """The rows."""
        return tuple((start + FIRST_ROWS[tp], end + FIRST_ROWS[tp]) for tp, start, end in self.ranges)


@dataclass(frozen=True)
class SimStart:
    """What a run has found of its group before it plans: ``ours``, ``at_end`` as in ``BatchPlan``. ``is_at_end``:
    whether a new query begins partitions without a commit at their end. ``read``: the partitions that it sees."""

    ours: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_end: Iterable[TopicPartition] = ()
    is_at_end: bool = False
    read: tuple[TopicPartition, ...] = ()

    def of(self, plan: SimPlan) -> SimPlan:
        """Returns the plan with what it begins."""
        ours = {tp: at for tp, at in self.ours.items() if tp in plan.first}
        return replace(plan, ours=ours, at_end=[tp for tp in self.at_end if tp in plan.first])


NO_START = SimStart()


@dataclass
class Checkpoint:
    """Spark's checkpoint: the planned start and end of each micro-batch, and those that are done. ``is_bound``: whether
    it has the mark of the table."""

    query: str = ""
    planned: dict[int, PlannedBatch] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    is_bound: bool = True

    def copy(self) -> Checkpoint:
        """Returns a copy of the folder. Its files never change."""
        return Checkpoint(self.query, dict(self.planned), set(self.done), self.is_bound)

    def plan(self, batch: int) -> SimPlan:
        """Returns a planned micro-batch, as ``planned_batch`` does: by the files of the folder. Raises TableRefused."""
        planned, before = self.planned.get(batch), self.planned.get(batch - 1)
        if planned is None or (batch and before is None):
            raise state.TableRefused(f"offsets/{batch if planned is None else batch - 1} is missing")
        known = {} if before is None else before.offsets
        state.check_follows(known, planned.offsets, (), batch, "the checkpoint")
        state.check_link(planned.after, ends_of(known), batch, "the checkpoint")
        unlinked: dict[TopicPartition, int] = {}
        if before is not None:  # as in the files of a checkpoint, which have the starts of new partitions only
            begun = {tp: start for tp, (start, _) in planned.others.items() if tp in planned.origins}
            if unknown := [tp for tp, (_, end) in planned.others.items() if end and tp not in begun | known]:
                raise state.TableRefused(f"offsets/{batch} has no start offset of {unknown[0]}")
            others = {
                tp: (begun[tp] if tp in begun else known.get(tp, 0), end) for tp, (_, end) in planned.others.items()
            }
            planned = replace(planned, start=before.end, others=others)
            unlinked = {} if planned.after else {tp: at for tp, at in begun.items() if known.get(tp) != at}
        return SimPlan(
            self.query,
            batch,
            covers_of(planned.ranges),
            ends_of(planned.offsets),
            begin=None if batch == 0 else ends_of(known),
            covers_before=None if before is None else covers_of(before.ranges),
            offsets=planned.offsets,
            first={tp: start for tp, start, _ in planned.ranges if tp not in known},
            pieces=planned.pieces,
            unlinked=unlinked,
            read={tp: end for tp, _, end in planned.ranges},
        )


__all__ = ["NO_START", "Checkpoint", "PlannedBatch", "SimStart"]
