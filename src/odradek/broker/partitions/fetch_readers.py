"""The readers of fetches: how far each may read, which new bytes end its wait, and what its fetch says of its own log.

A consumer reads up to the high watermark, and with read_committed up to the last stable offset. A follower reads up to
the log end. As in Kafka (``Partition.fetchRecords``), its fetch is refused if its broker has no replica of the
partition, or if it is that of an earlier incarnation of the broker; otherwise the partition notes how far the follower
has come.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

from odradek.broker.partitions.purgatory import Wake
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH
from odradek.storage.segments.slice import UncommittedSlice
from odradek.wire.produce_fetch_replies import FetchedPartition

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.partitions.fetch_sessions import RequestedPartition
    from odradek.broker.partitions.partition import Partition
    from odradek.core.ids import FetchingReplica
    from odradek.storage.log import Log
    from odradek.storage.segments.slice import Slice

    # For type checks only: at run time a Protocol would occupy kilobytes.

    PartitionRead = tuple[FetchedPartition, Slice | None, bool]
    """The row of the reply, whose records are not set yet, and their slice. The last element: whether they are of a
    segment before the one with the reader's bound, so that the reply does not wait."""

    class Reader(Protocol):
        """Who fetches. ``awaits``: the bytes that end its wait.

        ``has_moved``: a read has moved a high watermark, so coordinators may have appended meanwhile."""

        awaits: Wake
        is_follower: ClassVar[bool]
        has_moved: bool

        def bound(self, log: Log) -> int:
            """The offset up to which it may read."""

        def read(
            self, partition: Partition, asked: RequestedPartition, max_bytes: int, *, min_one: bool, is_first: bool
        ) -> PartitionRead:
            """Reads one partition. ``is_first``: not a second time, after a wait. Raises KafkaError."""


class ConsumerReader:
    """A consumer: it reads up to the high watermark. Quotas limit it.

    ``is_committed``: it reads up to the last stable offset, and gets the aborted transactions.
    """

    is_follower: ClassVar[bool] = False
    has_moved = False

    def __init__(self, *, is_committed: bool) -> None:
        self._is_committed = is_committed
        self.awaits = Wake.STABLE_OFFSET if is_committed else Wake.HIGH_WATERMARK

    def bound(self, log: Log) -> int:
        return log.last_stable_offset if self._is_committed else log.high_watermark

    def read(
        self, partition: Partition, asked: RequestedPartition, max_bytes: int, *, min_one: bool, is_first: bool
    ) -> PartitionRead:
        partition.check_epoch(max(asked.current_leader_epoch, NO_EPOCH))  # any negative epoch means "no check"
        log = partition.log
        marks = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        is_committed, offset = self._is_committed, asked.fetch_offset
        aborted: Sequence[tuple[int, int]] | None = () if is_committed else None
        if asked.last_fetched_epoch >= 0 and (diverging := _divergence(log, asked)) is not None:
            return FetchedPartition(asked.partition, 0, *marks, aborted, diverging=diverging), None, False
        bound = marks[1] if is_committed else marks[0]
        records = log.read(offset, max_bytes, max_offset=bound, min_one=min_one)
        if is_committed and records.size and log.segment_list.has_aborted:
            aborted = _aborted(log, offset, records)
        row = FetchedPartition(asked.partition, 0, *marks, aborted, size=records.size)
        return row, records, offset < (log.stable_base_offset if is_committed else log.active.base_offset)


class RackReader:
    """A consumer that says its rack (KIP-392): a leader names a follower there, and returns no records.

    As in Kafka's RackAwareReplicaSelector. ``broker_ids``: those in the rack that the consumer can reach. ``reader``:
    of partitions without such a follower.
    """

    is_follower: ClassVar[bool] = False
    has_moved = False

    def __init__(self, broker_ids: Collection[int], reader: ConsumerReader) -> None:
        self._broker_ids, self._reader = broker_ids, reader
        self.awaits, self.bound = reader.awaits, reader.bound

    def read(
        self, partition: Partition, asked: RequestedPartition, max_bytes: int, *, min_one: bool, is_first: bool
    ) -> PartitionRead:
        nearest = partition.nearest_replica(self._broker_ids, asked.fetch_offset)
        if nearest is None:
            return self._reader.read(partition, asked, max_bytes, min_one=min_one, is_first=is_first)
        partition.check_epoch(max(asked.current_leader_epoch, NO_EPOCH))
        log = partition.log
        marks = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        return FetchedPartition(asked.partition, 0, *marks, preferred_read_replica=nearest), None, False


class FollowerReader:
    """A broker that follows partitions: it reads up to the log end, in any isolation. No quota of clients limits it.

    ``now_ms``: the time of the fetch by a clock that never jumps.
    """

    awaits = Wake.LOG_END
    is_follower: ClassVar[bool] = True

    def __init__(self, replica: FetchingReplica, now_ms: int) -> None:
        self.replica = replica
        self.has_moved = False
        self._now_ms = now_ms

    def bound(self, log: Log) -> int:
        return log.log_end_offset

    def read(
        self, partition: Partition, asked: RequestedPartition, max_bytes: int, *, min_one: bool, is_first: bool
    ) -> PartitionRead:
        partition.check_epoch(max(asked.current_leader_epoch, NO_EPOCH))
        partition.check_follower(self.replica.broker_id, asked.current_leader_epoch)
        log = partition.log
        marks = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
        if asked.last_fetched_epoch >= 0 and (diverging := _divergence(log, asked)) is not None:
            return FetchedPartition(asked.partition, 0, *marks, diverging=diverging), None, False
        records = _read_to_end(log, asked.fetch_offset, max_bytes, min_one=min_one)
        if is_first:
            partition.note_fetch(self.replica, asked.fetch_offset, asked.follower_log_start, self._now_ms)
            self.has_moved |= log.high_watermark != marks[0]
        row = FetchedPartition(asked.partition, 0, *marks, size=records.size)
        return row, records, asked.fetch_offset < log.active.base_offset


def _read_to_end(log: Log, offset: int, max_bytes: int, *, min_one: bool) -> Slice:
    """Reads up to the log end. Only records below the high watermark may be sent from the file: most of those that an
    empty replica needs."""
    records = log.read(offset, max_bytes, max_offset=log.log_end_offset, min_one=min_one)
    if records.size and offset < log.high_watermark:
        committed = log.read(offset, max_bytes, max_offset=log.high_watermark, min_one=min_one)
        if committed.size == records.size:
            return records
    return UncommittedSlice.of(records)


CONSUMER, COMMITTED = ConsumerReader(is_committed=False), ConsumerReader(is_committed=True)


def _divergence(log: Log, asked: RequestedPartition) -> tuple[int, int] | None:
    """Returns where the reader's log diverges from this one, as (epoch, end offset). Raises KafkaError."""
    epoch, end = log.epoch_end_offset(asked.last_fetched_epoch)
    if end < 0:
        raise KafkaError(ErrorCode.offset_out_of_range, "the partition has no offset for this leader epoch")
    if asked.fetch_offset < log.log_start_offset:
        text = f"offset {asked.fetch_offset} is before the log start offset {log.log_start_offset}"
        raise KafkaError(ErrorCode.offset_out_of_range, text)
    if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
        return epoch, end
    return None


def _aborted(log: Log, offset: int, records: Slice) -> Sequence[tuple[int, int]]:
    """Returns the aborted transactions of records. Raises KafkaError."""
    try:
        return log.segment_list.aborted_for(offset, records)
    except OSError as error:
        records.report_failure(error)
        raise KafkaError(ErrorCode.kafka_storage_error, f"an index of {log.path.name} cannot be read") from error
