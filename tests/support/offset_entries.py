"""Decoded entries of the offsets topic, and machines of the monitor that have read some."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from odradek.core.ids import TopicPartition
from odradek.history.records.columns import SCHEMA
from odradek.history.verdict_rules import VerdictRules
from odradek.monitor.group_tracker import GroupTracker, LogBoundsRow

STEP_MS = 1_000


def entry(group: str, tp: TopicPartition, place: tuple[int, int], ms: int, offset: int | None, topic_id: bytes | None
          ) -> dict[str, Any]:  # fmt: skip
    """A commit, or the deletion of an offset (``offset`` None). ``place``: where the offsets topic has the entry."""
    return {
        "kind": "offset_commit", "group": group, "topic": tp.topic, "partition": tp.partition,
        "committed_offset": offset, "commit_timestamp": None if offset is None else ms * 1000,
        "is_tombstone": offset is None, "record_partition": place[0], "record_offset": place[1],
        "record_timestamp": ms * 1000, "topic_id": topic_id,
    }  # fmt: skip


def batch_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Returns the entries as a decoded batch. Columns that are null throughout take no time."""
    columns = [
        pa.array([row[field.name] for row in rows], field.type)
        if field.name in rows[0]
        else pa.nulls(len(rows), field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def machine_with(commits: dict[tuple[str, TopicPartition], list[int]], end: int = 100) -> GroupTracker:
    tracker = GroupTracker(VerdictRules())
    place = 0
    for (group, tp), offsets in commits.items():
        for offset in offsets:
            place += 1
            tracker.add_entries(batch_of([entry(group, tp, (0, place), place * STEP_MS, offset, None)]))
    bounds = {tp: LogBoundsRow(0, end) for _, tp in commits}
    tracker.add_bounds(place * STEP_MS, bounds, {})
    return tracker
