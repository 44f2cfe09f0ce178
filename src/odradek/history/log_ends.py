"""Past log end offsets and record timestamps of the committed partitions, and the retention of offsets.

ListOffsets by time gives the past log end offsets: the first record that is not older than a moment has the log end
offset of that moment. This holds as far as record timestamps are the times of arrival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from odradek.batches.kernels.kernel_arrays import Array
from odradek.client.admin import Admin
from odradek.client.config import ClientConfig
from odradek.client.errors import LOOKUP_REFUSED, OffsetOutOfRange, UnknownTopic
from odradek.client.reader import PartitionReader
from odradek.core.errors import KafkaError
from odradek.core.ids import EARLIEST, LATEST, NO_OFFSET, TopicPartition

PartitionOffset = tuple[TopicPartition, int]
TimesOf = Callable[[Sequence[PartitionOffset]], Mapping[PartitionOffset, int]]
"""Returns the timestamps of the records at the given offsets, in microseconds. Offsets below the log start offset and
offsets without a record so far are left out."""

RETENTION_MS = 7 * 86_400_000
"""Kafka's default of offsets.retention.minutes, in ms."""
_PARALLEL_READS = 16


@dataclass(frozen=True, slots=True)
class LogEnds:
    """The offsets of one partition's log.

    ``ends[i]`` is the log end offset at ``Logs.moments[i]``, -1 if it is unknown because records of that time are
    deleted. ``found_us[i]`` is the timestamp of the record at that offset (-1: no record is that recent).
    """

    start: int
    end: int
    ends: Array
    found_us: Array

    def time_of(self, offset: int) -> tuple[int, int] | None:
        """Estimates the timestamp of the record at ``offset``, with its maximum error, both in microseconds.

        The estimate is between the timestamps of the two nearest known records; None if one of them is missing, or if
        no record has this offset yet. The error is 0 if the record itself is known.
        """
        known = np.flatnonzero((self.ends >= 0) & (self.found_us >= 0))
        if not len(known) or offset >= self.end:
            return None
        ends, times = self.ends[known], self.found_us[known]
        after = int(np.searchsorted(ends, offset, side="left"))
        if after < len(ends) and ends[after] == offset:
            return int(times[after]), 0
        if after == 0 or after == len(ends):
            return None
        low, high = int(times[after - 1]), int(times[after])
        share = (offset - int(ends[after - 1])) / (int(ends[after]) - int(ends[after - 1]))
        return low + int(share * (high - low)), max(0, high - low)


@dataclass(frozen=True, slots=True)
class Logs:
    """The cluster's data that the analysis uses. ``now_us`` and ``moments`` are microseconds since 1970."""

    now_us: int
    moments: Array
    retention_ms: int = RETENTION_MS
    retention_is_known: bool = False
    by_partition: Mapping[TopicPartition, LogEnds] = field(default_factory=dict)


def look_up(
    admin: Admin,
    partitions: Iterable[TopicPartition],
    moments: Array,
    now_us: int,
    *,
    advance: Callable[[int], None] = lambda done: None,
) -> Logs:
    """Looks up the partitions' log end offsets at these moments, and the retention of offsets.

    ``moments`` are microseconds since 1970, ascending. ``advance`` is called with 1 after each moment. Partitions that
    no longer exist are left out.
    """
    retention_ms, is_known = retention(admin)
    existing = _existing(admin, partitions)
    if not existing:
        return Logs(now_us, moments, retention_ms, is_known)
    starts = {
        tp: listed_offset.offset for tp, listed_offset in admin.list_offsets(dict.fromkeys(existing, EARLIEST)).items()
    }
    listed = []
    for moment in moments.tolist():
        listed.append(admin.list_offsets(dict.fromkeys(existing, max(0, -(-moment // 1000)))))
        advance(1)
    # The log end offsets are read last, so that no offset that was looked up before is beyond them.
    ends = {
        tp: listed_offset.offset for tp, listed_offset in admin.list_offsets(dict.fromkeys(existing, LATEST)).items()
    }
    logs = {}
    for tp in existing:
        at = np.array([offsets[tp].offset for offsets in listed], np.int64)
        times = np.array([offsets[tp].timestamp_ms for offsets in listed], np.int64)
        found_us = np.where(at == NO_OFFSET, -1, times * 1000)
        known = np.where(at == NO_OFFSET, ends[tp], at)
        if starts[tp] > 0:
            known[(at == starts[tp]) | ((at == NO_OFFSET) & (starts[tp] == ends[tp]))] = -1
        logs[tp] = LogEnds(starts[tp], ends[tp], known, found_us)
    return Logs(now_us, moments, retention_ms, is_known, logs)


def _existing(admin: Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    wanted = set(partitions)
    topics = admin.describe_topics(sorted({tp.topic for tp in wanted}), missing_ok=True) if wanted else {}
    existing = {TopicPartition(name, one.partition) for name, topic in topics.items() for one in topic.partitions}
    return sorted(wanted & existing)


def retention(admin: Admin) -> tuple[int, bool]:
    """Returns a broker's offsets.retention.minutes in ms and True, or Kafka's default and False if it is unknown."""
    try:
        node = admin.describe_cluster().nodes[0]
        (entries,) = admin.describe_configs("broker", [str(node.node_id)]).values()
    except (KafkaError, IndexError) as error:
        if isinstance(error, KafkaError) and error.code not in LOOKUP_REFUSED:
            raise
        return RETENTION_MS, False
    minutes = next((entry.value for entry in entries if entry.name == "offsets.retention.minutes"), None)
    return (RETENTION_MS, False) if minutes is None else (int(minutes) * 60_000, True)


def record_times(config: ClientConfig, records: Sequence[PartitionOffset]) -> dict[PartitionOffset, int]:
    """Reads the timestamps of the records at these offsets, in microseconds, with one fetch for each record.

    If compaction removed a record, the timestamp is that of the next record. Records below the log start offset,
    offsets without a record so far, and records of deleted topics are left out.
    """

    def read(record: PartitionOffset) -> int | None:
        tp, offset = record
        reader = PartitionReader(config, tp, ("offset", "timestamp"))
        try:
            fetched = reader.fetch(offset, max_bytes=1, max_wait_ms=0)
        except (OffsetOutOfRange, UnknownTopic):
            return None
        for batch in fetched.record_batches:
            return int(batch.column("timestamp")[0].value)
        return None

    if not records:
        return {}
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        times = pool.map(read, records)
        return {record: time for record, time in zip(records, times, strict=True) if time is not None}


def ends_at(config: ClientConfig, wanted: Sequence[PartitionOffset]) -> dict[PartitionOffset, int]:
    """Looks up the log end offsets of partitions at times: ``wanted`` has pairs of a partition and milliseconds.

    Unknown ones are left out: the records of that time are deleted, or the topic is.
    """
    times: dict[TopicPartition, list[int]] = {}
    for tp, ms in wanted:
        times.setdefault(tp, []).append(ms)
    offsets: dict[PartitionOffset, int] = {}
    with Admin(config) as admin:
        existing = _existing(admin, times)
        if not existing:
            return offsets
        starts = admin.list_offsets(dict.fromkeys(existing, EARLIEST))
        for turn in range(max(len(times[tp]) for tp in existing)):
            asked = {tp: times[tp][turn] for tp in existing if turn < len(times[tp])}
            for tp, listed in admin.list_offsets(asked).items():
                offsets[tp, asked[tp]] = listed.offset
        # The log end offsets are read last, so that no offset that was looked up before is beyond them.
        ends = admin.list_offsets(dict.fromkeys(existing, LATEST))
    known = {key: ends[key[0]].offset if offset == NO_OFFSET else offset for key, offset in offsets.items()}
    return {(tp, ms): end for (tp, ms), end in known.items() if end > starts[tp].offset or starts[tp].offset == 0}
