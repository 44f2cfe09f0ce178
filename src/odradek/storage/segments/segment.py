"""A segment of a log: record batches in one file, whose name is its base offset, and its indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from odradek.batches.header import (
    EXTENT,
    HEADER_BYTES,
    LOG_OVERHEAD,
    BatchHeader,
    Buffer,
    check_header,
    read_header,
)
from odradek.batches.search import at_or_after, search
from odradek.batches.steps import BatchSteps
from odradek.core.errors import CorruptRecord
from odradek.core.refcount import has_only_references
from odradek.storage.config import LogConfig
from odradek.storage.disk.files import File, Files
from odradek.storage.disk.write_failures import is_passing
from odradek.storage.segments.aborted_index import AbortedEntry, AbortedIndex
from odradek.storage.segments.index import IndexCorrupt, OffsetIndex, TimeIndex
from odradek.storage.segments.index_digests import IndexDigest
from odradek.storage.segments.salvage import MAX_RELATIVE_OFFSET, BadBytes, FileCheck, GoodBatch, Surroundings, rewrite

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
DELETED_SUFFIX = ".deleted"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_PROBE_BYTES = 8192
_STEP_BATCHES = 100
_UNKNOWN = -1
_UNKNOWN_SURROUNDINGS = Surroundings()


def file_name(base_offset: int, suffix: str) -> str:
    """Returns Kafka's file name: the base offset in 20 digits and the suffix."""
    return f"{base_offset:020d}{suffix}"


def base_offsets(names: Iterable[str], suffix: str) -> list[int]:
    """Returns the base offsets in the names of files with this suffix, in order."""
    stems = (name.removesuffix(suffix) for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if stem.isdigit())


class AppendedBatch(NamedTuple):
    """Offsets, largest timestamp and size of a batch to append."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    size: int


class FoundOffset(NamedTuple):
    """The result of a search by time; ``leader_epoch`` is -1 if it is unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


class Segment:
    """A segment. ``next_offset`` is the offset after the last record, ``size`` the bytes in the file.

    ``has_aborted``: the segment may have markers of aborted transactions, so it may have a ``.txnindex`` file.

    Files are opened and indexes are loaded at their first use, because most segments are rarely used.
    """

    __slots__ = (
        "_aborted_index", "_bytes_since_index", "_digest", "_file", "_first_timestamp", "_index_bytes",
        "_is_ready", "_offset_index", "_time_index", "base_offset", "config", "created_ms", "directory", "files",
        "has_aborted", "max_timestamp", "max_timestamp_offset", "next_offset", "removed", "size",
    )  # fmt: skip

    def __init__(self, directory: Path, base_offset: int, config: LogConfig, files: Files, now_ms: int) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.created_ms = now_ms
        self.removed = False
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.config = config
        self.has_aborted = False
        self._aborted_index: AbortedIndex | None = None
        self._digest: IndexDigest | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self.files = files
        self._file: File | None = None
        self._first_timestamp: int | None = None
        self._bytes_since_index = 0
        self._index_bytes = _UNKNOWN
        self._is_ready = False

    def path(self, suffix: str) -> Path:
        return self.directory / file_name(self.base_offset, suffix)

    @property
    def file(self) -> File:
        if self._file is None:
            is_new = not self.size and not self.removed
            self._file = self.files.lazy(self.path(LOG_SUFFIX), create=is_new)
        return self._file

    def read_from(self, file: File, size: int) -> None:
        """Lets the segment read ``size`` bytes of another file than its own, for example of a compacted segment before
        it has its name."""
        self._file, self.size = file, size

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._offset_index = OffsetIndex(self.path(INDEX_SUFFIX), self.base_offset, self.files)
            if not self.size:
                self._offset_index.begin()
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._time_index = TimeIndex(self.path(TIME_INDEX_SUFFIX), self.base_offset, self.files)
            if not self.size:
                self._time_index.begin()
        return self._time_index

    @property
    def aborted_index(self) -> AbortedIndex:
        if self._aborted_index is None:
            self._aborted_index = AbortedIndex(self.path(TXN_INDEX_SUFFIX), self.base_offset, self.files, self._digest)
            if not self.has_aborted:
                self._aborted_index.begin()
        return self._aborted_index

    def add_aborted(self, entry: AbortedEntry) -> None:
        """Adds an aborted transaction, whose marker is in the segment. Raises OSError."""
        self.aborted_index.append(entry)
        self.has_aborted = True
        self._digest = None

    def digest(self) -> IndexDigest | None:
        """Returns the digest of the index of aborted transactions; None without entries. Raises OSError."""
        if self._digest is None and self.has_aborted:
            self._digest = self.aborted_index.digest()
        return self._digest

    def drop_aborted(self) -> list[AbortedEntry]:
        """Removes the index of aborted transactions and returns its entries."""
        old = self.aborted_index.all_entries() if self.has_aborted else []
        self.has_aborted, self._aborted_index, self._digest = False, None, None
        self.files.remove(self.path(TXN_INDEX_SUFFIX))
        return old

    # opening

    @classmethod
    def create(cls, directory: Path, base_offset: int, config: LogConfig, files: Files, now_ms: int) -> Segment:
        """Returns a new, empty segment for appends. An existing log file is truncated.

        The constructor makes a segment that has no file before its first record; no log file may exist for it.
        """
        segment = cls(directory, base_offset, config, files, now_ms)
        try:
            segment.file.truncate(0)
        except OSError:
            segment.file.close()
            files.remove(segment.path(LOG_SUFFIX))  # the log goes on in the earlier segment, beyond this base offset
            raise
        return segment

    @classmethod
    def load(
        cls, directory: Path, base_offset: int, config: LogConfig, files: Files, now_ms: int, *, has_aborted: bool
    ) -> Segment:
        """Loads a segment from the disk without a check of CRCs. ``has_aborted``: it has a ``.txnindex`` file.

        Raises IndexCorrupt if an index is missing or invalid, or if the file does not end with a whole batch. Then the
        caller calls ``recover``.
        """
        segment = cls(directory, base_offset, config, files, now_ms)
        segment.size = files.size(segment.path(LOG_SUFFIX))
        if not segment.size:
            if segment.claimed_end() > base_offset:
                raise IndexCorrupt(f"{segment.path(LOG_SUFFIX)} is empty, but its indexes are not")
            return segment
        for index in (segment.offset_index, segment.time_index):
            if not files.exists(index.path):
                raise IndexCorrupt(f"{index.path} is missing")
        segment.offset_index.check(segment.size)
        segment.time_index.check()
        segment.has_aborted = has_aborted
        if has_aborted:
            segment.aborted_index.check()
        segment.max_timestamp, segment.max_timestamp_offset = segment.time_index.last
        end = start = segment.offset_index.last.position
        try:
            for position, header in segment.batches_from(start):
                end = position + header.size_in_bytes
                if header.base_offset < segment.next_offset or (position == start and not segment._starts(header)):
                    raise CorruptRecord(f"the batch at position {position} has the base offset {header.base_offset}")
                segment._note(header.last_offset, header.max_timestamp)
        except CorruptRecord as error:
            raise IndexCorrupt(f"{segment.path(LOG_SUFFIX)}: {error}") from error
        if segment.time_index.last.offset >= segment.next_offset > base_offset:
            raise IndexCorrupt(f"{segment.path(LOG_SUFFIX)} ends before the last entry of its time index")
        if end != segment.size:
            raise IndexCorrupt(f"{segment.path(LOG_SUFFIX)} has {segment.size - end} bytes after its last batch")
        segment._bytes_since_index = segment.size - start
        return segment

    def _starts(self, header: BatchHeader) -> bool:
        """Returns whether a batch is the one of the offset index's last entry."""
        index = self.offset_index
        return not index.entries or index.last.offset == header.last_offset

    def close_file(self) -> None:
        """Closes the file and drops saved indexes. Their next use opens them again."""
        self._file = None
        self._is_ready = False
        if self._offset_index is not None and self._offset_index.is_saved:
            self._offset_index = None
        if self._time_index is not None and self._time_index.is_saved:
            self._time_index = None
        if self._aborted_index is not None and self._aborted_index.is_saved:
            self.digest()
            self._aborted_index = None

    def claimed_end(self) -> int:
        """Returns the end offset of the segment by its indexes on the disk, without a check."""
        claimed = self.base_offset
        for kind, suffix in ((OffsetIndex, INDEX_SUFFIX), (TimeIndex, TIME_INDEX_SUFFIX)):
            path = self.path(suffix)
            index = kind(path, self.base_offset, self.files)
            if self.files.exists(path) and index.entries:
                claimed = max(claimed, index.last.offset + 1)
        return claimed

    def check_bytes(self, around: Surroundings) -> FileCheck:
        """Returns a check of the whole file, batch by batch."""
        return FileCheck(self.file, self.files.size(self.path(LOG_SUFFIX)), self.base_offset, around)

    def recover(
        self,
        on_batch: Callable[[BatchHeader, Buffer, int], None],
        around: Surroundings = _UNKNOWN_SURROUNDINGS,
        on_damage: Callable[[Sequence[BadBytes], Sequence[GoodBatch]], object] | None = None,
    ) -> int:
        """Reads the whole file, checks each CRC, removes all that is no valid batch and rebuilds both indexes.

        It calls ``on_batch(header, buffer, position in buffer)`` for each valid batch, and ``on_damage`` with the bad
        bytes and the batches with a wrong base offset, if there are any, before it changes the file. Returns the number
        of removed bytes. The index of aborted transactions is empty then, because the producer states are not known
        here.
        """
        self._begin_indexes()
        self.next_offset = self.max_timestamp_offset = self.base_offset
        self.max_timestamp = -1
        self._first_timestamp = None
        self._bytes_since_index = 0
        path = self.path(LOG_SUFFIX)
        file_size = self.files.size(path)
        self.size = 0
        bad: list[BadBytes] = []
        mended: list[GoodBatch] = []
        for part in FileCheck(self.file, file_size, self.base_offset, around):
            if isinstance(part, BadBytes):
                bad.append(part)
                continue
            header = part.header
            self._index(header.last_offset, header.max_timestamp, header.size_in_bytes)
            on_batch(header, part.buffer, part.at)
            if part.is_mended:
                mended.append(part._replace(buffer=b""))
        if (bad or mended) and on_damage is not None:
            on_damage(bad, mended)
        if self.has_aborted:
            self.has_aborted, self._aborted_index, self._digest = False, None, None
            self.files.remove(self.path(TXN_INDEX_SUFFIX))
        if mended or (bad and bad[0].end < file_size):
            self._file = None
            rewrite(self.files, path, file_size, bad, mended)
        elif bad:
            self.file.truncate(self.size)
        self.seal()
        return file_size - self.size

    # appending

    def _begin_indexes(self) -> None:
        self.offset_index.begin()
        self.time_index.begin()
        self._index_bytes = _UNKNOWN

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Returns whether a batch with this size, last offset and timestamp needs a new segment."""
        if self.size == 0:
            return last_offset - self.base_offset > MAX_RELATIVE_OFFSET
        config = self.config
        if self.size + size > config.segment_bytes or last_offset - self.base_offset > MAX_RELATIVE_OFFSET:
            return True
        first = self.first_timestamp
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        longest = config.max_segment_ms - (self._jitter_ms if config.segment_jitter_ms else 0)
        return waited > longest or self._next_index_bytes() > config.segment_index_bytes

    def _next_index_bytes(self) -> int:
        """Returns the size of the larger index after its next entry. The time index gets one more entry at the end."""
        size = self._index_bytes
        if size == _UNKNOWN:
            offsets, times = self.offset_index, self.time_index
            size = max(offsets.size + offsets.entry.size, times.size + 2 * times.entry.size)
            self._index_bytes = size
        return size

    @property
    def _jitter_ms(self) -> int:
        """The ms by which this segment rolls earlier: a pseudorandom number from its path, so a restart does not change
        it."""
        config = self.config
        path = self.path(LOG_SUFFIX)
        return crc32(f"{path.parent.name}/{path.name}".encode()) % min(config.segment_jitter_ms, config.segment_ms)

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Writes ``parts``, the bytes of ``batches``, with one system call.

        Raises OSError. Then the segment is as before, and its file too, unless even the removal of bytes failed.
        """
        if not self._is_ready:
            self._open_indexes()
        try:
            self.file.append(parts)
        except OSError:
            with suppress(OSError):  # the log tries the removal again before the next append
                self.cut_torn_end()
            raise
        for batch in batches:
            if self._first_timestamp is None:
                self._first_timestamp = batch.max_timestamp
            self._index(batch.last_offset, batch.max_timestamp, batch.size)

    def _open_indexes(self) -> None:
        """Reads the indexes into memory before the first append, because an append must not fail after its write."""
        if not self.size:
            self._begin_indexes()
        self.offset_index.open_for_append()
        self.time_index.open_for_append()
        self._is_ready = True

    def cut_torn_end(self) -> None:
        """Removes the bytes of a failed append from the file. Raises OSError."""
        if (self.size or self.files.exists(self.path(LOG_SUFFIX))) and self.file.size > self.size:
            self.file.truncate(self.size)

    def try_append(self, size: int) -> None:
        """Appends bytes to the file and removes them. Raises OSError, also then without these bytes."""
        try:
            self.file.append([bytes(size)])
        finally:
            self.cut_torn_end()

    def _index(self, last_offset: int, max_timestamp: int, size: int) -> None:
        self._note(last_offset, max_timestamp)
        if self._bytes_since_index > self.config.index_interval_bytes:
            self.offset_index.append(last_offset, self.size)
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index = 0
            self._index_bytes = _UNKNOWN
        self._bytes_since_index += size
        self.size += size

    def _note(self, last_offset: int, max_timestamp: int) -> None:
        self.next_offset = last_offset + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset

    def seal(self) -> None:
        """Closes the segment for appends: writes the indexes, and the last entry of the time index."""
        self._is_ready = False
        if self.size:
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
        self.offset_index.seal()
        self.time_index.seal()
        if self.has_aborted:
            self.aborted_index.seal()

    def save_indexes(self, *, final: bool = False) -> None:
        """Writes the indexes. ``final`` adds the last entry of the time index, for a clean shutdown."""
        if final and self.size:
            self._index_bytes = _UNKNOWN
            self.time_index.append(self.max_timestamp, self.max_timestamp_offset)
        self.offset_index.save()
        self.time_index.save()
        if self.has_aborted:
            self.aborted_index.save()

    def sync(self, *, indexes: bool = True) -> None:
        """Syncs the files. A thread may call it for a closed segment, even while the segment is removed.

        The active segment needs no sync of its indexes, because a start after a crash rebuilds them.
        """
        try:
            self.file.sync()
            if indexes:
                self.offset_index.sync()
                self.time_index.sync()
                if self.has_aborted:
                    self.aborted_index.sync()
        except FileNotFoundError:
            if not self.removed:
                raise

    # reading

    def batches_from(self, position: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """Yields position and header of each batch from ``position`` on. It reads few bytes besides the headers.

        It ends before a batch that is cut off. Raises CorruptRecord and OSError.
        """
        end = self.size if end is None else end
        buffer = b""
        start = position
        while position + HEADER_BYTES <= end:
            at = position - start
            if at + HEADER_BYTES > len(buffer):
                start, at = position, 0
                buffer = self.file.pread(start, _PROBE_BYTES)
                if len(buffer) < HEADER_BYTES:
                    return
            header = read_header(buffer, at)
            check_header(header)
            if position + header.size_in_bytes > end:
                return
            yield position, header
            position += header.size_in_bytes

    def locate(self, offset: int) -> tuple[int, BatchHeader] | None:
        """Returns position and header of the first batch that ends at or after ``offset``; None if there is none.

        Raises CorruptRecord and OSError.
        """
        before, position = self.offset_index.lookup(offset)
        end = self.size
        pread, unpack = self.file.pread, EXTENT.unpack_from
        while position + HEADER_BYTES <= end:
            start = position
            buffer = pread(start, _PROBE_BYTES)
            last = len(buffer) - HEADER_BYTES
            if last < 0:
                return None
            at = 0
            while at <= last:
                base_offset, length, delta = unpack(buffer, at)
                if length < HEADER_BYTES - LOG_OVERHEAD:
                    raise CorruptRecord(f"{self.path(LOG_SUFFIX)} has no batch at position {start + at}")
                last_offset = base_offset + delta
                if last_offset < before:
                    raise CorruptRecord(
                        f"{self.path(LOG_SUFFIX)} has a batch with base offset {base_offset} at position {start + at}, "
                        f"after offset {before}"
                    )
                before = last_offset
                if last_offset >= offset:
                    header = read_header(buffer, at)
                    check_header(header)
                    return (start + at, header) if start + at + header.size_in_bytes <= end else None
                at += length + LOG_OVERHEAD
            position = start + at
        return None

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file.pread(position, header.size_in_bytes)

    def search_timestamp(self, timestamp: int, start_offset: int) -> BatchSteps[FoundOffset | None]:
        """Finds the first record at or after ``start_offset`` with at least this timestamp (behaviour 48).

        Returns None if there is none, or if the segment is removed meanwhile.
        """
        known = max(self.time_index.lookup(timestamp).offset, start_offset)
        batches = self.batches_from(self.offset_index.lookup(known).position)
        for number, (position, header) in enumerate(batches, 1):
            if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
                wanted = at_or_after(timestamp, start_offset, header)
                matches = yield from search(self.read_batch(position, header), header, wanted)
                if matches:
                    return FoundOffset(matches[0].offset, matches[0].timestamp, header.leader_epoch)
            if number % _STEP_BATCHES == 0:
                yield None
            if self.removed:
                return None
        return None

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, which ``must_roll`` uses; -1 without a batch."""
        if self._first_timestamp is None:
            first = next(self.batches_from(0), None)
            if first is None:
                return -1
            self._first_timestamp = first[1].max_timestamp
        return self._first_timestamp

    @property
    def age_timestamp(self) -> int:
        """The time for retention: the largest timestamp, or else the file's modification time."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return self.files.modified_ms(self.path(LOG_SUFFIX))

    # truncation and removal

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Removes the batch with ``offset`` and all later batches."""
        self._index_bytes = _UNKNOWN
        place = self.locate(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if place is None:
            return
        self.file.truncate(place[0])
        self.size = place[0]
        self.next_offset = self.base_offset
        if self.has_aborted:
            self.aborted_index.truncate_to(place[1].base_offset)
            self._digest = None
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last
        start = self.offset_index.last.position
        for _, header in self.batches_from(start):
            self._note(header.last_offset, header.max_timestamp)
        self._bytes_since_index = self.size - start
        if not self.size:
            self._first_timestamp = None
            self.created_ms = now_ms

    def remove(self) -> None:
        """Removes the files, the log file first: the next start removes indexes without a log file."""
        self.removed = True
        self.forget()
        for suffix in SUFFIXES:
            self.files.remove(self.path(suffix))

    def mark_deleted(self) -> list[Path]:
        """Renames the files, the log file first, to ``.deleted`` names and returns them. A start removes such files."""
        self.removed = True
        self.forget()
        marked = []
        for suffix in SUFFIXES:
            path = self.path(suffix)
            if self.files.exists(path):
                marked += _rename_or_remove(self.files, path, path.with_name(path.name + DELETED_SUFFIX))
        return marked

    def forget(self) -> None:
        """Closes the files. A log file that slices still use stays open for them, because it may be removed next."""
        file, self._file = self._file, None
        if file is not None and not has_only_references(file, 1):
            with suppress(OSError):  # if the file cannot be kept open, a later read raises an error
                file.keep()
        self._offset_index = self._time_index = self._aborted_index = None


def _rename_or_remove(files: Files, path: Path, doomed: Path) -> list[Path]:
    """Renames a file that is to be removed later. Returns its new name in a list, or an empty list.

    A full disk may have no room for a longer name. Then it removes the file; readers keep it open. Raises OSError."""
    try:
        files.rename(path, doomed)
    except OSError as error:
        if not is_passing(error):
            raise
        files.remove(path)
        return []
    return [doomed]
