"""One partition's log: append, read, look up, keep and drop, in segments as Kafka has them.

Offsets, all kept apart:
* ``log_start_offset``: the earliest that may be read; retention and DeleteRecords raise it;
* ``log_end_offset``: the one the next record gets;
* ``high_watermark``: readers stop there; one broker alone has it at the end;
* ``last_stable_offset``: read_committed readers stop there;
* ``recovery_point``: everything below is synced to the disk.

``append`` returns after one ``write``: the page cache outlives kill -9, a sync is needed against power loss only
(``flush.messages``, ``flush.ms``, and when a segment is closed). Any OSError makes the log offline: from then on
every call raises KAFKA_STORAGE_ERROR, and the next start recovers what is on disk. An append or a read for which no
descriptor is left fails alone.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path

from odradek.batches.header import BatchHeader, Buffer, stamped_head, validate
from odradek.batches.search import Found
from odradek.batches.steps import Steps, finish
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_EPOCH
from odradek.storage.append_info import AppendInfo, Origin
from odradek.storage.client_batch import Batches, Ready, check_client_batch, refused_records
from odradek.storage.config import LogConfig
from odradek.storage.descriptors import is_exhausted
from odradek.storage.epochs import LeaderEpochs
from odradek.storage.files import Files, OsFiles
from odradek.storage.index import IndexCorrupt
from odradek.storage.producers import Producers
from odradek.storage.recovery import Loaded, begin, load, note_batch
from odradek.storage.retention import Rule, count_due, rules
from odradek.storage.segment import FoundOffset, Placed, Segment, Slice
from odradek.storage.segment_read import ReadBounds, read_slice
from odradek.storage.segment_swap import discard_cleaned, remove_files, swap
from odradek.storage.time_search import NOTHING_FOUND, LastFound, first_at_least, greatest

_log = logging.getLogger(__name__)
_WITHOUT_TRACE = ("append", "roll", "read", "find timestamp")  # they leave the log as it was if no file can be opened
_OS_FILES = OsFiles()


class Log:
    """Not thread-safe; made by ``Log.open``.

    ``defer_flush`` takes the sync of a segment that was just closed, to be run at leisure, in a thread if wished;
    without it the sync happens inside ``roll``.

    ``defer_removal`` takes the removal of files that are no part of the log any more, with the ms it is to wait
    (``file.delete.delay.ms``); they are called ``.deleted`` until then. Without it they go at once.

    ``was_cut``: opening it dropped bytes that were no batches. ``began_epoch``: it had not known the leader epoch that
    it was opened under.

    ``cleaned_offset``: where the last cleaning ended, None before the first. While ``is_being_cleaned``, retention
    waits.
    """

    __slots__ = (
        "_bases", "_changes", "_end_offset", "_files", "_flushed_ms", "_high_watermark", "_segments",
        "_synced_base", "_unflushed_records", "_was_written", "began_epoch", "cleaned_offset", "closed", "config",
        "defer_flush", "defer_removal", "epochs", "is_being_cleaned", "last_found", "log_start_offset", "offline",
        "path", "producers", "recovery_point", "was_cut",
    )  # fmt: skip

    def __init__(self, path: Path, config: LogConfig, files: Files, loaded: Loaded, now_ms: int) -> None:
        self.path = path
        self.config = config
        self.log_start_offset = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        self.was_cut = loaded.was_cut
        self.began_epoch = loaded.began_epoch
        self.offline: str | None = None
        self.defer_flush: Callable[[Callable[[], None]], None] | None = None
        self.defer_removal: Callable[[int, Callable[[], None]], None] | None = None
        self.closed = False
        self.cleaned_offset: int | None = None
        self.is_being_cleaned = False
        self.epochs: LeaderEpochs = loaded.epochs
        self.producers: Producers = loaded.producers
        self._files = files
        self._segments: list[Segment] = loaded.segments
        self._bases = [segment.base_offset for segment in self._segments]
        self._end_offset = self._segments[-1].next_offset
        self._high_watermark: int | None = None
        self._unflushed_records = 0
        self._flushed_ms = now_ms
        self._synced_base = -1
        self._was_written = False
        self._changes = 0  # of closed segments: removed, or others in their place
        self.last_found: LastFound = NOTHING_FOUND

    @classmethod
    def create(
        cls, path: Path, config: LogConfig, now_ms: int, *, leader_epoch: int = NO_EPOCH, files: Files = _OS_FILES
    ) -> Log:
        """A new log in a directory that was made for it just now. Nothing is written before its first record."""
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

        ``clean``: the last broker stopped in peace, so segments and indexes are trusted. Otherwise every batch from
        ``recovery_point`` on is checked, a torn tail is cut off and the indexes are rebuilt. ``log_start_offset`` is
        the checkpointed one. A ``leader_epoch`` newer than all known ones begins at the log's end. Raises StorageError.
        """
        loaded = load(
            path,
            config,
            now_ms,
            clean=clean,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            leader_epoch=leader_epoch,
            files=files,
        )
        return cls(path, config, files, loaded, now_ms)

    # offsets

    @property
    def log_end_offset(self) -> int:
        return self._end_offset

    @property
    def high_watermark(self) -> int:
        return self._end_offset if self._high_watermark is None else min(self._high_watermark, self._end_offset)

    @high_watermark.setter
    def high_watermark(self, value: int | None) -> None:
        """``None`` lets it follow the log's end again."""
        self._high_watermark = value

    @property
    def last_stable_offset(self) -> int:
        unstable = self.producers.first_unstable_offset
        high_watermark = self.high_watermark
        return high_watermark if unstable is None else min(max(unstable, self.log_start_offset), high_watermark)

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(self._segments)

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    # appending

    def append(self, data: Buffer, *, now_ms: int, leader_epoch: int, origin: Origin = "client") -> AppendInfo:
        """Validates record batches, gives them offsets and writes them as they came.

        Raises KafkaError with the code Kafka answers, CorruptRecord for wrong bytes; nothing is written then.
        """
        info = self.begin_append(data, now_ms=lambda: now_ms, leader_epoch=leader_epoch, origin=origin)
        return info if isinstance(info, AppendInfo) else finish(info)

    def begin_append(
        self, data: Buffer, *, now_ms: Callable[[], int], leader_epoch: int, origin: Origin = "client"
    ) -> AppendInfo | Steps[AppendInfo]:
        """As ``append``. A client's batch that takes long to check is left to the steps that are returned: between
        them others may append, and it comes behind those."""
        self._check_online()
        config = self.config
        client = origin == "client"
        at_ms = now_ms()
        batches = validate(data, max_message_bytes=config.max_message_bytes, client=client)
        if client:
            ready = check_client_batch(data, batches, config, at_ms)
            if not isinstance(ready, tuple):
                return self._append_later(ready, now_ms, leader_epoch)
            data, batches = ready
        return self._append_checked(data, batches, at_ms, leader_epoch, client=client)

    def _append_later(self, check: Steps[Ready], now_ms: Callable[[], int], leader_epoch: int) -> Steps[AppendInfo]:
        data, batches = yield from check
        self._check_online()
        return self._append_checked(data, batches, now_ms(), leader_epoch, client=True)

    def _append_checked(
        self, data: Buffer, batches: Batches, now_ms: int, leader_epoch: int, *, client: bool
    ) -> AppendInfo:
        for _, header in batches:
            if header.producer_id >= 0:
                seen = self.producers.find_duplicate(header) if client else None
                if seen is not None:
                    return AppendInfo(seen.base_offset, seen.last_offset, seen.timestamp, self.log_start_offset, True)
                self.producers.check(header, sequences=client)
        return self._write(data, batches, now_ms, leader_epoch)

    def refused_records(self, data: Buffer, now_ms: int, *, most: int) -> Steps[list[Found]]:
        """The first records, ``most`` at most, of a client's batch that the topic's settings refuse.

        Raises KafkaError where the batch cannot be read.
        """
        (_, header), *_ = validate(data)
        return refused_records(data, header, self.config, now_ms, most=most)

    def _write(
        self, data: Buffer, batches: list[tuple[int, BatchHeader]], now_ms: int, leader_epoch: int
    ) -> AppendInfo:
        config = self.config
        append_time = now_ms if config.is_log_append_time else None
        view = memoryview(data)
        first_offset = offset = self._end_offset
        newest, has_producer = -1, False
        parts: list[Buffer] = []
        placed: list[Placed] = []
        for pos, header in batches:
            head = stamped_head(
                data, pos, header, base_offset=offset, leader_epoch=leader_epoch, log_append_time_ms=append_time
            )
            size = header.size_in_bytes
            parts += (head, view[pos + len(head) : pos + size])
            timestamp = header.max_timestamp if append_time is None else append_time
            last_offset = offset + header.last_offset_delta
            placed.append(Placed(offset, last_offset, timestamp, size))
            offset = last_offset + 1
            newest = max(newest, timestamp)
            if header.producer_id >= 0:
                has_producer = True
        total = len(view)
        if total > config.segment_bytes:
            raise KafkaError(ErrorCode.record_list_too_large, f"{total} bytes; segment.bytes is {config.segment_bytes}")
        try:
            self.epochs.assign(leader_epoch, first_offset)
            if self._segments[-1].must_roll(total, offset - 1, newest, now_ms):
                self.roll(now_ms)
            self._segments[-1].append(parts, placed)
        except OSError as error:
            raise self._fail("append", error) from error
        self._end_offset = offset
        self._was_written = True
        for (pos, header), batch in zip(batches, placed, strict=True) if has_producer else ():
            if header.producer_id >= 0:
                note_batch(
                    self.producers,
                    header,
                    data,
                    pos,
                    base_offset=batch.base_offset,
                    max_timestamp=batch.max_timestamp,
                )
        self.producers.end_offset = offset
        self._unflushed_records += offset - first_offset
        if self._unflushed_records >= config.flush_messages:
            self.flush()
        return AppendInfo(first_offset, offset - 1, -1 if append_time is None else append_time, self.log_start_offset)

    def assign_epoch(self, leader_epoch: int) -> None:
        """A leader begins its term at the log's end."""
        self._check_online()
        try:
            self.epochs.assign(leader_epoch, self._end_offset)
        except OSError as error:
            raise self._fail("assign epoch", error) from error

    def roll(self, now_ms: int) -> None:
        """Closes the active segment and begins a new one at the log's end; nothing happens when it is empty."""
        self._check_online()
        active = self._segments[-1]
        if active.size == 0 and active.base_offset == self._end_offset:
            return
        try:
            active.seal()
            fresh = Segment.create(self.path, self._end_offset, self.config, self._files, now_ms)
            self._segments.append(fresh)
            self._bases.append(fresh.base_offset)
            self.producers.end_offset = self._end_offset
            self.producers.save(sync=False)
            if self.defer_flush is None:
                self._flush_to(fresh.base_offset)
        except OSError as error:
            raise self._fail("roll", error) from error
        if self.defer_flush is not None:
            self.defer_flush(lambda: self.flush_closed(fresh.base_offset))

    # reading

    def read(self, offset: int, max_bytes: int, *, max_offset: int | None = None, min_one: bool = True) -> Slice:
        """Record batches from the one that holds ``offset`` on, whole (behaviour 51), up to ``max_bytes``.

        Readers stop at ``max_offset``, by default the high watermark. ``min_one`` returns a first batch that is
        larger than ``max_bytes``; without it the slice is empty then. The last batch may be cut off, as in Kafka.
        Raises OFFSET_OUT_OF_RANGE outside of [log start, log end], KAFKA_STORAGE_ERROR.
        """
        self._check_online()
        if offset < self.log_start_offset or offset > self._end_offset:
            within = f"[{self.log_start_offset}, {self._end_offset}]"
            raise KafkaError(
                ErrorCode.offset_out_of_range, f"offset {offset} of {self.path.name} is outside of {within}"
            )
        limit = self.high_watermark if max_offset is None else min(max_offset, self._end_offset)
        if offset >= limit:
            return Slice(None, 0, 0, offset)
        try:
            number = max(bisect_right(self._bases, offset) - 1, 0)
            place = ReadBounds(offset, limit, max_bytes, min_one)
            return read_slice(self._segments[number:], place, self._fail_late)
        except OSError as error:
            raise self._fail("read", error) from error

    def find_timestamp(self, timestamp: int, *, max_offset: int | None = None) -> FoundOffset | None:
        """The first record with at least that timestamp (ms), exact inside compressed batches (behaviour 48).

        ``max_offset`` bounds the answer: the high watermark or last stable offset of the asking reader.
        """
        found = finish(self.search_timestamp(timestamp))
        limit = self._end_offset if max_offset is None else max_offset
        return None if found is None or found.offset >= limit else found

    def max_timestamp(self) -> FoundOffset | None:
        """The record with the largest timestamp; of several, and where none has any, the earliest (behaviour 49)."""
        return finish(self.search_max_timestamp())

    def search_timestamp(self, timestamp: int) -> Steps[FoundOffset | None]:
        """The first record with at least that timestamp (ms), a step at a time."""
        return first_at_least(self, timestamp)

    def search_max_timestamp(self) -> Steps[FoundOffset | None]:
        """The record with the largest timestamp, a step at a time."""
        return greatest(self)

    def changes_of_segments(self) -> int:
        """How often closed segments were removed, or replaced by others. Raises KafkaError where the log is offline."""
        self._check_online()
        return self._changes

    def failed_search(self, error: OSError) -> KafkaError:
        """What a search by time raises that could not read a segment."""
        return self._fail("find timestamp", error)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) as Kafka answers OffsetForLeaderEpoch; (-1, -1) when nothing is known."""
        return self.epochs.end_offset(epoch, self._end_offset)

    # dropping

    def delete_before(self, offset: int) -> int:
        """DeleteRecords: raises the log start to ``offset``, -1 meaning the high watermark (behaviour 53).

        Segments that fall below go at the next ``retain``. Returns the log start. Raises OFFSET_OUT_OF_RANGE above
        the high watermark.
        """
        self._check_online()
        if offset == -1:
            offset = self.high_watermark
        if offset < 0 or offset > self.high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range, f"offset {offset} is not within [0, {self.high_watermark}]")
        if offset > self.log_start_offset:
            try:
                self._raise_start(offset)
            except OSError as error:
                raise self._fail("delete records", error) from error
        return self.log_start_offset

    def _raise_start(self, offset: int) -> None:
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        self.producers.end_offset = max(self.producers.end_offset, offset)

    def retain(self, now_ms: int) -> int:
        """Removes segments that are below the log start, too old (retention.ms) or too much (retention.bytes).

        Returns how many. The active segment goes too when all of it is due: a new one is rolled first.
        """
        self._check_online()
        if self.is_being_cleaned:
            return 0
        removed = 0
        try:
            for rule in rules(self, now_ms):
                removed += self._remove_oldest(rule, now_ms)
            self.producers.expire(now_ms, self.config.producer_id_expiration_ms)
        except OSError as error:
            raise self._fail("retention", error) from error
        return removed

    def _remove_oldest(self, rule: Rule, now_ms: int) -> int:
        """Removes segments from the oldest on while they are due."""
        due = count_due(self, rule)
        if not due:
            return 0
        if due == len(self._segments):
            self.roll(now_ms)
        if self._bases[due] > self.log_start_offset:
            self._raise_start(self._bases[due])
        self._changes += 1
        dropped = self._segments[:due]
        del self._segments[:due], self._bases[:due]
        self._remove(dropped)
        for segment in dropped:
            self.producers.remove_snapshot(segment.base_offset)
        return due

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drops the batch that holds ``offset`` and all behind it: the log then ends where that batch began.

        An ``offset`` below the first segment empties the log and lets it begin there.
        """
        self._check_online()
        if offset >= self._end_offset:
            return
        try:
            self._truncate(offset, now_ms)
        except OSError as error:
            raise self._fail("truncate", error) from error

    def _truncate(self, offset: int, now_ms: int) -> None:
        self._changes += 1
        while len(self._segments) > 1 and self._bases[-1] >= offset:
            self._remove([self._segments.pop()])
            self._bases.pop()
        active = self._segments[-1]
        if offset < active.base_offset:
            self._remove([active])
            active = self._segments[-1] = Segment.create(self.path, offset, self.config, self._files, now_ms)
            self._bases[-1] = offset
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
        Loaded.rebuild_producers(self.producers, self._segments, self.config, now_ms)

    # compaction

    def replace_segments(self, base_offset: int, replaced: Sequence[Segment]) -> bool:
        """Puts the segment whose synced files end in ``.cleaned`` in the place of closed ones, which it begins with.

        False, and the files are removed, where those are not in this log any more: it was truncated meanwhile. What
        a crash leaves half-done is finished or undone at the next start. Readers keep the files they have.
        """
        self._check_online()
        first = self._bases.index(base_offset) if base_offset in self._bases else 0
        last = first + len(replaced)
        try:
            if not replaced or last >= len(self._segments) or self._segments[first:last] != list(replaced):
                self.discard_cleaned()
                return False
            doomed = swap(self._files, self.path, base_offset, replaced)
            for segment in replaced:
                if segment.base_offset != base_offset:
                    self.producers.remove_snapshot(segment.base_offset)
            fresh = Segment.load(self.path, base_offset, self.config, self._files, 0)
        except (OSError, IndexCorrupt) as error:
            raise self._fail("replacing segments", OSError(str(error))) from error
        self._changes += 1
        self._segments[first:last] = [fresh]
        self._bases[first:last] = [base_offset]
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
        if not self.closed:
            remove_files(self._files, self.path, doomed)

    def discard_cleaned(self) -> None:
        """Removes what an interrupted cleaning has written. Raises OSError."""
        discard_cleaned(self._files, self.path)

    # the disk

    def flush(self) -> None:
        """Syncs everything; the recovery point is the log's end then."""
        self._check_online()
        try:
            self._flush_to(self._end_offset)
        except OSError as error:
            raise self._fail("flush", error) from error
        self._unflushed_records = 0

    def flush_if_due(self, now_ms: int) -> bool:
        """Syncs when ``flush.ms`` have gone by since the last time and something was written."""
        if not self._unflushed_records or now_ms - self._flushed_ms < self.config.flush_ms:
            return False
        self.flush()
        self._flushed_ms = now_ms
        return True

    def flush_closed(self, end_offset: int) -> None:
        """Syncs closed segments below ``end_offset``; ``defer_flush`` is handed this."""
        try:
            self._flush_to(end_offset)
        except OSError as error:
            raise self._fail("flush", error) from error

    def _flush_to(self, end_offset: int, *, closing: bool = False) -> None:
        if self.recovery_point >= end_offset and not (closing and self._was_written):
            return
        segments = list(self._segments)
        active = segments[-1]
        for segment in segments[:-1]:
            if segment.base_offset < end_offset and segment.next_offset > self.recovery_point:
                segment.sync()
        if closing or active.base_offset < end_offset:
            active.sync(indexes=closing)
        self.epochs.sync()
        if self._synced_base != active.base_offset:
            self._files.sync_dir(self.path)
            self._synced_base = active.base_offset
        self.recovery_point = max(self.recovery_point, end_offset)

    def close(self) -> None:
        """Writes indexes and producer snapshot, syncs all. The log cannot be used afterwards."""
        if not self.closed and self.offline is None:
            self.closed = True
            try:
                if self._was_written:
                    self._segments[-1].save_indexes(final=True)
                self.producers.save(sync=True)
                self._flush_to(self._end_offset, closing=True)
            except OSError as error:
                raise self._fail("close", error) from error
        self._let_go("is closed")

    def abandon(self) -> None:
        """Lets the files go as they are: nothing is written, as if the process had been killed."""
        self._let_go("was abandoned")

    def retire(self) -> None:
        """Takes the log out of service; somebody else removes its directory."""
        self._let_go("was deleted")

    def delete(self) -> None:
        """Removes all files and the directory."""
        self.retire()
        try:
            for name in self._files.list(self.path):
                self._files.remove(self.path / name)
            self._files.remove(self.path)
        except OSError as error:
            raise self._fail("delete", error) from error

    def _let_go(self, state: str) -> None:
        self.closed = True
        self._forget_files(self.offline or state)

    def _forget_files(self, state: str) -> None:
        self.offline = state
        for segment in self._segments:
            segment.forget()

    def _check_online(self) -> None:
        if self.offline is not None:
            raise KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name} {self.offline}")

    def _fail_late(self, error: OSError) -> None:
        """A slice could not be read when its time came."""
        if self.offline is None and not self.closed:
            self._fail("read", error)

    def _fail(self, action: str, error: OSError) -> KafkaError:
        """The log goes offline with one line; what is on disk is recovered at the next start."""
        if action in _WITHOUT_TRACE and is_exhausted(error):
            return KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name}: no descriptor is left: {error}")
        self._forget_files(f"is offline since {action} failed: {error}")
        _log.error("%s %s", self.path, self.offline)
        return KafkaError(ErrorCode.kafka_storage_error, f"{self.path.name} {self.offline}")
