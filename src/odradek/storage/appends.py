"""Appends to a log: their result, and record batches with the offsets and the leader epoch that the log assigns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from odradek.batches.header import BatchHeader, Buffer, head_with_offset
from odradek.storage.segments.segment import AppendedBatch

Origin = Literal["client", "coordinator"]


class AppendInfo(NamedTuple):
    """The offsets of appended records. ``log_append_time_ms`` is -1 unless the topic uses LogAppendTime.

    ``duplicate``: nothing was written. The offsets are those of the first append, and ``log_append_time_ms`` is the
    largest timestamp of the first append, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class AssignedBatches(NamedTuple):
    """The ``size`` bytes to write, in ``parts``, and each batch's offsets. ``has_producer``: any batch has a producer
    id."""

    parts: list[Buffer]
    size: int
    appended: list[AppendedBatch]
    end_offset: int
    newest_timestamp: int
    has_producer: bool


def assign_offsets(
    data: Buffer,
    batches: Sequence[tuple[int, BatchHeader]],
    first_offset: int,
    *,
    leader_epoch: int,
    log_append_time_ms: int | None,
) -> AssignedBatches:
    """Gives the batches of ``data`` offsets from ``first_offset`` on. ``log_append_time_ms=None`` keeps the times of
    the records."""
    view = memoryview(data)
    offset = first_offset
    newest, has_producer = -1, False
    parts: list[Buffer] = []
    appended: list[AppendedBatch] = []
    for pos, header in batches:
        head = head_with_offset(
            data, pos, header, base_offset=offset, leader_epoch=leader_epoch, log_append_time_ms=log_append_time_ms
        )
        size = header.size_in_bytes
        parts += (head, view[pos + len(head) : pos + size])
        timestamp = header.max_timestamp if log_append_time_ms is None else log_append_time_ms
        last_offset = offset + header.last_offset_delta
        appended.append(AppendedBatch(offset, last_offset, timestamp, size))
        offset = last_offset + 1
        newest = max(newest, timestamp)
        if header.producer_id >= 0:
            has_producer = True
    return AssignedBatches(parts, len(data), appended, offset, newest, has_producer)
