"""The markers that end a transaction in its partitions: their writer, and those of one decision that are missing.

A partition of ``__consumer_offsets`` gets its marker through the group coordinator: only the group coordinator writes
that log, and it has to make the offsets of the transaction visible. A partition that does not exist needs no marker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker, PartitionKey
from odradek.core.pace import sorted_in_steps
from odradek.transactions.messages import Markers

if TYPE_CHECKING:
    from odradek.broker.coordinators.remote_calls import WriteMarkers
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.partition import Partition

log = logging.getLogger("odradek.broker")

RETRY_MS = 100
"""The time before the second attempt to write a marker. It doubles with each attempt that writes none."""
MAX_RETRY_MS = 2_000
REFUSED_RETRY_MS = 10_000
"""The time before the next attempt after a refusal. Until the transaction is overdue, only a deletion of the topic or
the expiry of the producer changes a refusal."""
REFUSALS = (ErrorCode.invalid_producer_epoch, ErrorCode.transaction_coordinator_fenced)
"""Refusals of a marker: its epoch of the producer or of the coordinator is too old for the partition."""
_REMEDIES = {
    ErrorCode.invalid_producer_epoch: "after transaction.max.timeout.ms the id is complete if its transaction is not "
    "open in the partition; otherwise abort that transaction with `odradek transactions abort`",
    ErrorCode.transaction_coordinator_fenced: "after transaction.max.timeout.ms the partition gets the marker if the "
    "transaction is open there, and the id is complete",
}
_NOT_LOADED = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


class MarkerWriter:
    """The ``WriteMarkers`` for the logs of this broker: at a lone broker for all. ``write_offsets_marker`` writes a
    marker into a partition of ``__consumer_offsets``.

    ``load_of_groups`` returns a promise that is resolved when such a partition is loaded, or None if no load is in
    progress.
    """

    retry_ms = RETRY_MS
    refused_retry_ms = REFUSED_RETRY_MS
    reply_ms: int | None = None

    def __init__(
        self,
        catalog: CatalogView,
        partition: Callable[[str, int], Partition | None],
        write_offsets_marker: Callable[[int, EndTransactionMarker], Deferred[ErrorCode]],
        load_of_groups: Callable[[int], Deferred[None] | None],
    ) -> None:
        self._catalog = catalog
        self._partition = partition
        self._write_offsets_marker = write_offsets_marker
        self._load_of_groups = load_of_groups

    def exists(self, partition: PartitionKey) -> bool:
        topic, index = partition
        known = self._catalog.topic(topic)
        return known is not None and index < known.partition_count

    def load_end(self, partition: PartitionKey) -> Deferred[None] | None:
        """Returns a promise that is resolved when the partition is loaded, or None if the marker need not wait."""
        topic, index = partition
        return self._load_of_groups(index) if topic == OFFSETS_TOPIC else None

    def is_offline(self, partition: PartitionKey, code: ErrorCode) -> bool:
        """Whether the partition stays without its marker until somebody acts."""
        if partition[0] == OFFSETS_TOPIC and code is ErrorCode.not_leader_or_follower:  # its log cannot be read
            return True
        return code in (ErrorCode.kafka_storage_error, ErrorCode.unknown_topic_or_partition)

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        """Writes a marker. The promise holds NONE once the high watermark has passed the marker, or an error code."""
        topic, index = partition
        if topic == OFFSETS_TOPIC:
            return self._write_offsets_marker(index, marker).map(_group_error)
        log = self._partition(topic, index)
        if log is None:
            return Deferred.of(ErrorCode.unknown_topic_or_partition)
        try:
            info = log.append_marker(marker)
        except KafkaError as error:
            return Deferred.of(error.code)
        except StorageError:
            return Deferred.of(ErrorCode.kafka_storage_error)
        written: Deferred[ErrorCode] = Deferred()
        log.wait_for(info.last_offset + 1, written.resolve)
        return written


def _group_error(code: ErrorCode) -> ErrorCode:
    return ErrorCode.not_leader_or_follower if code in _NOT_LOADED else code


class OverdueMarkers(Protocol):
    """What happens to a partition that has refused the marker of an overdue transaction."""

    def needs_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> bool:
        """Returns whether the transaction may be open in the partition. True for a missing or offline partition."""

    def marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> EndTransactionMarker:
        """Returns the marker of the next attempt."""


class PendingMarkers:
    """The markers of one decision. ``left``: the partitions without their marker. Each marker ends by itself, and one
    that has failed is tried again while others are on their way.

    ``is_delayed``: the coordinator knows that markers are late. ``is_noted``: the runtime looks at the failed ones at
    the end of this tick.

    A partition that knows newer epochs refuses this marker, and the transaction stays prepared. In Kafka it stays so
    for ever. From ``overdue_ms`` on, ``overdue`` may decide otherwise; without it, as in Kafka.
    """

    is_delayed = is_noted = False
    _is_cancelled = False
    _is_writing = False
    """Whether an attempt still sends markers."""
    _due_ms: int | None = None
    """The time of the next attempt."""
    _is_due_for_refused = False
    _refused_again_ms = 0
    _attempts = 0

    def __init__(
        self,
        writer: WriteMarkers,
        markers: Markers,
        coordinator_epoch: int,
        overdue_ms: int,
        overdue: OverdueMarkers | None,
    ) -> None:
        self.markers = markers
        self.left = set(markers.partitions)
        self._refused: set[PartitionKey] = set()
        self._offline: set[PartitionKey] = set()
        self._on_the_way: set[PartitionKey] = set()
        """The partitions whose marker has no answer yet."""
        self._overdue_ms = overdue_ms
        self._overdue = overdue
        self._writer = writer
        self._left_before = len(self.left)
        producer_id, epoch = markers.producer
        self._marker = EndTransactionMarker(producer_id, epoch, coordinator_epoch, markers.commit, markers.version)

    def begin_term(self, coordinator_epoch: int) -> None:
        """The next markers get the epoch of a later term of the same coordinator."""
        self._marker = self._marker._replace(coordinator_epoch=coordinator_epoch)

    def cancel(self) -> None:
        """Ends all attempts: the shard was unloaded, or has announced the decision again."""
        self._is_cancelled = True

    def next_attempt_ms(self, now_ms: int) -> int | None:
        """Returns the time of an attempt for the partitions that have none on its way; None if there are none, or the
        attempt is due already. For refused ones alone it is a late one, which an earlier one replaces."""
        failed = self.left - self._on_the_way
        is_for_refused = failed <= self._refused
        if not failed or (self._due_ms is not None and (is_for_refused or not self._is_due_for_refused)):
            return None
        self._is_due_for_refused = is_for_refused
        self._due_ms = now_ms + (self._writer.refused_retry_ms if is_for_refused else self._pause_ms())
        return self._due_ms

    def is_due(self, at_ms: int) -> bool:
        """Whether the next attempt is that of this time."""
        return self._due_ms == at_ms

    def _pause_ms(self) -> int:
        """Returns the time until the next attempt. It grows, because a partition may be offline for days."""
        if len(self.left) < self._left_before:
            self._attempts, self._left_before = 0, len(self.left)
        delay_ms = min(self._writer.retry_ms << self._attempts, MAX_RETRY_MS)
        if delay_ms < MAX_RETRY_MS:
            self._attempts += 1
        return delay_ms

    def are_held(self) -> bool:
        """Whether each partition of ``left`` is offline or has refused its marker, so that no short wait helps."""
        if not self.left <= self._refused | self._offline:
            return False
        # A group coordinator that has failed and loads again gives the same error as one that cannot read its log.
        return all(self._writer.load_end(partition) is None for partition in self._offline)

    def write(self, now_ms: int, on_end: Callable[[], None]) -> Generator[None, None, None]:
        """Writes the missing markers in steps. Waits for partitions that load.

        Calls ``on_end`` when no marker is on its way any more. It also calls it after the steps if a marker has failed,
        and at each later failure. While an earlier attempt still sends, does nothing: that one calls ``on_end``."""
        self._due_ms = None
        if self._is_writing:
            return
        self._is_writing = True
        on_the_way = self._on_the_way
        missing = self.left - self._skipped(now_ms) - on_the_way

        def note(partition: PartitionKey, code: ErrorCode) -> None:
            on_the_way.discard(partition)
            self._note(partition, code)
            if not self._is_writing and (code is not ErrorCode.none or not on_the_way):
                on_end()

        def write_marker(partition: PartitionKey, _: None = None) -> None:
            if not self._is_cancelled:
                marker = self._marker_for(now_ms, partition)
                self._writer.write_marker(partition, marker).then(partial(note, partition))

        for partition in (yield from sorted_in_steps(missing)):
            if self._is_cancelled:
                return
            if self._writer.exists(partition) and not self._is_ended(now_ms, partition):
                on_the_way.add(partition)
                load_end = self._writer.load_end(partition)
                if load_end is None:
                    write_marker(partition)
                else:
                    load_end.then(partial(write_marker, partition))
            else:
                self.left.discard(partition)
            yield
        self._is_writing = False
        if not on_the_way or len(on_the_way) < len(self.left):
            on_end()

    def _skipped(self, now_ms: int) -> frozenset[PartitionKey]:
        """Returns the refused partitions whose next attempt is later."""
        if now_ms < self._refused_again_ms:
            return frozenset(self._refused)
        self._refused_again_ms = now_ms + self._writer.refused_retry_ms
        return frozenset()

    def _overdue_of(self, now_ms: int, partition: PartitionKey) -> OverdueMarkers | None:
        """Returns the rules for a partition that has refused the marker of an overdue transaction, otherwise None."""
        return self._overdue if partition in self._refused and now_ms >= self._overdue_ms else None

    def _is_ended(self, now_ms: int, partition: PartitionKey) -> bool:
        overdue = self._overdue_of(now_ms, partition)
        return overdue is not None and not overdue.needs_marker(partition, self._marker)

    def _marker_for(self, now_ms: int, partition: PartitionKey) -> EndTransactionMarker:
        overdue = self._overdue_of(now_ms, partition)
        return self._marker if overdue is None else overdue.marker(partition, self._marker)

    def _note(self, partition: PartitionKey, code: ErrorCode) -> None:
        if self._writer.is_offline(partition, code):
            self._offline.add(partition)
        else:
            self._offline.discard(partition)
        if code is ErrorCode.none:
            self.left.discard(partition)
        elif code in REFUSALS and partition not in self._refused and not self._is_cancelled:
            self._refused.add(partition)
            producer_id, epoch = self.markers.producer
            log.error(
                "%s-%d refuses the marker of producer %d with epoch %d: %s; transactional id %r stays prepared (%s)",
                *partition, producer_id, epoch, code.name, self.markers.transactional_id, _REMEDIES[code],
            )  # fmt: skip
