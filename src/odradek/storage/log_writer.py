"""The write path of one log: appends, markers, leader epochs, new segments.

A leader's append assigns offsets and the leader epoch, and checks sequences. A follower's append keeps the offsets and
epochs that its leader has assigned (``storage/fetched_batches``). Both write with the same ``_write``.
"""

from __future__ import annotations

from collections.abc import Callable

from odradek.batches.control import encode_marker
from odradek.batches.header import Buffer, validate
from odradek.batches.steps import BatchSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH, EndTransactionMarker
from odradek.storage.appends import AppendInfo, AssignedBatches, Origin, assign_offsets
from odradek.storage.client_batch import Batches, Ready, check_client_batch
from odradek.storage.config import LogConfig
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.log_sync import LogSync
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.rebuild import EndedTransaction, note_batch
from odradek.storage.producers.snapshots import ProducerSnapshots
from odradek.storage.producers.verification import Guard
from odradek.storage.segments.segment import Segment
from odradek.storage.segments.segment_list import SegmentList


class LogWriter:
    """Writes one log. It has the offsets that a write changes or needs.

    ``end_offset``: the offset of the next record. ``high_watermark``: None if it is the log's end.
    """

    __slots__ = (
        "_disk", "_epochs", "_producers", "_segments", "_snapshots", "_sync", "config", "end_offset", "high_watermark",
        "log_start_offset",
    )  # fmt: skip

    def __init__(
        self,
        config: LogConfig,
        log_start_offset: int,
        *,
        segments: SegmentList,
        epochs: LeaderEpochs,
        producers: Producers,
        snapshots: ProducerSnapshots,
        disk: DiskState,
        sync: LogSync,
    ) -> None:
        self.config = config
        self.log_start_offset = log_start_offset
        self.end_offset = segments.active.next_offset
        self.high_watermark: int | None = None
        self._segments = segments
        self._epochs = epochs
        self._producers = producers
        self._snapshots = snapshots
        self._disk = disk
        self._sync = sync

    @property
    def readable_end(self) -> int:
        """The high watermark, as ``Log.high_watermark`` has it."""
        return self.end_offset if self.high_watermark is None else min(self.high_watermark, self.end_offset)

    # a leader's appends

    def begin_append(
        self, data: Buffer, now_ms: Callable[[], int], leader_epoch: int, origin: Origin, guard: Guard
    ) -> AppendInfo | BatchSteps[AppendInfo]:
        """Does what ``Log.begin_append`` says."""
        self._disk.check_online()
        config = self.config
        client = origin == "client"
        at_ms = now_ms()
        batches = validate(data, max_message_bytes=config.max_message_bytes, client=client)
        if client:
            ready = check_client_batch(data, batches, config, at_ms)
            if not isinstance(ready, tuple):
                return self._append_later(ready, now_ms, leader_epoch, guard)
            data, batches = ready
            if self._waits_for_states(batches):
                return self._append_after_rebuild(data, batches, now_ms, leader_epoch, guard)
        return self._append_checked(data, batches, at_ms, leader_epoch, client=client, guard=guard)

    def _waits_for_states(self, batches: Batches) -> bool:
        """Returns whether batches need the states of the producers, and these are being rebuilt."""
        return self._producers.rebuild is not None and any(header.producer_id >= 0 for _, header in batches)

    def _append_after_rebuild(
        self, data: Buffer, batches: Batches, now_ms: Callable[[], int], leader_epoch: int, guard: Guard
    ) -> BatchSteps[AppendInfo]:
        yield from self._snapshots.rest_of_rebuild()
        self._disk.check_online()
        return self._append_checked(data, batches, now_ms(), leader_epoch, client=True, guard=guard)

    def _append_later(
        self, check: BatchSteps[Ready], now_ms: Callable[[], int], leader_epoch: int, guard: Guard
    ) -> BatchSteps[AppendInfo]:
        data, batches = yield from check
        self._disk.check_online()
        return self._append_checked(data, batches, now_ms(), leader_epoch, client=True, guard=guard)

    def _append_checked(
        self, data: Buffer, batches: Batches, now_ms: int, leader_epoch: int, *, client: bool, guard: Guard
    ) -> AppendInfo:
        for _, header in batches:
            if header.producer_id >= 0:
                if self._producers.rebuild is not None:
                    self._snapshots.end_rebuild()
                seen = self._producers.find_duplicate(header) if client else None
                if seen is not None:
                    if self._sync.unflushed_records >= self.config.flush_messages:
                        self._sync.flush(self.end_offset)  # the first attempt may have failed at its sync
                    return AppendInfo(seen.base_offset, seen.last_offset, seen.timestamp, self.log_start_offset, True)
                if client and header.is_transactional and self.config.transaction_partition_verification_enable:
                    self._producers.check_verified(header.producer_id, header.producer_epoch, guard)
                self._producers.check(header, sequences=client)
        config = self.config
        append_time = now_ms if config.is_log_append_time else None
        first_offset = self.end_offset
        assigned = assign_offsets(
            data, batches, first_offset, leader_epoch=leader_epoch, log_append_time_ms=append_time
        )
        if (size := assigned.size) > config.segment_bytes:
            raise KafkaError(ErrorCode.record_list_too_large, f"{size} bytes; segment.bytes is {config.segment_bytes}")
        self._write(data, batches, assigned, now_ms, leader_epoch)
        last_offset = assigned.end_offset - 1
        return AppendInfo(first_offset, last_offset, -1 if append_time is None else append_time, self.log_start_offset)

    def append_marker(self, marker: EndTransactionMarker, now_ms: int, leader_epoch: int) -> AppendInfo:
        """Does what ``Log.append_marker`` says."""
        self._disk.check_online()
        self._snapshots.end_rebuild()
        self._producers.check_marker(marker)
        if not marker.commit:
            self._prepare_aborted_index()
        data = encode_marker(marker, now_ms)
        batches = validate(data, client=False)
        return self._append_checked(data, batches, now_ms, leader_epoch, client=False, guard=None)

    def _prepare_aborted_index(self) -> None:
        """Opens the index of aborted transactions before the write of a marker: otherwise its entry may be lost."""
        try:
            self._segments.active.aborted_index.open_for_append()
        except OSError as error:
            raise self._disk.fail("append", error) from error

    # a follower's appends

    def begin_append_fetched(
        self, data: Buffer, now_ms: Callable[[], int], leader_epoch: int
    ) -> BatchSteps[AppendInfo | None]:
        """Does what ``Log.begin_append_fetched`` says."""
        from odradek.storage.fetched_batches import check_beginning, check_fetched, group_size  # only for followers

        self._disk.check_online()
        batches = yield from check_fetched(data, self.end_offset, leader_epoch, self._epochs.latest)
        if not batches:
            return None
        if self._waits_for_states(batches):
            yield from self._snapshots.rest_of_rebuild()
        left = batches
        while left:
            self._disk.check_online()
            check_beginning(left, self.end_offset)  # the log may have changed between two steps
            active, segment_bytes = self._segments.active, self.config.segment_bytes
            count = group_size(left, segment_bytes - active.size, segment_bytes)
            self._write_fetched(data, left[:count], now_ms())
            left = left[count:]
            if left:
                yield None
        return AppendInfo(batches[0][1].base_offset, batches[-1][1].last_offset, -1, self.log_start_offset)

    def _write_fetched(self, data: Buffer, batches: Batches, now_ms: int) -> None:
        from odradek.storage.fetched_batches import as_fetched

        if self._producers.rebuild is not None and any(header.producer_id >= 0 for _, header in batches):
            self._snapshots.end_rebuild()
        if any(header.is_control for _, header in batches):
            self._prepare_aborted_index()
        self._write(data, batches, as_fetched(data, batches), now_ms, NO_EPOCH)
        try:  # after the write, so that no epoch begins behind the log's end
            for _, header in batches:
                self._epochs.assign(header.leader_epoch, header.base_offset)
        except OSError as error:
            raise self._disk.fail("append", error) from error

    # all appends

    def _write(self, data: Buffer, batches: Batches, assigned: AssignedBatches, now_ms: int, leader_epoch: int) -> None:
        """Writes the parts of ``assigned`` with one system call, and notes the batches in the states of the producers.

        ``leader_epoch`` begins with the first batch, unless it is -1. Raises KafkaError (KAFKA_STORAGE_ERROR).
        """
        parts, total, appended, end_offset, newest, has_producer = assigned
        disk, segments, sync = self._disk, self._segments, self._sync
        first_offset = appended[0].base_offset
        try:
            if disk.failed_bytes:
                segments.active.cut_torn_end()
            self._epochs.assign(leader_epoch, first_offset)
            if segments.active.must_roll(total, end_offset - 1, newest, now_ms):
                self.roll(now_ms, first_offset)
            segments.active.append(parts, appended)
        except OSError as error:
            raise disk.fail("append", error, total) from error
        if disk.failed_bytes and total >= disk.failed_bytes:
            disk.failed_bytes = 0
        self.end_offset = end_offset
        sync.was_written = True
        producers = self._producers
        for (pos, header), batch in zip(batches, appended, strict=True) if has_producer else ():
            if header.producer_id >= 0:
                base, time = batch.base_offset, batch.max_timestamp
                ended = note_batch(producers, header, data, pos, base_offset=base, max_timestamp=time)
                if ended is not None:
                    self._note_end(ended)
        producers.end_offset = end_offset
        sync.unflushed_records += end_offset - first_offset
        if sync.unflushed_records >= self.config.flush_messages:
            sync.flush(end_offset)

    def _note_end(self, ended: EndedTransaction) -> None:
        """Adds an aborted transaction to the index, and keeps the transaction unstable until it is replicated."""
        if ended.is_aborted:
            try:
                self._segments.add_aborted(ended.entry)
            except OSError as error:
                raise self._disk.fail("append to the transaction index", error) from error
        self.await_replicas(ended)

    def await_replicas(self, ended: EndedTransaction) -> None:
        """If the high watermark is set, the transaction stays unstable until the high watermark has passed its
        marker."""
        if self.high_watermark is not None and ended.entry.last_offset >= self.high_watermark:
            self._producers.await_replicas(ended.entry.first_offset, ended.entry.last_offset)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Starts a leader epoch at the log's end."""
        self._disk.check_online()
        try:
            self._epochs.assign(leader_epoch, self.end_offset)
        except OSError as error:
            raise self._disk.fail("assign epoch", error) from error

    # segments

    def roll(self, now_ms: int, base_offset: int) -> None:
        """Closes the active segment and starts a new one at ``base_offset``, the log's end or later.

        An active segment without records is replaced, unless it begins there already.
        """
        disk, segments, active = self._disk, self._segments, self._segments.active
        disk.check_online()
        is_empty = active.size == 0
        if is_empty and active.base_offset == base_offset:
            return
        try:
            if disk.failed_bytes:
                active.cut_torn_end()
            if not is_empty:
                active.seal()
                if self._sync.recovery_point >= self.end_offset:
                    active.sync()  # its records are, but not its indexes, and a start trusts those of closed segments
            fresh = Segment.create(active.directory, base_offset, self.config, active.files, now_ms)
            if is_empty:
                active.remove()
        except OSError as error:
            raise disk.fail("roll", error) from error
        segments.replace(len(segments) - is_empty, len(segments), fresh)
        self._producers.end_offset = self.end_offset
        self._snapshots.save()
        try:
            self._sync.flush_later(base_offset)
        except KafkaError:
            if disk.offline is not None:
                raise
