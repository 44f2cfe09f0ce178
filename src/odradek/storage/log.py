"""The log of one partition in Kafka's segments: append, read, search, retention, truncation, flush.

Offsets:
* ``log_start_offset``: the first offset that can be read; retention and DeleteRecords raise it;
* ``log_end_offset``: the offset of the next record;
* ``high_watermark``: the end for readers; on a single broker it is the log end offset;
* ``last_stable_offset``: the end for read_committed readers;
* ``recovery_point``: all records below it are synced to the disk.

``append`` returns after one ``write``. The page cache survives kill -9; a sync protects only from a power loss
(``flush.messages``, ``flush.ms``, and the close of a segment). A failed read or write raises KAFKA_STORAGE_ERROR.
After a full disk and other passing errors the log is as before the write. After any other failed write, or a failed
sync, it is offline (``storage/disk/write_failures``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path

from odradek.batches.control import encode_marker
from odradek.batches.header import BatchHeader, Buffer, validate
from odradek.batches.search import RecordMatch
from odradek.batches.steps import BatchSteps, finish
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH
from odradek.core.transaction_marker import EndTransactionMarker
from odradek.storage.appends import AppendInfo, Origin, assign_offsets
from odradek.storage.client_batch import Batches, Ready, check_client_batch, refused_records
from odradek.storage.config import LogConfig
from odradek.storage.disk.checkpoints import sync_new_partition
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.rebuild import EndedTransaction, note_batch
from odradek.storage.producers.snapshots import ProducerSnapshots
from odradek.storage.producers.verification import Guard
from odradek.storage.recovery.evidence import Witnesses
from odradek.storage.recovery.recovery import LoadedLog, begin, load
from odradek.storage.retention import Rule, count_due, rules
from odradek.storage.segment_swap import discard_cleaned, remove_files, swap
from odradek.storage.segments.index import IndexCorrupt
from odradek.storage.segments.segment import FoundOffset, Segment
from odradek.storage.segments.segment_list import SegmentList
from odradek.storage.segments.slice import Slice, read_slice
from odradek.storage.segments.time_search import NOTHING_FOUND, LastFound, first_at_least, greatest

_OS_FILES = OsFiles()
_LONGEST_PROBE = 1 << 20


class Log:
    """The log of one partition. It is not thread-safe. ``Log.open`` makes it.

    ``defer_flush`` gets the sync of a closed segment and may run it later. Without it, ``roll`` syncs.

    ``defer_removal`` gets the removal of files that are no longer part of the log, and its delay in ms
    (``file.delete.delay.ms``). Their names end in ``.deleted`` until then. Without it they are removed at once.

    ``was_cut``: the recovery removed bytes, or records are lost. ``began_epoch``: the epoch of ``open`` is new here.

    ``cleaned_offset``: the end of the last cleaning; None before the first. ``is_being_cleaned`` suspends retention.
    """

    __slots__ = (
        "__weakref__", "_changes", "_cut_batch", "_end_offset", "_files", "_flushed_ms", "_high_watermark",
        "_synced_base", "_unflushed_records", "_was_written", "began_epoch", "cleaned_offset", "config", "defer_flush",
        "defer_removal", "disk", "epochs", "is_being_cleaned", "last_found", "log_start_offset", "path",
        "producer_snapshots", "producers", "recovery_point", "segment_list", "was_cut",
    )  # fmt: skip

    def __init__(self, path: Path, config: LogConfig, files: Files, loaded: LoadedLog, now_ms: int) -> None:
        self.path = path
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self._cut_batch = -1, -1  # a log start offset and the base offset of its batch; -1 until they are needed
        self.recovery_point = loaded.recovery_point
        self.was_cut = loaded.was_cut
        self.began_epoch = loaded.began_epoch
        self.defer_flush: Callable[[Callable[[], None]], None] | None = None
        self.defer_removal: Callable[[int, Callable[[], None]], None] | None = None
        self.cleaned_offset: int | None = None
        self.is_being_cleaned = False
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self._files = files
        self.disk = DiskState(path, self)
        self.segment_list = SegmentList(loaded.segments)
        self.producer_snapshots = ProducerSnapshots(loaded.producers, self.segment_list, self.disk)
        self._end_offset = self.segment_list.active.next_offset
        self._high_watermark: int | None = None
        self._unflushed_records = max(self._end_offset - loaded.recovery_point, 0)
        self._flushed_ms = now_ms
        self._synced_base = -1
        self._was_written = False
        self._changes = 0  # the number of removals, replacements and truncations of segments
        self.last_found: LastFound = NOTHING_FOUND

    @classmethod
    def create(
        cls, path: Path, config: LogConfig, now_ms: int, *, leader_epoch: int = NO_EPOCH, files: Files = _OS_FILES
    ) -> Log:
        """Returns a new log in a new directory. Its first file is written with its first record."""
        return cls(path, config, files, begin(path, config, now_ms, leader_epoch=leader_epoch, files=files), now_ms)

    @classmethod
    def open(
        cls,
        path: Path,
        config: LogConfig,
        now_ms: int,
        *,
        clean: bool,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        leader_epoch: int = NO_EPOCH,
        files: Files = _OS_FILES,
    ) -> Log:
        """Opens or creates the log in directory ``path``.

        ``clean``: the last shutdown was clean, so batches are checked only in segments without valid indexes. Otherwise
        recovery checks each batch from ``recovery_point`` on, truncates an incomplete tail and rebuilds the indexes.
        ``log_start_offset`` is the checkpoint's. A new ``leader_epoch`` starts at the log's end. Raises StorageError.
        """
        witnesses = Witnesses(clean, recovery_point, log_start_offset)
        return cls.reopen(path, config, now_ms, witnesses, leader_epoch=leader_epoch, files=files)

    @classmethod
    def reopen(
        cls, path: Path, config: LogConfig, now_ms: int, known: Witnesses, *, leader_epoch: int, files: Files
    ) -> Log:
        """Does the same as ``open``, with all that the checkpoints know. Raises LostRecords for a guarded log."""
        loaded = load(path, config, now_ms, known, leader_epoch=leader_epoch, files=files)
        opened = cls(path, config, files, loaded, now_ms)
        opened._was_written = loaded.was_cut or not known.clean  # a close has to sync what the recovery has written
        return opened

    @property
    def log_end_offset(self) -> int:
        return self._end_offset

    @property
    def size(self) -> int:
        """The bytes of all segments."""
        return sum(segment.size for segment in self.segment_list)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self.segment_list)

    @property
    def active(self) -> Segment:
        return self.segment_list.active

    @property
    def high_watermark(self) -> int:
        return self._end_offset if self._high_watermark is None else min(self._high_watermark, self._end_offset)

    @high_watermark.setter
    def high_watermark(self, value: int | None) -> None:
        """``None`` makes it equal to the log end offset again."""
        self._high_watermark = value
        self.producers.on_high_watermark(self._end_offset if value is None else value)

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        high_watermark = self.high_watermark
        if unstable is None:
            return high_watermark
        if unstable < self.log_start_offset:
            unstable = self._base_of_start()
        return min(unstable, high_watermark)

    def _base_of_start(self) -> int:
        """Returns the base offset of the batch with the log start; the log start itself if the log cannot be read.

        As in Kafka, this base offset is the last stable offset if the log start is inside an open transaction. It may
        be below the log start.
        """
        start = self.log_start_offset
        if self._cut_batch[0] != start:
            try:
                self._cut_batch = start, self.read(start, 1, max_offset=self._end_offset).base_offset
            except KafkaError:
                return start
        return self._cut_batch[1]

    @property
    def stable_base_offset(self) -> int:
        """The base offset of the segment with the last stable offset; of the active segment if nothing is unstable."""
        segments = self.segment_list
        if self.producers.first_unstable_offset is None:
            return segments.bases[-1]
        return segments.bases[segments.number_at(self.last_stable_offset)]

    def expire_producers(self, now_ms: int) -> Generator[None, None, int]:
        """Removes producers that were not used for producer.id.expiration.ms, in steps. Returns how many."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # appending

    def append(self, data: Buffer, *, now_ms: int, leader_epoch: int, origin: Origin = "client") -> AppendInfo:
        """Validates record batches, assigns offsets and writes them, with the topic's codec and kind of timestamps.

        Raises CorruptRecord or KafkaError. Nothing is written, unless the code is KAFKA_STORAGE_ERROR.
        """
        info = self.begin_append(data, now_ms=lambda: now_ms, leader_epoch=leader_epoch, origin=origin)
        return info if isinstance(info, AppendInfo) else finish(info)

    def begin_append(
        self,
        data: Buffer,
        *,
        now_ms: Callable[[], int],
        leader_epoch: int,
        origin: Origin = "client",
        guard: Guard = None,
    ) -> AppendInfo | BatchSteps[AppendInfo]:
        """Does the same as ``append``. If the check of a client's batch takes long, it returns steps that check and
        append the batch. Batches that are appended between two of these steps get lower offsets."""
        self.disk.check_online()
        config = self.config
        client = origin == "client"
        at_ms = now_ms()
        batches = validate(data, max_message_bytes=config.max_message_bytes, client=client)
        if client:
            ready = check_client_batch(data, batches, config, at_ms)
            if not isinstance(ready, tuple):
                return self._append_later(ready, now_ms, leader_epoch, guard)
            data, batches = ready
        return self._append_checked(data, batches, at_ms, leader_epoch, client=client, guard=guard)

    def _append_later(
        self, check: BatchSteps[Ready], now_ms: Callable[[], int], leader_epoch: int, guard: Guard
    ) -> BatchSteps[AppendInfo]:
        data, batches = yield from check
        self.disk.check_online()
        return self._append_checked(data, batches, now_ms(), leader_epoch, client=True, guard=guard)

    def _append_checked(
        self, data: Buffer, batches: Batches, now_ms: int, leader_epoch: int, *, client: bool, guard: Guard
    ) -> AppendInfo:
        for _, header in batches:
            if header.producer_id >= 0:
                if self.producers.rebuild is not None:
                    self.producer_snapshots.end_rebuild()
                seen = self.producers.find_duplicate(header) if client else None
                if seen is not None:
                    if self._unflushed_records >= self.config.flush_messages:
                        self.flush()  # the first attempt may have failed at its sync
                    return AppendInfo(seen.base_offset, seen.last_offset, seen.timestamp, self.log_start_offset, True)
                if client and header.is_transactional and self.config.transaction_partition_verification_enable:
                    self.producers.check_verified(header.producer_id, header.producer_epoch, guard)
                self.producers.check(header, sequences=client)
        return self._write(data, batches, now_ms, leader_epoch)

    def refused_records(self, data: Buffer, now_ms: int, *, most: int) -> BatchSteps[list[RecordMatch]]:
        """Finds the first records, at most ``most``, of a client's batch that the topic's settings refuse.

        Raises KafkaError if the batch cannot be read.
        """
        (_, header), *_ = validate(data)
        return refused_records(data, header, self.config, now_ms, most=most)

    def append_marker(self, marker: EndTransactionMarker, *, now_ms: int, leader_epoch: int) -> AppendInfo:
        """Ends a producer's transaction.

        Raises KafkaError: INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED. Nothing is written then.
        """
        self.disk.check_online()
        self.producer_snapshots.end_rebuild()
        self.producers.check_marker(marker)
        if not marker.commit:
            try:
                self.segment_list.active.aborted_index.open_for_append()  # otherwise its entry may be lost
            except OSError as error:
                raise self.disk.fail("append", error) from error
        data = encode_marker(marker, now_ms)
        return self._write(data, validate(data, client=False), now_ms, leader_epoch)

    def _write(
        self, data: Buffer, batches: list[tuple[int, BatchHeader]], now_ms: int, leader_epoch: int
    ) -> AppendInfo:
        config = self.config
        append_time = now_ms if config.is_log_append_time else None
        first_offset = self._end_offset
        parts, appended, offset, newest, has_producer = assign_offsets(
            data, batches, first_offset, leader_epoch=leader_epoch, log_append_time_ms=append_time
        )
        if (total := len(data)) > config.segment_bytes:
            raise KafkaError(ErrorCode.record_list_too_large, f"{total} bytes; segment.bytes is {config.segment_bytes}")
        try:
            if self.disk.failed_bytes:
                self.segment_list.active.cut_torn_end()
            self.epochs.assign(leader_epoch, first_offset)
            if self.segment_list.active.must_roll(total, offset - 1, newest, now_ms):
                self.roll(now_ms)
            self.segment_list.active.append(parts, appended)
        except OSError as error:
            raise self.disk.fail("append", error, total) from error
        if self.disk.failed_bytes and total >= self.disk.failed_bytes:
            self.disk.failed_bytes = 0
        self._end_offset = offset
        self._was_written = True
        for (pos, header), batch in zip(batches, appended, strict=True) if has_producer else ():
            if header.producer_id >= 0:
                base, time = batch.base_offset, batch.max_timestamp
                ended = note_batch(self.producers, header, data, pos, base_offset=base, max_timestamp=time)
                if ended is not None:
                    self._note_end(ended)
        self.producers.end_offset = offset
        self._unflushed_records += offset - first_offset
        if self._unflushed_records >= config.flush_messages:
            self.flush()
        return AppendInfo(first_offset, offset - 1, -1 if append_time is None else append_time, self.log_start_offset)

    def _note_end(self, ended: EndedTransaction) -> None:
        """Adds an aborted transaction to the index, and keeps the transaction unstable until it is replicated."""
        if ended.is_aborted:
            try:
                self.segment_list.add_aborted(ended.entry)
            except OSError as error:
                raise self.disk.fail("append to the transaction index", error) from error
        self._await_replicas(ended)

    def _await_replicas(self, ended: EndedTransaction) -> None:
        """If the high watermark is set, the transaction stays unstable until the high watermark has passed its
        marker."""
        if self._high_watermark is not None and ended.entry.last_offset >= self._high_watermark:
            self.producers.await_replicas(ended.entry.first_offset, ended.entry.last_offset)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Starts a leader epoch at the log's end."""
        self.disk.check_online()
        try:
            self.epochs.assign(leader_epoch, self._end_offset)
        except OSError as error:
            raise self.disk.fail("assign epoch", error) from error

    def roll(self, now_ms: int) -> None:
        """Closes the active segment and starts a new one at the log's end, unless the active segment is empty."""
        self.disk.check_online()
        if (active := self.segment_list.active).size == 0 and active.base_offset == self._end_offset:
            return
        try:
            if self.disk.failed_bytes:
                self.segment_list.active.cut_torn_end()
            active.seal()
            if self.recovery_point >= self._end_offset:
                active.sync()  # its records are, but not its indexes, and a start trusts those of closed segments
            fresh = Segment.create(self.path, self._end_offset, self.config, self._files, now_ms)
        except OSError as error:
            raise self.disk.fail("roll", error) from error
        self.segment_list.append(fresh)
        self.producers.end_offset = self._end_offset
        self.producer_snapshots.save()
        if self.defer_flush is not None:
            self.defer_flush(lambda: self.flush_closed(fresh.base_offset))
            return
        try:
            self._flush_to(fresh.base_offset)
        except OSError as error:
            failure = self.disk.fail("flush", error)
            if self.disk.offline is not None:
                raise failure from error

    # reading

    def read(self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True) -> Slice:
        """Returns record batches from the first that ends at or after ``offset`` (behaviour 51), up to ``max_bytes``.

        They end at ``max_offset``, by default the high watermark. If the first batch is larger than ``max_bytes``,
        ``min_one`` decides: True returns this batch, False an empty slice. The last batch may be cut off, as in Kafka.
        Raises KafkaError: OFFSET_OUT_OF_RANGE outside of [log start, log end], KAFKA_STORAGE_ERROR.
        """
        self.disk.check_online()
        if offset < self.log_start_offset or offset > self._end_offset:
            within = f"[{self.log_start_offset}, {self._end_offset}]"
            raise KafkaError(
                ErrorCode.offset_out_of_range, f"offset {offset} of {self.path.name} is outside of {within}"
            )
        limit = self.high_watermark if max_offset is None else min(max_offset, self._end_offset)
        if offset >= limit:
            return Slice(None, 0, 0, offset)
        try:
            segments = self.segment_list.all[self.segment_list.number_at(offset) :]
            return read_slice(
                segments, offset, limit, max_bytes=max_bytes, min_one=min_one, on_failure=self.disk.fail_late
            )
        except OSError as error:
            raise self.disk.fail_read("read", error) from error

    def search_timestamp(self, timestamp: int) -> BatchSteps[FoundOffset | None]:
        """Finds the first record with at least that timestamp (ms) in steps, also in compressed batches (behaviour 48).

        The record may be above the high watermark.
        """
        return first_at_least(self, timestamp)

    def search_max_timestamp(self) -> BatchSteps[FoundOffset | None]:
        """Finds the first record with the largest timestamp; the first of all if none has one (behaviour 49)."""
        return greatest(self)

    def changes_of_segments(self) -> int:
        """Returns the number of removals, replacements and truncations of segments. Raises KafkaError if offline."""
        self.disk.check_online()
        return self._changes

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Returns (epoch, end offset) of OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self._end_offset)

    # deletion

    def delete_before(self, offset: int) -> int:
        """Raises the log start to ``offset`` for DeleteRecords; -1 is the high watermark (behaviour 53).

        The next ``retain`` removes the segments below the log start. Returns the log start. Raises KafkaError
        (OFFSET_OUT_OF_RANGE) for an offset above the high watermark or below -1.
        """
        self.disk.check_online()
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is not within [0, {self.high_watermark}]")
        if offset > self.log_start_offset:
            try:
                self._raise_start(offset)
            except OSError as error:
                raise self.disk.fail("delete records", error) from error
        return self.log_start_offset

    def _raise_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.end_offset = max(self.producers.end_offset, offset)

    def retain(self, now_ms: int) -> int:
        """Removes segments below the log start, over retention.bytes, or older than retention.ms.

        Returns their number. If all segments are due, it first rolls a new segment and then removes all the due ones.
        """
        self.disk.check_online()
        if self.is_being_cleaned:
            return 0
        removed = 0
        try:
            for rule in rules(self, now_ms):
                removed += self._remove_oldest(rule, now_ms)
        except OSError as error:
            raise self.disk.fail("retention", error) from error
        return removed

    def _remove_oldest(self, rule: Rule, now_ms: int) -> int:
        """Removes the oldest segments that are due by a rule."""
        due = count_due(self, rule)
        if not due:
            return 0
        self.producer_snapshots.end_rebuild()
        segments = self.segment_list
        if due == len(segments):
            try:
                self.roll(now_ms)
            except KafkaError:
                if self.disk.offline is not None or due == 1:
                    raise
                due -= 1  # the removal of the others makes room for the roll
        if segments.bases[due] > self.log_start_offset:
            self._raise_start(segments.bases[due])
        self._changes += 1
        for segment in segments.all[:due]:
            self._remove([segment])
            segments.replace(0, 1)
            self.producers.remove_snapshot(segment.base_offset)
        return due

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Does the same as ``begin_truncation``, with all its steps."""
        finish(self.begin_truncation(offset, now_ms))

    def begin_truncation(self, offset: int, now_ms: int) -> BatchSteps[None]:
        """Removes the batch with ``offset`` and all later batches: the log ends at the base offset of that batch.

        With an ``offset`` below the first segment the log becomes empty and starts at ``offset``. The log is cut in
        this call. The steps that it returns rebuild the states of the producers, if there are any. A change of the log
        that needs the states ends these steps first. Raises KafkaError, as the steps do.
        """
        self.disk.check_online()
        if offset < self._end_offset:
            try:
                self._truncate(offset, now_ms)
            except OSError as error:
                raise self.producer_snapshots.failed_cut(error) from error
        return self.producer_snapshots.rest_of_rebuild()

    def _truncate(self, offset: int, now_ms: int) -> None:
        self._changes += 1
        self._cut_batch = -1, -1
        segments = self.segment_list
        while len(segments) > 1 and segments.bases[-1] >= offset:
            last = segments.active
            segments.replace(len(segments) - 1, len(segments))
            self._remove([last])
        active = segments.active
        if offset < active.base_offset:
            self._remove([active])
            active = Segment.create(self.path, offset, self.config, self._files, now_ms)
            segments.replace(0, 1, active)
        else:
            active.truncate_to(offset, now_ms)
        end = self._end_offset = active.next_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.recovery_point = min(self.recovery_point, end)
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, end)
        if self._high_watermark is not None:
            self._high_watermark = min(self._high_watermark, end)
        self.epochs.truncate_from_end(end)
        self.producers.remove_snapshots_from(end + 1)
        if len(self.producers) or self.producers.rebuild is not None:
            self.producer_snapshots.begin_rebuild(self.config, now_ms, self._await_replicas)
        else:  # a producer that is unknown now was unknown, or has expired, at each earlier offset
            self.producers.end_offset = end

    # compaction

    def replace_segments(self, base_offset: int, replaced: Sequence[Segment]) -> bool:
        """Replaces closed segments by the cleaned segment at ``base_offset``, whose synced files end in ``.cleaned``.

        Returns False and removes the cleaned files if the log no longer has these segments, e.g. after a truncation.
        After a crash the next start finishes or undoes the replacement. Open readers keep the old files.
        """
        self.disk.check_online()
        self.producer_snapshots.end_rebuild()
        segments = self.segment_list
        first = segments.bases.index(base_offset) if base_offset in segments.bases else 0
        last = first + len(replaced)
        try:
            if not replaced or last >= len(segments) or segments.all[first:last] != list(replaced):
                self.discard_cleaned()
                return False
            for segment in replaced:  # markers are removed that end transactions in these snapshots
                self.producers.remove_snapshot(segment.base_offset)
            doomed, fresh = swap(self._files, self.path, base_offset, replaced, self.config)
        except OSError as error:
            raise self.disk.fail("replacing segments", error) from error
        except IndexCorrupt as error:
            raise self.disk.fail("replacing segments", OSError(str(error))) from error
        self._changes += 1
        segments.replace(first, last, fresh)
        self.producers.save_again()
        self._remove_later(doomed)
        return True

    def _remove(self, segments: Sequence[Segment]) -> None:
        if self.defer_removal is not None:
            self._remove_later([path for segment in segments for path in segment.mark_deleted()])
            return
        for segment in segments:
            segment.remove()

    def _remove_later(self, doomed: Sequence[Path]) -> None:
        if self.defer_removal is None:
            self._remove_files(doomed)
        else:
            self.defer_removal(self.config.file_delete_delay_ms, lambda: self._remove_files(doomed))

    def _remove_files(self, doomed: Sequence[Path]) -> None:
        if not self.disk.closed:
            remove_files(self._files, self.path, doomed)

    def discard_cleaned(self) -> None:
        """Removes the files of an interrupted cleaning. Raises OSError."""
        discard_cleaned(self._files, self.path)

    # the disk

    def flush(self) -> None:
        """Syncs all files, except the active segment's indexes, and sets the recovery point to the log's end."""
        self.disk.check_online()
        try:
            self._flush_to(self._end_offset)
        except OSError as error:
            raise self.disk.fail("flush", error) from error
        self._unflushed_records = 0

    def flush_if_due(self, now_ms: int) -> bool:
        """Syncs unsynced records at most once in ``flush.ms``. Returns whether it has synced."""
        if not self._unflushed_records or now_ms - self._flushed_ms < self.config.flush_ms:
            return False
        self.flush()
        self._flushed_ms = now_ms
        return True

    def flush_closed(self, end_offset: int) -> None:
        """Syncs closed segments below ``end_offset``. ``defer_flush`` gets this call."""
        try:
            self._flush_to(end_offset)
        except OSError as error:
            raise self.disk.fail("flush", error) from error

    def _flush_to(self, end_offset: int, *, closing: bool = False) -> None:
        if self.recovery_point >= end_offset and not (closing and self._was_written):
            return
        *closed, active = self.segment_list
        for segment in closed:
            if segment.base_offset < end_offset and segment.next_offset > self.recovery_point:
                segment.sync()
        if closing or active.base_offset < end_offset:
            active.sync(indexes=closing)
        self.epochs.sync()
        if closing or self._synced_base != active.base_offset:
            if self._synced_base < 0:  # at a stop, the owner syncs its directory after it has closed all logs
                sync_new_partition(self.path, self._files, with_parent=not closing)
            named = active.base_offset if active.size else 0  # the first record makes the file, maybe during the sync
            self._files.sync_dir(self.path)
            self._synced_base = named
        self.recovery_point = max(self.recovery_point, end_offset)

    def close(self) -> None:
        """Writes the indexes and the producer snapshot, syncs all files and closes the log."""
        if not self.disk.closed and self.disk.offline is None:
            self.producer_snapshots.end_rebuild()
            self.disk.closed = True
            try:
                if self.disk.failed_bytes:
                    self.segment_list.active.cut_torn_end()
                if self._was_written:
                    self.segment_list.active.save_indexes(final=True)
                self.producer_snapshots.save_last(is_changed=self._was_written)
                self._flush_to(self._end_offset, closing=True)
            except OSError as error:
                failure = self.disk.fail("close", error)
                self.disk.close("is closed")
                raise failure from error
        self.disk.close("is closed")

    def abandon(self) -> None:
        """Closes the log without a write, as kill -9 does."""
        self.disk.close("was abandoned")

    def retire(self) -> None:
        """Closes a log whose directory the caller removes."""
        self.disk.close("was deleted")

    def forget_files(self) -> None:
        """Drops the open files and the work in steps: the log is offline or closed."""
        self.producer_snapshots.forget()
        for segment in self.segment_list:
            segment.forget()

    def try_write(self) -> None:
        """Cuts the torn end, and tries whether the failed write would succeed now. Raises OSError.

        The bytes of the trial are cut at once. If the process is killed before that, recovery cuts them.
        """
        if self.disk.offline is not None or not self.disk.failed_bytes:
            return
        active = self.active
        active.cut_torn_end()
        if active.size:
            active.try_append(min(self.disk.failed_bytes, _LONGEST_PROBE))
        active.save_indexes()
        self.disk.failed_bytes = 0
        end = active.base_offset
        if self.recovery_point < end:  # the sync of a closed segment may be the write that has failed
            if self.defer_flush is None:
                self.flush_closed(end)
            else:
                self.defer_flush(lambda: self.flush_closed(end))
