"""Entries for the tracker where the offsets topic may not be read: changes between two lookups of committed offsets.

A lookup shows an offset, not its commits. So a commit is seen as late as the next lookup, and a commit of the same
offset is not seen. A group that commits one offset again and again is STOP here, not STALL.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from odradek.core.ids import TopicPartition
from odradek.history.records.columns import OFFSET_COMMIT, SCHEMA
from odradek.monitor.cluster_polls import GroupLookup

STORE = -1
"""The number of the partition of the offsets topic in these entries: there is none."""


class FetchedOffsets:
    """The offsets of the newest lookup. ``changes`` returns what differs from the lookup before."""

    def __init__(self) -> None:
        self._known: dict[str, dict[TopicPartition, int]] = {}
        self._next = 0

    def changes(self, lookups: Mapping[str, GroupLookup], now_ms: int) -> pa.RecordBatch:
        """Returns decoded entries: a commit for each changed offset, a deletion for each one that is gone.

        A group whose lookup failed keeps its offsets.
        """
        rows: list[dict[str, object]] = []
        for group in [*self._known.keys() - lookups.keys(), *lookups]:
            fetched = lookups.get(group, GroupLookup({}))
            if fetched.failed:
                continue
            before = self._known.pop(group, {})
            rows += [self._entry(group, tp, None, now_ms) for tp in before.keys() - fetched.offsets.keys()]
            changed = {tp: offset for tp, offset in fetched.offsets.items() if before.get(tp) != offset}
            rows += [self._entry(group, tp, offset, now_ms) for tp, offset in changed.items()]
            if fetched.offsets:
                self._known[group] = fetched.offsets
        columns = [
            pa.array([row[field.name] for row in rows], field.type)
            if rows and field.name in rows[0]
            else pa.nulls(len(rows), field.type)
            for field in SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def _entry(self, group: str, tp: TopicPartition, offset: int | None, now_ms: int) -> dict[str, object]:
        self._next += 1
        return {
            "kind": OFFSET_COMMIT, "group": group, "topic": tp.topic, "partition": tp.partition,
            "committed_offset": offset, "commit_timestamp": None if offset is None else now_ms * 1000,
            "is_tombstone": offset is None, "record_partition": STORE, "record_offset": self._next,
            "record_timestamp": now_ms * 1000,
        }  # fmt: skip
