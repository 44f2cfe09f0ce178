"""A reader of the records of ``__consumer_offsets`` of any cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from odradek.batches.rows import Row
from odradek.client.admin import Admin
from odradek.client.reader import PartitionReader
from odradek.codecs import offsets_topic as records
from odradek.core.ids import EARLIEST, LATEST, OFFSETS_TOPIC, TopicPartition, partition_for_group


class Entry(NamedTuple):
    """One record of the offsets topic. ``value`` is None for a tombstone; ``timestamp`` in ms since 1970."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


def partitions(admin: Admin, group: str | None = None) -> list[TopicPartition]:
    """Returns the partitions of the offsets topic, or only that of ``group``; empty if the topic does not exist."""
    topic = admin.describe_topics([OFFSETS_TOPIC], missing_ok=True).get(OFFSETS_TOPIC)
    if topic is None:
        return []
    if group is not None:
        return [TopicPartition(OFFSETS_TOPIC, partition_for_group(group, len(topic.partitions)))]
    return [TopicPartition(OFFSETS_TOPIC, row.partition) for row in topic.partitions]


def entries(admin: Admin, group: str | None = None) -> Iterator[Entry]:
    """Yields all records that the logs have now, partition by partition; only those of ``group`` unless it is None.

    Records with a newer record of their key are included, and so are records of open or aborted transactions."""
    chosen = partitions(admin, group)
    starts = admin.list_offsets(dict.fromkeys(chosen, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(chosen, LATEST))
    for tp in chosen:
        for row in PartitionReader(admin.config, tp).read_rows(starts[tp].offset, ends[tp].offset):
            if group is None or group_of(row) == group:
                yield Entry(tp.partition, row.offset, row.timestamp, row.key, row.value)


def group_of(row: Row) -> str | None:
    """Returns the group of a record of the offsets topic; None if its key cannot be decoded or has no group."""
    record = records.decode(row.key, row.value)
    if isinstance(record, records.OffsetCommitRecord | records.GroupRecord):
        return record.key.group
    if isinstance(record, records.CoordinatorRecord):
        group = record.key.get("group_id")
        return group if isinstance(group, str) else None
    return None
