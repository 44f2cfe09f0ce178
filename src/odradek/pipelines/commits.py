"""A group's newest commits, as they stand in ``__consumer_offsets``."""

from __future__ import annotations

from typing import NamedTuple

from odradek.client.admin import Admin
from odradek.client.model import EARLIEST, LATEST
from odradek.client.reader import read_range
from odradek.core.ids import OFFSETS_TOPIC, TopicPartition, partition_for_group
from odradek.core.records import OffsetCommitRecord, OffsetKey, decode


class CommitRecord(NamedTuple):
    """One record of the offsets topic, still encoded; ``offset`` is its own place in that topic."""

    offset: int
    key: bytes
    value: bytes | None


def offsets_partition(admin: Admin, group: str) -> TopicPartition:
    """The partition of the offsets topic that keeps this group. Raises UnknownTopic where there is none yet."""
    return TopicPartition(OFFSETS_TOPIC, partition_for_group(group, len(admin.partitions(OFFSETS_TOPIC))))


def newest_commits(admin: Admin, group: str) -> list[CommitRecord]:
    """The newest record of each partition the group ever committed, tombstones too, by topic and partition."""
    place = offsets_partition(admin, group)
    start = admin.list_offsets({place: EARLIEST})[place].offset
    end = admin.list_offsets({place: LATEST})[place].offset
    newest: dict[OffsetKey, CommitRecord] = {}
    for batch in read_range(admin.config, place, start, end, columns=("key", "value", "offset")):
        columns = (batch.column(name).to_pylist() for name in ("offset", "key", "value"))
        for row in map(CommitRecord, *columns):
            record = decode(row.key, row.value)
            if isinstance(record, OffsetCommitRecord) and record.key.group == group:
                newest[record.key] = row
    return [newest[key] for key in sorted(newest)]
