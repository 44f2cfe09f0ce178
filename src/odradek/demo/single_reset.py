"""A rewind that is made once, even if the run that makes it is killed several times.

The new offsets are first decided and saved in the demo's state. Then the group is reset. Then the query follows the
reset. If a run dies in between, the decision remains. If the next run is asked for the
same rewind or for no rewind, it carries out this decision and makes no new one. After a kill, a new decision would make
``-100`` go back 200 records. The reset can be repeated as long as the query has not followed it. The query's checkpoint
shows whether the query has followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from odradek.client.admin import Admin
from odradek.core.ids import TopicPartition
from odradek.demo.rewind import Move, execute_rewind, parse_rewind, rewind_moves, topic_exists
from odradek.demo.state import DemoState, PendingRewind
from odradek.pipelines.checkpoint import newest_batch
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.spark.offsets.plan import decide_commits
from odradek.spark.options import OnGroupReset


@dataclass(frozen=True)
class Query:
    """The group whose offsets are moved, and the query's checkpoint. ``data_dir`` has the demo's state."""

    group: str
    topic: str
    checkpoint: Path
    data_dir: Path


@dataclass(frozen=True)
class Reset:
    """``asked``: the rewind in the user's words. ``continued``: whether an earlier run decided the rewind."""

    asked: str
    moves: Sequence[Move]
    continued: bool


def reset_once(admin: Admin, query: Query, state: DemoState, asked: str | None) -> Reset | None:
    """Resets the group as requested, or as an earlier run had decided; returns None if there is nothing to reset.

    If ``asked`` is None or the reset of an earlier run, and the query has already followed that reset, returns it
    without repeating it.
    ``state.pending`` stays until ``DemoState.end_rewind`` is called. Raises ConfigError, StorageError.
    """
    pending, newest = state.pending, newest_batch(LocalLocation(query.checkpoint))
    followed = pending is not None and newest.batch > pending.batch
    if pending is not None and (asked is None or parse_rewind(asked) == parse_rewind(pending.asked)):
        if not followed:
            execute_rewind(admin, query.group, query.topic, pending.moves)
        return Reset(pending.asked, pending.moves, continued=True)
    if asked is None or not topic_exists(admin, query.topic):
        return None
    committed = admin.list_group_offsets(query.group, admin.partitions(query.topic))
    decided = decide_commits(
        newest.end, committed, OnGroupReset.FOLLOW, "any"
    )  # another client may have reset it since
    positions = {tp: one.offset for tp, one in {**committed, **decided.commits}.items()}
    if pending is not None:
        if not followed:  # the group may be reset already; the new rewind starts at the query's offsets
            positions |= {TopicPartition(query.topic, move.partition): move.before for move in pending.moves}
        state.end_rewind(followed)
    moves = rewind_moves(admin, query.topic, parse_rewind(asked), positions)
    state.pending = PendingRewind(asked, newest.batch, tuple(moves))
    state.save(query.data_dir)
    execute_rewind(admin, query.group, query.topic, moves)
    return Reset(asked, moves, continued=False)
