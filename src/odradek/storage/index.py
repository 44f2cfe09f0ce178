"""The two sparse indexes of a segment, in Kafka's file formats.

``.index``: (offset - base offset, position), 4 + 4 bytes; ``.timeindex``: (timestamp, offset - base offset), 8 + 4
bytes; big-endian, both columns rising. An entry is added every ``index.interval.bytes``, so a lookup is a binary search
in here plus a scan of about that many bytes in the segment.

The active segment's indexes live in memory and are written in pieces; those of closed segments are mapped when a
lookup first needs them. Whatever a kill -9 leaves behind is rebuilt from the segment, so pieces need no sync. The file
of an empty index comes when its segment is closed or synced.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from odradek.storage.descriptors import is_exhausted
from odradek.storage.files import Files, Mapped, View

PIECE_ENTRIES = 64


class IndexCorrupt(Exception):
    """The file cannot be an index of its segment; it has to be rebuilt."""


class OffsetPosition(NamedTuple):
    offset: int
    position: int


class TimestampOffset(NamedTuple):
    """``timestamp`` in ms; ``offset`` is the last one of the batch that has it."""

    timestamp: int
    offset: int


class _SparseIndex:
    """Entries of one struct format; the subclass says what they mean."""

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
        return len(self._data())

    @property
    def entries(self) -> int:
        return self.size // self.entry.size

    def open_for_append(self) -> bytearray:
        """Takes the entries into memory."""
        memory = self._memory
        if memory is None:
            memory = self._memory = bytearray(self._data())
            self._written = len(memory)
            self._view = None
        return memory

    def begin(self) -> None:
        """An empty index, of which there is no file."""
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
        """The segment is closed: the file becomes the index, memory is given back."""
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

    def _data(self) -> Mapped:
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
                if not is_exhausted(error):  # else the entries go with the next piece
                    raise

    def _slot_at_most(self, target: int, column: int) -> int:
        """The last slot whose column is at most ``target``; -1 when all are larger."""
        data = self._data()
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
        first, second = self.entry.unpack_from(self._data(), slot * self.entry.size)
        return first, second

    def _check_size(self) -> None:
        if self.size % self.entry.size:
            raise IndexCorrupt(f"{self.path}: {self.size} bytes are no whole number of entries")


class OffsetIndex(_SparseIndex):
    """Which batch ends at an offset, and where it begins in the segment."""

    entry = struct.Struct(">ii")
    __slots__ = ()

    def append(self, offset: int, position: int) -> None:
        """``offset`` is the last one of the batch that begins at ``position``."""
        self._put(offset - self.base_offset, position)

    def lookup(self, offset: int) -> OffsetPosition:
        """The last entry at or before ``offset``; the segment's begin when there is none."""
        slot = self._slot_at_most(offset - self.base_offset, 0)
        if slot < 0:
            return OffsetPosition(self.base_offset, 0)
        relative, position = self._get(slot)
        return OffsetPosition(self.base_offset + relative, position)

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
        """Raises IndexCorrupt when this cannot be the index of a segment of that size."""
        self._check_size()
        if self.entries:
            relative, position = self._get(self.entries - 1)
            if (relative <= 0 and self.entries > 1) or relative < 0 or not 0 <= position < segment_bytes:
                raise IndexCorrupt(f"{self.path}: last entry is offset +{relative} at position {position}")


class TimeIndex(_SparseIndex):
    """The largest timestamp up to an offset."""

    entry = struct.Struct(">qi")
    __slots__ = ()

    def append(self, timestamp: int, offset: int) -> None:
        """Ignored unless ``timestamp`` is larger than any before."""
        if timestamp > self.last.timestamp:
            self._put(timestamp, offset - self.base_offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """The last entry whose timestamp is at most ``timestamp``; (-1, base offset) when there is none."""
        slot = self._slot_at_most(timestamp, 0)
        if slot < 0:
            return TimestampOffset(-1, self.base_offset)
        found, relative = self._get(slot)
        return TimestampOffset(found, self.base_offset + relative)

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
        """Raises IndexCorrupt when timestamps or offsets cannot be."""
        self._check_size()
        if self.entries:
            timestamp, relative = self._get(self.entries - 1)
            if timestamp < self._get(0)[0] or relative < 0 or (self.entries > 1 and relative == 0):
                raise IndexCorrupt(f"{self.path}: last entry is timestamp {timestamp} at offset +{relative}")
