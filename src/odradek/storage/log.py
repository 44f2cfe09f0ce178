"""The log of one partition in Kafka's segments: append, read, search, retention, truncation, flush.

Offsets:
* ``log_start_offset``: the first offset that can be read; retention and DeleteRecords raise it;
* ``log_end_offset``: the offset of the next record;
* ``high_watermark``: the end for readers: the log end offset, until a partition with other replicas sets a lower one;
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

from odradek.batches.header import Buffer, validate
from odradek.batches.search import RecordMatch
from odradek.batches.steps import BatchSteps, finish
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH, EndTransactionMarker
from odradek.storage.appends import AppendInfo, Origin
from odradek.storage.client_batch import refused_records
from odradek.storage.config import LogConfig
from odradek.storage.disk.disk_state import DiskState
from odradek.storage.disk.files import Files, OsFiles
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.log_sync import LogSync
from odradek.storage.log_writer import LogWriter
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.snapshots import ProducerSnapshots
from odradek.storage.producers.verification import Guard
from odradek.storage.recovery.evidence import Witnesses
from odradek.storage.recovery.recovery import LoadedLog, begin, load
from odradek.storage.retention import Rule, count_due, rules
from odradek.storage.segments.index import IndexCorrupt
from odradek.storage.segments.segment import FoundOffset, Segment
from odradek.storage.segments.segment_list import SegmentList
from odradek.storage.segments.slice import Slice, read_slice
from odradek.storage.segments.time_search import NOTHING_FOUND, LastFound, first_at_least, greatest

_OS_FILES = OsFiles()
_LONGEST_PROBE = 1 << 20


class Log:
    """The log of one partition. It is not thread-safe. ``Log.open`` makes it.

    ``defer_removal`` gets the removal of files that are no longer part of the log, and its delay in ms
    (``file.delete.delay.ms``). Their names end in ``.deleted`` until then. Without it they are removed at once.

    ``was_cut``: the recovery removed bytes, or records are lost. ``began_epoch``: the epoch of ``open`` is new here.

    ``cleaned_offset``: the end of the last cleaning; None before the first. ``is_being_cleaned`` suspends retention.
    """

    __slots__ = (
        "__weakref__", "_changes", "_cut_batch", "_files", "_writer", "began_epoch", "cleaned_offset", "defer_removal",
        "disk", "epochs", "is_being_cleaned", "last_found", "producer_snapshots", "producers", "segment_list", "sync",
        "was_cut",
    )  # fmt: skip

    def __init__(self, path: Path, config: LogConfig, files: Files, loaded: LoadedLog, now_ms: int) -> None:
        self._cut_batch = -1, -1  # a log start offset and the base offset of its batch; -1 until they are needed
        self.was_cut = loaded.was_cut
        self.began_epoch = loaded.began_epoch
        self.defer_removal: Callable[[int, Callable[[], None]], None] | None = None
        self.cleaned_offset: int | None = None
        self.is_being_cleaned = False
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self._files = files
        self.disk = DiskState(path, self)
        self.segment_list = SegmentList(loaded.segments)
        self.producer_snapshots = ProducerSnapshots(loaded.producers, self.segment_list, self.disk)
        self.sync = LogSync(
            path, files, segments=self.segment_list, epochs=loaded.epochs, disk=self.disk,
            recovery_point=loaded.recovery_point, now_ms=now_ms,
        )  # fmt: skip
        self._writer = LogWriter(
            config, loaded.log_start_offset, segments=self.segment_list, epochs=self.epochs, producers=self.producers,
            snapshots=self.producer_snapshots, disk=self.disk, sync=self.sync,
        )  # fmt: skip
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
        opened.sync.was_written = loaded.was_cut or not known.clean  # a close has to sync what the recovery has written
        return opened

    @property
    def path(self) -> Path:
        return self.sync.path

    @path.setter
    def path(self, renamed: Path) -> None:
        self.sync.path = renamed

    @property
    def config(self) -> LogConfig:
        return self._writer.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        """Changes the settings of the log and of its segments."""
        self._writer.config = config
        for segment in self.segment_list:
            segment.config = config

    @property
    def log_start_offset(self) -> int:
        return self._writer.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._writer.end_offset

    @property
    def recovery_point(self) -> int:
        return self.sync.recovery_point

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
        writer = self._writer
        return writer.end_offset if writer.high_watermark is None else min(writer.high_watermark, writer.end_offset)

    @high_watermark.setter
    def high_watermark(self, value: int | None) -> None:
        """``None`` makes it equal to the log end offset again."""
        self._writer.high_watermark = value
        self.producers.on_high_watermark(self.log_end_offset if value is None else value)

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
                self._cut_batch = start, self.read(start, 1, max_offset=self.log_end_offset).base_offset
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
        info = self._writer.begin_append(data, lambda: now_ms, leader_epoch, origin, None)
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
        return self._writer.begin_append(data, now_ms, leader_epoch, origin, guard)

    def append_fetched(self, data: Buffer, *, now_ms: int, leader_epoch: int) -> AppendInfo | None:
        """Does the same as ``begin_append_fetched``, with all its steps."""
        return finish(self._writer.begin_append_fetched(data, lambda: now_ms, leader_epoch))

    def begin_append_fetched(
        self, data: Buffer, *, now_ms: Callable[[], int], leader_epoch: int
    ) -> BatchSteps[AppendInfo | None]:
        """Appends the batches that a follower has fetched, in steps, as Kafka's ``appendAsFollower`` does.

        Their bytes stay as they are, with the offsets and epochs of the leader. ``leader_epoch``: the newest epoch that
        this node knows; ``storage/fetched_batches`` says which batches are left out. None: no batch is left. Raises
        CorruptRecord, UnexpectedOffset: nothing is written. Raises KafkaError (KAFKA_STORAGE_ERROR): batches of earlier
        steps are in the log.
        """
        return self._writer.begin_append_fetched(data, now_ms, leader_epoch)

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
        return self._writer.append_marker(marker, now_ms, leader_epoch)

    def assign_epoch(self, leader_epoch: int) -> None:
        """Starts a leader epoch at the log's end."""
        self._writer.assign_epoch(leader_epoch)

    def roll(self, now_ms: int) -> None:
        """Closes the active segment and starts a new one at the log's end, unless the active segment is empty."""
        self._writer.roll(now_ms, self.log_end_offset)

    # reading

    def read(self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True) -> Slice:
        """Returns record batches from the first that ends at or after ``offset`` (behaviour 51), up to ``max_bytes``.

        They end at ``max_offset``, by default the high watermark. If the first batch is larger than ``max_bytes``,
        ``min_one`` decides: True returns this batch, False an empty slice. The last batch may be cut off, as in Kafka.
        Raises KafkaError: OFFSET_OUT_OF_RANGE outside of [log start, log end], KAFKA_STORAGE_ERROR.
        """
        self.disk.check_online()
        start, end = self._writer.log_start_offset, self._writer.end_offset
        if offset < start or offset > end:
            text = f"offset {offset} of {self.path.name} is outside of [{start}, {end}]"
            raise KafkaError(ErrorCode.offset_out_of_range, text)
        limit = self.high_watermark if max_offset is None else min(max_offset, end)
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
        return self.epochs.end_offset(epoch, self.log_end_offset)

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
        self._writer.log_start_offset = offset
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

    def truncate_in_steps(self, offset: int, now_ms: int) -> BatchSteps[None]:
        """Does the same as ``begin_truncation``. The newest batches are removed first, a few megabytes in a step."""
        while (at := self.segment_list.next_cut(offset)) > offset:
            self.begin_truncation(at, now_ms).close()
            yield None
        yield from self.begin_truncation(offset, now_ms)

    def begin_truncation(self, offset: int, now_ms: int) -> BatchSteps[None]:
        """Removes the batch with ``offset`` and all later batches: the log ends at the base offset of that batch.

        With an ``offset`` below the first segment the log becomes empty and starts at ``offset``. The log is cut in
        this call. The steps that it returns rebuild the states of the producers, if there are any. A change of the log
        that needs the states ends these steps first. Raises KafkaError, as the steps do.
        """
        self.disk.check_online()
        try:
            if offset < self.log_end_offset:
                self._truncate(offset, now_ms)
            else:  # an epoch that a former leader has begun without a record is not one of the log
                self.epochs.truncate_from_end(self.log_end_offset)
        except OSError as error:
            raise self.producer_snapshots.failed_cut(error) from error
        return self.producer_snapshots.rest_of_rebuild()

    def _truncate(self, offset: int, now_ms: int) -> None:
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
        end = active.next_offset
        self._end_at(end)
        self.sync.cut(end)
        self._writer.log_start_offset = min(self.log_start_offset, end)
        if self._writer.high_watermark is not None:
            self._writer.high_watermark = min(self._writer.high_watermark, end)
        self.epochs.truncate_from_end(end)
        self.producers.remove_snapshots_from(end + 1)
        if len(self.producers) or self.producers.rebuild is not None:
            self.producer_snapshots.begin_rebuild(self.config, now_ms, self._writer.await_replicas)
        else:  # a producer that is unknown now was unknown, or has expired, at each earlier offset
            self.producers.end_offset = end

    def _end_at(self, end: int) -> None:
        """Notes a lower end, or another one after a restart."""
        self._changes += 1
        self._cut_batch = -1, -1
        self._writer.end_offset = end
        if self.cleaned_offset is not None:
            self.cleaned_offset = min(self.cleaned_offset, end)

    def restart_at(self, offset: int, now_ms: int) -> None:
        """Removes all records. The log begins again, empty, at ``offset``, as in Kafka's ``truncateFullyAndStartAt``.

        For a follower whose log has nothing in common with that of its leader: its end is below the leader's log start,
        or its records are of a lost history. A high watermark that is set moves to ``offset``. Raises KafkaError.
        """
        self.disk.check_online()
        segments = self.segment_list
        try:
            # The newest segment first: after a crash, the log ends earlier, and the follower begins again.
            while len(segments) > 1:
                last = segments.active
                segments.replace(len(segments) - 1, len(segments))
                self._remove([last])
            self._remove([segments.active])
            segments.replace(0, 1, Segment.create(self.path, offset, self.config, self._files, now_ms))
            self._end_at(offset)
            self.sync.restart(offset)
            self._writer.log_start_offset = offset
            if self._writer.high_watermark is not None:
                self._writer.high_watermark = offset
            self.epochs.truncate_from_end(0)
            self.producers.remove_snapshots_from(0)
            self.producers.restart(offset)
            segments.has_aborted = False
        except OSError as error:
            raise self.producer_snapshots.failed_cut(error) from error

    # compaction

    def replace_segments(self, base_offset: int, replaced: Sequence[Segment]) -> bool:
        """Replaces closed segments by the cleaned segment at ``base_offset``, whose synced files end in ``.cleaned``.

        Returns False and removes the cleaned files if the log no longer has these segments, e.g. after a truncation.
        After a crash the next start finishes or undoes the replacement. Open readers keep the old files.
        """
        from odradek.storage.segment_swap import swap  # here, because a start does not need it

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
            from odradek.storage.segment_swap import remove_files

            remove_files(self._files, self.path, doomed)

    def discard_cleaned(self) -> None:
        """Removes the files of an interrupted cleaning. Raises OSError."""
        from odradek.storage.segment_swap import discard_cleaned

        discard_cleaned(self._files, self.path)

    # the disk

    def flush(self) -> None:
        """Syncs all files, except the active segment's indexes, and sets the recovery point to the log's end."""
        self.sync.flush(self.log_end_offset)

    def flush_if_due(self, now_ms: int) -> bool:
        """Syncs unsynced records at most once in ``flush.ms``. Returns whether it has synced."""
        return self.sync.flush_if_due(self.log_end_offset, now_ms, self.config.flush_ms)

    def close(self) -> None:
        """Writes the indexes and the producer snapshot, syncs all files and closes the log."""
        if not self.disk.closed and self.disk.offline is None:
            self.producer_snapshots.end_rebuild()
            self.disk.closed = True
            try:
                if self.disk.failed_bytes:
                    self.segment_list.active.cut_torn_end()
                if self.sync.was_written:
                    self.segment_list.active.save_indexes(final=True)
                self.producer_snapshots.save_last(is_changed=self.sync.was_written)
                self.sync.close(self.log_end_offset)
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
        if self.recovery_point < active.base_offset:  # the sync of a closed segment may be the write that has failed
            self.sync.flush_later(active.base_offset)
