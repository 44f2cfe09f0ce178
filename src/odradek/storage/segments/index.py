"""The two sparse indexes of a segment, in Kafka's file formats.

An entry of ``.index`` is (relative offset, position), 4 + 4 bytes. An entry of ``.timeindex`` is (timestamp, relative
offset), 8 + 4 bytes. Relative offsets count from the segment's base offset. Numbers are big-endian, and both columns
are ascending. An entry is added every ``index.interval.bytes``. So a lookup is a binary search in the index and a scan
of about this number of bytes in the segment.

The indexes of the active segment are in memory and written in pieces. The indexes of closed segments are mapped at the
first lookup. Pieces need no sync: after a crash the indexes are rebuilt from the segment. An empty index gets its file
when its segment is closed or synced.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from odradek.storage.disk.files import Files, Mapped, View
from odradek.storage.disk.write_failures import is_passing

PIECE_ENTRIES = 64


class IndexCorrupt(Exception):
    """A file is not a valid index of its segment and must be rebuilt."""


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """A timestamp in ms and the last offset of its batch."""

    timestamp: int
    offset: int


class IndexFile:
    """Entries of one struct format in a file. The subclasses define their meaning."""

    # Subclasses use _check_size, _memory, _put, _slot_at_most and _view.

    entry: struct.Struct
    __slots__ = ("_files", "_memory", "_view", "_written", "base_offset", "path")

    def __init__(self, path: Path, base_offset: int, files: Files) -> None:
        self.path = path
        self.base_offset = base_offset
        self._files = files
        self._memory: bytearray | None = None
        self._view: View | None = None
        self._written = 0

    @property
    def is_saved(self) -> bool:
        """Whether the file has every entry."""
        return self._memory is None or len(self._memory) == self._written

    @property
    def size(self) -> int:
        return len(self.data())

    @property
    def entries(self) -> int:
        return self.size // self.entry.size

    def open_for_append(self) -> bytearray:
        """Reads the entries into memory."""
        memory = self._memory
        if memory is None:
            memory = self._memory = bytearray(self.data())
            self._written = len(memory)
            self._view = None
        return memory

    def begin(self) -> None:
        """Starts an empty index without a file."""
        self._memory = bytearray()
        self._view = None
        self._written = 0

    def save(self) -> None:
        """Writes entries that are only in memory."""
        memory = self._memory
        if memory is not None and len(memory) > self._written:
            self._write(memory)

    def _write(self, memory: bytearray) -> None:
        file = self._files.open(self.path, create=True)
        try:
            if file.size != self._written:
                file.truncate(self._written)
            if len(memory) > self._written:
                file.append([memoryview(memory)[self._written :]])
        finally:
            file.close()
        self._written = len(memory)

    def sync(self) -> None:
        if self._memory is not None:
            self._write(self._memory)
        file = self._files.open(self.path)
        try:
            file.sync()
        finally:
            file.close()

    def seal(self) -> None:
        """Writes the index of a closed segment and frees its memory."""
        if self._memory is not None:
            self._write(self._memory)
        self._memory = None

    def forget(self) -> None:
        self._memory = None
        self._view = None

    def truncate_entries(self, entries: int) -> None:
        size = entries * self.entry.size
        memory = self.open_for_append()
        if size < len(memory):
            del memory[size:]
        if size < self._written:
            file = self._files.open(self.path, create=True)
            try:
                file.truncate(size)
            finally:
                file.close()
            self._written = size

    def data(self) -> Mapped:
        if self._memory is not None:
            return self._memory
        if self._view is None:
            self._view = self._files.lazy_view(self.path)
        return self._view.data()

    def _put(self, *values: int) -> None:
        memory = self.open_for_append()
        memory += self.entry.pack(*values)
        if len(memory) - self._written >= PIECE_ENTRIES * self.entry.size:
            try:
                self.save()
            except OSError as error:
                if not is_passing(error):  # then the next piece includes these entries
                    raise

    def _slot_at_most(self, target: int, column: int) -> int:
        """Returns the last slot whose column is at most ``target``; -1 if all are larger."""
        data = self.data()
        unpack, size = self.entry.unpack_from, self.entry.size
        low, high = 0, len(data) // size
        while low < high:
            middle = (low + high) >> 1
            if unpack(data, middle * size)[column] <= target:
                low = middle + 1
            else:
                high = middle
        return low - 1

    def _get(self, slot: int) -> tuple[int, int]:
        first, second = self.entry.unpack_from(self.data(), slot * self.entry.size)
        return first, second

    def _check_size(self) -> None:
        if self.size % self.entry.size:
            raise IndexCorrupt(f"{self.path}: its size, {self.size} bytes, is not a multiple of the entry size")


class OffsetIndex(IndexFile):
    """The last offsets of batches and their positions in the segment."""

    entry = struct.Struct(">ii")
    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """Adds the batch at ``position`` with the last offset ``offset``."""
        self._put(offset - self.base_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """Returns the last entry at or before ``offset``, or the start of the segment."""
        slot = self._slot_at_most(offset - self.base_offset, 0)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._get(slot)
        return OffsetPosition(self.base_offset + relative, position)

    def first_at_or_after(self, position: int) -> int | None:
        """Returns the offset of the first entry at or after ``position`` in the segment; None if there is none.

        For the position of the first entry it returns the offset of the second entry, as in Kafka's binary search.
        """
        slot = self._slot_at_most(position - 1, 1) + 1
        if not slot and self.entries and self._get(0)[1] == position:
            slot = 1
        return self.base_offset + self._get(slot)[0] if slot < self.entries else None

    @property
    def last(self) -> OffsetPosition:
        if not self.entries:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._get(self.entries - 1)
        return OffsetPosition(self.base_offset + relative, position)

    def truncate_to(self, offset: int) -> None:
        """Drops entries at and after ``offset``."""
        self.truncate_entries(self._slot_at_most(offset - self.base_offset - 1, 0) + 1)

    def check(self, segment_bytes: int) -> None:
        """Raises IndexCorrupt if this cannot be the index of a segment of that size."""
        self._check_size()
        if self.entries:
            relative, position = self._get(self.entries - 1)
            if (relative <= 0 and self.entries > 1) or relative < 0 or not 0 <= position < segment_bytes:
                raise IndexCorrupt(f"{self.path}: its last entry is offset +{relative} at position {position}")


class TimeIndex(IndexFile):
    """The largest timestamp up to an offset."""

    entry = struct.Struct(">qi")
    __slots__ = ()

    def append(self, timestamp: int, offset: int) -> None:
        """Adds an entry if ``timestamp`` is larger than all before."""
        if timestamp > self.last.timestamp:
            self._put(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Returns the last entry with a timestamp of at most ``timestamp``, or (-1, base offset)."""
        slot = self._slot_at_most(timestamp, 0)
        if slot < 0:
            return TimestampOffset(-1, self.base_offset)
        entry_timestamp, relative = self._get(slot)
        return TimestampOffset(entry_timestamp, self.base_offset + relative)

    @property
    def last(self) -> TimestampOffset:
        if not self.entries:
            return TimestampOffset(-1, self.base_offset)
        timestamp, relative = self._get(self.entries - 1)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def truncate_to(self, offset: int) -> None:
        """Drops entries at and after ``offset``."""
        self.truncate_entries(self._slot_at_most(offset - self.base_offset - 1, 1) + 1)

    def check(self) -> None:
        """Raises IndexCorrupt if timestamps or offsets are not valid."""
        self._check_size()
        if self.entries:
            timestamp, relative = self._get(self.entries - 1)
            if timestamp < self._get(0)[0] or relative < 0 or (self.entries > 1 and relative == 0):
                raise IndexCorrupt(f"{self.path}: its last entry is timestamp {timestamp} at offset +{relative}")
