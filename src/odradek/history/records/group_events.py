"""Records of the offsets topic that change a group, as ``GroupEvent``: few, and each one is a Python object."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from odradek.history.records.column_values import plain_text
from odradek.history.records.columns import Row

_MEMBERSHIP = ("consumer_group_member_metadata", "streams_group_member_metadata", "share_group_member_metadata")
_EPOCHS = ("consumer_group_metadata", "streams_group_metadata", "share_group_metadata")
GROUP_KINDS = ("group_metadata", *_EPOCHS, *_MEMBERSHIP)
_COLUMNS = (
    "kind", "group", "generation", "protocol_type", "state_timestamp", "member_id", "members", "is_tombstone",
    "record_partition", "record_offset", "record_timestamp",
)  # fmt: skip


class GroupEvent(NamedTuple):
    """A record that changed a group. Times are microseconds since 1970 (-1: unknown).

    ``members`` is the number of members after the record. ``topics`` are the topics that these members subscribe to
    (None: unknown, or no members). ``is_rebalance``: the record began a classic generation with members, or a group
    epoch.
    """

    record_partition: int
    record_offset: int
    record_us: int
    kind: str
    generation: int
    members: int
    state_us: int
    protocol_type: str
    topics: frozenset[str] | None
    is_rebalance: bool


def event_rows(batch: pa.RecordBatch) -> list[Row]:
    """Returns the rows of a decoded batch that change a group; times as numbers of microseconds."""
    rare = batch.filter(pc.is_in(plain_text(batch.column("kind")), pa.array(GROUP_KINDS)))
    rows: list[Row] = _times_as_numbers(rare.select(_COLUMNS)).to_pylist()
    return rows


class MemberChanges:
    """The members of one group, record by record."""

    __slots__ = ("_last", "_topics_of")

    def __init__(self) -> None:
        self._topics_of: dict[str, frozenset[str] | None] = {}
        self._last: GroupEvent | None = None

    def event(self, row: Row) -> GroupEvent:
        """Applies the next row of ``event_rows`` of this group, in log order."""
        kind, is_tombstone, before, members = row["kind"], row["is_tombstone"], self._last, self._topics_of
        generation = -1 if row["generation"] is None else row["generation"]
        protocol_type = row["protocol_type"] or ""
        if kind == "group_metadata":
            members.clear()
            members.update({one["member_id"]: _topics(one) for one in row["members"] or ()})
            is_rebalance = bool(members) and (before is None or before.generation != generation)
        else:
            protocol_type = kind.split("_")[0]
            if kind in _MEMBERSHIP:
                generation = before.generation if before else -1
                if is_tombstone:
                    members.pop(row["member_id"], None)
                else:
                    members[row["member_id"]] = _topics(row["members"][0]) if row["members"] else None
            is_rebalance = kind in _EPOCHS and not is_tombstone and (before is None or before.generation != generation)
        topics = None if not members or None in members.values() else frozenset().union(*filter(None, members.values()))
        self._last = GroupEvent(
            row["record_partition"],
            row["record_offset"],
            row["record_timestamp"],
            kind,
            generation,
            len(members),
            -1 if row["state_timestamp"] is None else row["state_timestamp"],
            protocol_type,
            topics,
            is_rebalance,
        )
        return self._last


def _topics(member: Row) -> frozenset[str] | None:
    """Returns the topics of a member's subscription; None if it is unknown or a regular expression."""
    if member["subscription_regex"]:
        return None
    return None if member["subscription"] is None else frozenset(member["subscription"])


def _times_as_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Casts timestamps to numbers, because a record's timestamp can be after 9999, the last year of a datetime."""
    for at, column in enumerate(batch.schema):
        if pa.types.is_timestamp(column.type):
            batch = batch.set_column(at, column.name, batch.column(at).cast(pa.int64()))
    return batch
