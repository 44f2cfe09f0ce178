"""The offsets of open transactions: they are pending until the marker of their producer's transaction.

Rules
* The commit of a transaction makes the producer's pending offsets committed offsets. An abort drops them.
* The later record in the log wins, as in Kafka and in a compaction. A later plain commit of the partition overtakes a
  pending offset. A commit of another transaction with a later record for the partition overtakes it, too. An
  overtaken offset stays pending, because readers still wait for its transaction, but its value is dropped. So
  committed offsets need not keep the offsets of their records.
* A tombstone drops the pending offsets of its partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from odradek.codecs.offsets_topic import OffsetKey, StoredOffset

COMMITS_AT_ONCE = 500


class PendingOffset(NamedTuple):
    """A pending offset and the offset of its record in the log."""

    record_offset: int
    stored: StoredOffset


class NewlyCommittedOffsets(NamedTuple):
    """Offsets of one topic that are committed offsets now, because their transaction has been committed."""

    group_id: str
    topic: str
    offsets: dict[int, StoredOffset]


_NO_TOPICS: Mapping[str, Mapping[int, set[int]]] = {}
_NO_PARTITIONS: Mapping[int, set[int]] = {}


class PendingOffsets:
    """The pending offsets of one shard. ``open`` is empty if there are none; callers test this first."""

    __slots__ = ("_by_producer", "open")

    def __init__(self) -> None:
        self.open: dict[str, dict[str, dict[int, set[int]]]] = {}
        """Group id to topic to partition to the ids of the producers with a pending offset for the partition."""
        # Producer id to (group id, topic) to partition to its pending offset. None: the pending offset is overtaken.
        self._by_producer: dict[int, dict[tuple[str, str], dict[int, PendingOffset | None]]] = {}

    # --- reads ------------------------------------------------------------------------------------------------

    def topics(self, group_id: str) -> Mapping[str, Mapping[int, set[int]]]:
        """Returns a map from each topic of the group with pending offsets to a map whose keys are the partitions."""
        return self.open.get(group_id, _NO_TOPICS)

    def partitions(self, group_id: str, topic: str) -> Mapping[int, set[int]]:
        """Returns a map whose keys are the partitions of the topic with pending offsets."""
        return self.topics(group_id).get(topic, _NO_PARTITIONS)

    def state(self) -> dict[int, dict[OffsetKey, PendingOffset | None]]:
        """Returns all pending offsets by producer id; None for an overtaken one."""
        return {
            producer_id: {
                OffsetKey(group_id, topic, partition): pending
                for (group_id, topic), by_partition in by_topic.items()
                for partition, pending in by_partition.items()
            }
            for producer_id, by_topic in self._by_producer.items()
        }

    # --- changes ----------------------------------------------------------------------------------------------

    def add(self, record_offset: int, producer_id: int, key: OffsetKey, stored: StoredOffset) -> None:
        """Adds the offset of a transactional record. It replaces an earlier pending offset of the same producer."""
        group_id, topic, partition = key
        by_topic = self._by_producer.setdefault(producer_id, {})
        by_topic.setdefault((group_id, topic), {})[partition] = PendingOffset(record_offset, stored)
        self.open.setdefault(group_id, {}).setdefault(topic, {}).setdefault(partition, set()).add(producer_id)

    def overtake(self, group_id: str, topic: str, partitions: Iterable[int]) -> None:
        """Drops the values of these partitions' pending offsets: a later record has committed other offsets."""
        known = self.partitions(group_id, topic)
        for partition in partitions if known else ():
            for producer_id in known.get(partition, ()):
                self._by_producer[producer_id][group_id, topic][partition] = None

    def remove(self, group_id: str, topic: str, partitions: Iterable[int]) -> None:
        """Drops the pending offsets of these partitions, because of a tombstone."""
        known = self.partitions(group_id, topic)
        for partition in partitions if known else ():
            for producer_id in tuple(known.get(partition, ())):
                self._close(group_id, topic, partition, producer_id)
                by_topic = self._by_producer[producer_id]
                by_partition = by_topic[group_id, topic]
                del by_partition[partition]
                if not by_partition:
                    del by_topic[group_id, topic]
                if not by_topic:
                    del self._by_producer[producer_id]

    def end(self, producer_id: int, *, commit: bool) -> Iterator[NewlyCommittedOffsets]:
        """Ends a transaction and yields the offsets that it commits, some partitions at a time.

        After an abort the ``offsets`` of each yielded object are empty.
        """
        for (group_id, topic), by_partition in self._by_producer.pop(producer_id, {}).items():
            rows = list(by_partition.items())
            for first in range(0, len(rows), COMMITS_AT_ONCE):
                kept: dict[int, StoredOffset] = {}
                for partition, pending in rows[first : first + COMMITS_AT_ONCE]:
                    self._close(group_id, topic, partition, producer_id)
                    if commit and pending is not None:
                        kept[partition] = pending.stored
                        self._overtake_earlier(group_id, topic, partition, pending.record_offset)
                yield NewlyCommittedOffsets(group_id, topic, kept)

    def _overtake_earlier(self, group_id: str, topic: str, partition: int, record_offset: int) -> None:
        for producer_id in self.partitions(group_id, topic).get(partition, ()):
            by_partition = self._by_producer[producer_id][group_id, topic]
            other = by_partition[partition]
            if other is not None and other.record_offset < record_offset:
                by_partition[partition] = None

    def _close(self, group_id: str, topic: str, partition: int, producer_id: int) -> None:
        by_topic = self.open[group_id]
        by_partition = by_topic[topic]
        producer_ids = by_partition[partition]
        producer_ids.discard(producer_id)
        if not producer_ids:
            del by_partition[partition]
        if not by_partition:
            del by_topic[topic]
        if not by_topic:
            del self.open[group_id]
