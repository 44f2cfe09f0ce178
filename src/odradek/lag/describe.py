"""The offsets and the lag of a group, with the values of ``kafka-consumer-groups --describe``.

Each partition that is assigned to a member or has a committed offset has one row. Lag is the log end offset minus the
committed offset, as in Kafka's tool: a committed offset of 20 in a log that ends at 10 shows -10. One case differs: if
the committed offset is below the log start offset, the records in between are deleted. Lag then counts from the log
start offset, and ``GroupLag.lost`` has the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from odradek.client.admin import Admin
from odradek.client.errors import GroupIdNotFound
from odradek.client.model import GroupDescription, ListedOffset, MemberDescription, Node
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import EARLIEST, LATEST, OffsetAndMetadata, TopicPartition


class LagRow(NamedTuple):
    """One partition of a group. ``current_offset`` is the committed offset. None means no value ("-" in the table)."""

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
    """A group's state (Stable, Empty, …) and its rows.

    ``lost`` has the log start offset of each partition whose committed offset is lower than the log start offset. The
    lag of such a partition counts from the log start offset.
    """

    group: str
    state: str
    rows: tuple[LagRow, ...]
    lost: Mapping[TopicPartition, int] = MappingProxyType({})

    def _repr_html_(self) -> str:
        """Returns the rows as an HTML table, for notebooks."""
        from odradek.text.html_table import html_table

        names = [name.replace("_", " ") for name in LagRow._fields[1:]]
        return html_table(f"group {self.group} ({self.state})", names, [row[1:] for row in self.rows])


def lag_rows(
    group: GroupDescription,
    committed: Mapping[TopicPartition, OffsetAndMetadata],
    log_ends: Mapping[TopicPartition, ListedOffset],
    log_starts: Mapping[TopicPartition, ListedOffset] = MappingProxyType({}),
    without_offset: Iterable[TopicPartition] = (),
) -> list[LagRow]:
    """Returns the rows of each member's partitions, then the rows of partitions without a member.

    The member with the most partitions is first. The rows of each member are in the order of topic and partition.
    ``without_offset``: partitions with a commit below 0, which is no offset. As in Kafka's tool they have a row."""
    known = (committed, log_ends, log_starts)
    rows: list[LagRow] = []
    assigned: set[TopicPartition] = set()
    members = sorted(group.members, key=lambda member: (-len(member.assignment), member.member_id))
    for member in members:
        assigned.update(member.assignment)
        rows += [_row(group.group_id, tp, known, member) for tp in sorted(member.assignment)]
    others = {*committed, *without_offset} - assigned
    rows += [_row(group.group_id, tp, known, None) for tp in sorted(others)]
    return rows


def _row(
    group_id: str,
    tp: TopicPartition,
    known: tuple[
        Mapping[TopicPartition, OffsetAndMetadata],
        Mapping[TopicPartition, ListedOffset],
        Mapping[TopicPartition, ListedOffset],
    ],
    member: MemberDescription | None,
) -> LagRow:
    committed, log_ends, log_starts = known
    current = committed[tp].offset if tp in committed else None
    end = log_ends[tp].offset if tp in log_ends else None
    lag = None
    if end is not None and current is not None:
        start = log_starts[tp].offset if tp in log_starts else current
        lag = end - max(current, start)
    if member is None:
        return LagRow(group_id, *tp, current, end, lag)
    return LagRow(group_id, *tp, current, end, lag, member.member_id, member.host, member.client_id)


def describe(admin: Admin, group: str) -> GroupLag:
    """Reads the lag from the cluster.

    A partition that no longer exists or has no leader gets neither a log end offset nor a lag.

    Raises GroupIdNotFound and the errors of ``Admin``.
    """
    description = group_description(admin, group)
    commits = admin.group_commits(group)
    committed = {tp: one for tp, one in commits.items() if one is not None}
    wanted = set(commits).union(*(member.assignment for member in description.members))
    readable = _readable(admin, wanted)
    # The log start offsets are read first, so that none is above the log end offset of its partition, which is read
    # later.
    log_starts = admin.list_offsets({tp: EARLIEST for tp in readable if tp in committed})
    log_ends = admin.list_offsets(dict.fromkeys(readable, LATEST))
    rows = lag_rows(description, committed, log_ends, log_starts, commits.keys() - committed.keys())
    lost = {tp: start.offset for tp, start in log_starts.items() if committed[tp].offset < start.offset}
    return GroupLag(group, description.state, tuple(rows), lost)


def group_description(admin: Admin, group: str) -> GroupDescription:
    """Describes a group. A group whose name is empty can have offsets, of old clients, but no broker describes it.

    Raises GroupIdNotFound and the errors of ``Admin``.
    """
    try:
        return admin.describe_groups([group])[group]
    except KafkaError as error:
        if group or error.code is not ErrorCode.invalid_group_id:
            raise
        if not admin.group_commits(group) and all(row.group_id for row in admin.list_groups()):
            raise GroupIdNotFound("no group has an empty name") from None
        return GroupDescription(group, "Empty", "", "", "", Node(-1, "", -1))


def _readable(admin: Admin, wanted: set[TopicPartition]) -> list[TopicPartition]:
    topics = admin.describe_topics(sorted({tp.topic for tp in wanted}), missing_ok=True) if wanted else {}
    led = {TopicPartition(t.name, p.partition) for t in topics.values() for p in t.partitions if p.leader >= 0}
    return sorted(wanted & led)


def lag_table(admin: Admin, group: str) -> list[LagRow]:
    """Returns the rows of one group. Raises GroupIdNotFound and the errors of ``Admin``."""
    return list(describe(admin, group).rows)
