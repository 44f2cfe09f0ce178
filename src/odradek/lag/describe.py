"""The offsets and the lag of a group, with the values of ``kafka-consumer-groups --describe``.

One row per partition that is assigned to a member or has a committed offset. Lag is the log end offset minus the
committed one, neither clamped: committing 20 into a log that ends at 10 shows -10, as Kafka's tool does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from odradek.client.admin import Admin
from odradek.client.model import LATEST, GroupDescription, ListedOffset, MemberDescription
from odradek.core.ids import OffsetAndMetadata, TopicPartition


class LagRow(NamedTuple):
    """``current_offset`` is the next record to read; None where there is nothing to show ("-" in the table)."""

    group: str
    topic: str
    partition: int
    current_offset: int | None
    log_end_offset: int | None
    lag: int | None
    consumer_id: str | None = None
    host: str | None = None
    client_id: str | None = None


class GroupLag(NamedTuple):
    """A group's state (Stable, Empty, …) with its rows."""

    group: str
    state: str
    rows: tuple[LagRow, ...]


def lag_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    log_ends: Mapping[TopicPartition, ListedOffset],
) -> list[LagRow]:
    """Rows by member, the one with most partitions first, then what nobody owns; by topic and partition in each."""
    rows: list[LagRow] = []
    assigned: set[TopicPartition] = set()
    members = sorted(group.members, key=lambda member: (-len(member.assignment), member.member_id))
    for member in members:
        assigned.update(member.assignment)
        rows += [_row(group.group_id, tp, committed, log_ends, member) for tp in sorted(member.assignment)]
    rows += [_row(group.group_id, tp, committed, log_ends, None) for tp in sorted(committed) if tp not in assigned]
    return rows


def _row(
    group_id: str,
    tp: TopicPartition,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    log_ends: Mapping[TopicPartition, ListedOffset],
    member: MemberDescription | None,
) -> LagRow:
    current = committed[tp].offset if tp in committed else None
    end = log_ends[tp].offset if tp in log_ends else None
    lag = end - current if end is not None and current is not None else None
    if member is None:
        return LagRow(group_id, *tp, current, end, lag)
    return LagRow(group_id, *tp, current, end, lag, member.member_id, member.host, member.client_id)


def describe(admin: Admin, group: str) -> GroupLag:
    """Asks the cluster. A partition that no longer exists, or has no leader, shows no log end.

    Raises GroupIdNotFound, and as every call of ``Admin`` does.
    """
    description = admin.describe_groups([group])[group]
    committed = admin.list_group_offsets(group)
    wanted = set(committed).union(*(member.assignment for member in description.members))
    log_ends = admin.list_offsets(dict.fromkeys(_readable(admin, wanted), LATEST))
    return GroupLag(group, description.state, tuple(lag_rows(description, committed, log_ends)))


def _readable(admin: Admin, wanted: set[TopicPartition]) -> list[TopicPartition]:
    topics = admin.describe_topics(sorted({tp.topic for tp in wanted}), missing_ok=True) if wanted else {}
    led = {TopicPartition(t.name, p.partition) for t in topics.values() for p in t.partitions if p.leader >= 0}
    return sorted(wanted & led)


def lag_table(admin: Admin, group: str) -> list[LagRow]:
    """The rows of one group. Raises GroupIdNotFound."""
    return list(describe(admin, group).rows)
