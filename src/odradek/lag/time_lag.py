"""The lag of a group in time: from the first record that it has not read to the newest record of the partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from odradek.client.admin import Admin
from odradek.client.errors import KafkaError
from odradek.client.reader import PartitionReader
from odradek.core.ids import MAX_TIMESTAMP, NO_TIMESTAMP, TopicPartition
from odradek.lag.describe import GroupLag

_FETCH_BYTES = 16_384


def time_lags(admin: Admin, group: GroupLag) -> Mapping[TopicPartition, int | None]:
    """Returns the lag of each partition in ms: 0 if the group has read all, None if a record or its time is missing.

    Reads one record of each partition with a lag. Raises the errors of ``Admin``.
    """
    rows = {TopicPartition(row.topic, row.partition): row for row in group.rows if row.lag is not None}
    behind = [tp for tp, row in rows.items() if row.lag is not None and row.lag > 0]
    newest = admin.list_offsets(dict.fromkeys(behind, MAX_TIMESTAMP)) if behind else {}
    lags: dict[TopicPartition, int | None] = dict.fromkeys(rows, 0)
    for tp in behind:
        first_ms = _first_time(admin, tp, rows[tp].current_offset or 0, rows[tp].log_end_offset or 0)
        last_ms = newest[tp].timestamp_ms
        lags[tp] = None if NO_TIMESTAMP in (first_ms, last_ms) else max(0, last_ms - first_ms)
    return lags


def _first_time(admin: Admin, tp: TopicPartition, offset: int, end: int) -> int:
    """Returns the time of the first record from an offset on, or NO_TIMESTAMP."""
    config = replace(admin.config, max_partition_fetch_bytes=_FETCH_BYTES)
    try:
        row = next(iter(PartitionReader(config, tp).read_rows(offset, end)), None)
    except KafkaError:
        return NO_TIMESTAMP  # deleted meanwhile, or a record that cannot be read
    return NO_TIMESTAMP if row is None else row.timestamp
