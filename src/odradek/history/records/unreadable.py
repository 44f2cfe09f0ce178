"""The records of the offsets topic that cannot be decoded: their number, and the first ones with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.counts import counted
from odradek.core.ids import OFFSETS_TOPIC
from odradek.history.records.column_values import plain_text
from odradek.history.records.columns import UNKNOWN

MOST_KEPT = 100
_COLUMNS = ("record_partition", "record_offset", "group", "reason")


class UnreadableRecord(NamedTuple):
    """``group`` is None if the key cannot be read."""

    record_partition: int
    record_offset: int
    group: str | None
    reason: str

    def __str__(self) -> str:
        whose = "" if self.group is None else f" (group {self.group})"
        return f"{OFFSETS_TOPIC}-{self.record_partition}, offset {self.record_offset}{whose}: {self.reason}"


@dataclass(slots=True)
class UnreadableRecords:
    """``first`` has at most ``MOST_KEPT`` records. ``groups``: the groups of all."""

    count: int = 0
    first: list[UnreadableRecord] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds the unreadable rows of a decoded batch."""
        rows = batch.filter(pc.equal(plain_text(batch.column("kind")), UNKNOWN))
        if rows.num_rows:
            self.count += rows.num_rows
            self.groups.update(name for name in pc.unique(rows.column("group")).to_pylist() if name is not None)
            kept = rows.slice(0, MOST_KEPT - len(self.first)).select(_COLUMNS).to_pylist()
            self.first += [UnreadableRecord(*row.values()) for row in kept]

    def __str__(self) -> str:
        """Returns one line without a full stop; "" without a record."""
        if not self.first:
            return ""
        verb, first = ("is", "") if self.count == 1 else ("are", "the first is ")
        many = counted(self.count, "record")
        return f"{many} of the offsets topic cannot be read and {verb} left out: {first}{self.first[0]}"
