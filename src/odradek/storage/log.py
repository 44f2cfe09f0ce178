"""The log of one partition in Kafka's segments: append, read, search, flush. ``removals`` removes records.

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

from collections.abc import Callable, Generator
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
from odradek.storage.log_removals import LogRemovals
from odradek.storage.log_sync import LogSync
from odradek.storage.log_writer import LogWriter
from odradek.storage.producers.producers import Producers
from odradek.storage.producers.snapshots import ProducerSnapshots
from odradek.storage.producers.verification import Guard
from odradek.storage.recovery.evidence import Witnesses
from odradek.storage.recovery.recovery import LoadedLog, begin, load
from odradek.storage.segments.segment import FoundOffset, Segment
from odradek.storage.segments.segment_list import SegmentList
from odradek.storage.segments.slice import Slice, read_slice
from odradek.storage.segments.time_search import NOTHING_FOUND, LastFound, first_at_least, greatest

_OS_FILES = OsFiles()
_LONGEST_PROBE = 1 << 20


class Log:
    """The log of one partition. It is not thread-safe. ``Log.open`` makes it.

    ``was_cut``: the recovery removed bytes, or records are lost. ``began_epoch``: the epoch of ``open`` is new here.
    """

    __slots__ = (
        "__weakref__", "_cut_batch", "_writer", "began_epoch", "disk", "epochs", "last_found", "producer_snapshots",
        "producers", "removals", "segment_list", "sync", "was_cut",
    )  # fmt: skip

    def __init__(self, path: Path, config: LogConfig, files: Files, loaded: LoadedLog, now_ms: int) -> None:
        self._cut_batch = -1, -1, -1  # a log start offset, the changes until then, and the base offset of its batch
        self.was_cut = loaded.was_cut
        self.began_epoch = loaded.began_epoch
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: Producers = loaded.producers
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
        self.removals = LogRemovals(
            files, self._writer, segments=self.segment_list, epochs=self.epochs, producers=self.producers,
            snapshots=self.producer_snapshots, disk=self.disk, sync=self.sync,
        )  # fmt: skip
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
        return self.segment_list.size

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
        start, changes = self.log_start_offset, self.removals.changes
        if self._cut_batch[:2] != (start, changes):
            try:
                self._cut_batch = start, changes, self.read(start, 1, max_offset=self.log_end_offset).base_offset
            except KafkaError:
                return start
        return self._cut_batch[2]

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
        return self.removals.changes

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Returns (epoch, end offset) of OffsetForLeaderEpoch; (-1, -1) if unknown."""
        return self.epochs.end_offset(epoch, self.log_end_offset)

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
