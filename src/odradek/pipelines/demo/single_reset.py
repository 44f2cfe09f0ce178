"""A rewind that happens once, however often the run that does it is killed.

What it means is decided first and kept with the demo's state; then the group is reset; then the query follows. A run
that dies in between leaves the decision, and the next run, asked for the same or for nothing, carries that out instead
of deciding anew: else ``-100`` would be 200 after a kill. Doing it again is safe as long as the query has not followed,
and whether it has, its checkpoint tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.pipelines.checkpoint import newest_batch, standing
from odradek.pipelines.demo.rewind import Move, execute_rewind, parse_rewind, plan_rewind, topic_exists
from odradek.pipelines.demo.state import DemoState, PendingRewind


@dataclass(frozen=True)
class Query:
    """Whose offsets are moved, and the checkpoint that tells how far it is. ``data_dir`` keeps the state."""

    group: str
    topic: str
    checkpoint: Path
    data_dir: Path


@dataclass(frozen=True)
class Reset:
    """``asked``: in the user's words. ``continued``: it was decided by an earlier run."""

    asked: str
    moves: Sequence[Move]
    continued: bool


def reset_once(admin: Admin, query: Query, state: DemoState, asked: str | None) -> Reset | None:
    """Resets the group as asked, or as an earlier run had decided to; None where there is nothing to reset.

    ``state.pending`` stays until ``DemoState.end_rewind`` is called. Raises ConfigError, StorageError.
    """
    pending, newest = state.pending, newest_batch(query.checkpoint)
    followed = pending is not None and newest.batch > pending.batch
    if pending is not None and (asked is None or parse_rewind(asked) == parse_rewind(pending.asked)):
        if not followed:
            execute_rewind(admin, query.group, query.topic, pending.moves)
        return Reset(pending.asked, pending.moves, continued=True)
    if asked is None or not topic_exists(admin, query.topic):
        return None
    positions = standing(newest, admin.list_group_offsets(query.group, admin.partitions(query.topic)))
    if pending is not None:
        if not followed:  # the group may stand where that one wanted it; this one goes from where the query is
            positions |= {TopicPartition(query.topic, move.partition): move.before for move in pending.moves}
        state.end_rewind(followed)
    moves = plan_rewind(admin, query.topic, parse_rewind(asked), positions)
    state.pending = PendingRewind(asked, newest.batch, tuple(moves))
    state.save(query.data_dir)
    execute_rewind(admin, query.group, query.topic, moves)
    return Reset(asked, moves, continued=False)
