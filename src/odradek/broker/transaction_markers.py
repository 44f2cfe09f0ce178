"""Writes the markers that end a transaction in its partitions.

A partition of ``__consumer_offsets`` gets its marker through the group coordinator: only the group coordinator writes
that log, and it has to make the offsets of the transaction visible. A partition that does not exist needs no marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC
from odradek.core.pace import sorted_in_steps
from odradek.core.transaction_marker import EndTransactionMarker
from odradek.transactions.messages import Markers, Partition

if TYPE_CHECKING:
    from odradek.broker.catalog_image import CatalogImage
    from odradek.broker.partition import Partition as LocalPartition

log = logging.getLogger("odradek.broker")

RETRY_MS = 100
"""The time before the second attempt to write a marker. It doubles with each attempt that writes none."""
MAX_RETRY_MS = 10_000
REFUSED_RETRY_MS = 10_000
"""The time before the next attempt after a refusal. Only a deletion of the topic or the expiry of the producer changes
a refusal."""
REFUSALS = (ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
"""Refusals of a marker: the partition has one with a newer epoch of the producer or of the coordinator."""
_NOT_LOADED = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


class MarkerWriter:
    """Writes single markers. ``write_offsets_marker`` writes one into a partition of ``__consumer_offsets``."""

    retry_ms = RETRY_MS
    refused_retry_ms = REFUSED_RETRY_MS

    def __init__(
        self,
        catalog: CatalogImage,
        partition: Callable[[str, int], LocalPartition | None],
        write_offsets_marker: Callable[[int, EndTransactionMarker], Deferred[ErrorCode]],
    ) -> None:
        self._catalog = catalog
        self._partition = partition
        self._write_offsets_marker = write_offsets_marker

    def coordinator_epoch(self, index: int) -> int:
        """Returns the leader epoch of a partition of ``__transaction_state``."""
        partition = self._partition(TRANSACTION_TOPIC, index)
        return -1 if partition is None else partition.leader_epoch

    def exists(self, partition: Partition) -> bool:
        topic, index = partition
        found = self._catalog.topic(topic)
        return found is not None and index < found.partition_count

    def needs_marker(self, partition: Partition, marker: EndTransactionMarker) -> bool:
        """Returns whether the transaction may still be open in the partition. An offline one may need its marker."""
        found = self._partition(*partition)
        if found is None or found.log.offline is not None:
            return True
        state = found.log.producers.get(marker.producer_id)
        return state is not None and state.transaction_start >= 0 and state.epoch <= marker.producer_epoch

    def write_marker(self, partition: Partition, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        """Writes a marker. The promise is resolved when the high watermark has passed it."""
        topic, index = partition
        if topic == OFFSETS_TOPIC:
            return self._write_offsets_marker(index, marker).map(_group_error)
        found = self._partition(topic, index)
        if found is None:
            return Deferred.of(ErrorCode.unknown_topic_or_partition)
        try:
            info = found.append_marker(marker)
        except KafkaError as error:
            return Deferred.of(error.code)
        except StorageError:
            return Deferred.of(ErrorCode.kafka_storage_error)
        written: Deferred[ErrorCode] = Deferred()
        found.wait_for(info.last_offset + 1, written.resolve)
        return written


def _group_error(code: ErrorCode) -> ErrorCode:
    return ErrorCode.not_leader_or_follower if code in _NOT_LOADED else code


class PendingMarkers:
    """The markers of one decision. ``left``: the partitions without their marker.

    ``is_delayed``: the coordinator knows that at least one marker is late. A partition with a newer marker refuses this
    one, and the transaction stays prepared, as in Kafka. In Kafka it stays prepared for ever. Here the partition counts
    as done from ``patience_end_ms`` on if the transaction is not open there.
    """

    def __init__(self, writer: MarkerWriter, markers: Markers, coordinator_epoch: int, patience_end_ms: int) -> None:
        self.markers = markers
        self.left = set(markers.partitions)
        self.is_delayed = False
        self._refused: set[Partition] = set()
        self._refused_again_ms = 0
        self._patience_end_ms = patience_end_ms
        self._writer = writer
        self._attempts = 0
        self._left_before = len(self.left)
        producer_id, epoch = markers.producer
        self._marker = EndTransactionMarker(producer_id, epoch, coordinator_epoch, markers.commit, markers.version)

    def retry_ms(self) -> int:
        """Returns the time until the next attempt. It grows, because a partition may be offline for days."""
        if self.left <= self._refused:
            return self._writer.refused_retry_ms
        if len(self.left) < self._left_before:
            self._attempts, self._left_before = 0, len(self.left)
        delay_ms = min(self._writer.retry_ms << self._attempts, MAX_RETRY_MS)
        if delay_ms < MAX_RETRY_MS:
            self._attempts += 1
        return delay_ms

    def write(self, now_ms: int, on_end: Callable[[], None]) -> Generator[None, None, None]:
        """Writes the missing markers in steps, and then calls ``on_end``."""
        waiting = 1  # for the end of this generator
        skipped = self._skipped(now_ms)

        def count_down() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                on_end()

        def note(partition: Partition, code: ErrorCode) -> None:
            self._note(partition, code)
            count_down()

        for partition in (yield from sorted_in_steps(self.left - skipped)):
            if self._writer.exists(partition) and not self._is_ended(now_ms, partition):
                waiting += 1
                self._writer.write_marker(partition, self._marker).then(partial(note, partition))
            else:
                self.left.discard(partition)
            yield
        count_down()

    def _skipped(self, now_ms: int) -> frozenset[Partition]:
        """Returns the refused partitions whose next attempt is later."""
        if now_ms < self._refused_again_ms:
            return frozenset(self._refused)
        self._refused_again_ms = now_ms + self._writer.refused_retry_ms
        return frozenset()

    def _is_ended(self, now_ms: int, partition: Partition) -> bool:
        if partition not in self._refused or now_ms < self._patience_end_ms:
            return False
        return not self._writer.needs_marker(partition, self._marker)

    def _note(self, partition: Partition, code: ErrorCode) -> None:
        if code is ErrorCode.none:
            self.left.discard(partition)
        elif code in REFUSALS and partition not in self._refused:
            self._refused.add(partition)
            producer_id, epoch = self.markers.producer
            log.error(
                "%s-%d refuses the marker of producer %d with epoch %d: %s; transactional id %r stays prepared (it is "
                "complete after transaction.max.timeout.ms if its transaction is not open there; otherwise abort it "
                "there with a larger --coordinator-epoch)",
                *partition, producer_id, epoch, code.name, self.markers.transactional_id,
            )  # fmt: skip
