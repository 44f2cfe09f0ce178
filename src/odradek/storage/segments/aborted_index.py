"""The ``.txnindex`` file of a segment: the aborted transactions whose markers are in the segment, in Kafka's format.

An entry has a version (int16, 0), the producer id, the first offset, the last offset (that of the marker) and the last
stable offset after the marker, each int64. The entries are in the order of the markers. A segment without an aborted
transaction has no file. Each entry is written at once; after a crash, recovery writes the file again from the log.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.core.crc import crc32c
from odradek.storage.disk.files import Files, Mapped
from odradek.storage.disk.write_failures import is_passing
from odradek.storage.segments.index import IndexCorrupt, IndexFile
from odradek.storage.segments.index_digests import IndexDigest

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET_COLUMN = 3
_LAST_STABLE_COLUMN = 4
_BLOCK = 256
_FIRST_OFFSETS = struct.Struct(">" + "10xq16x" * _BLOCK)
"""The first offsets of a block of entries."""


class AbortedEntry(NamedTuple):
    """An aborted transaction. ``last_offset`` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex(IndexFile):
    """The aborted transactions of a segment.

    While a long transaction is open, thousands of others may be aborted. A reader before the last stable offset has to
    look at each of them, because the first offsets of the entries are in no order. So the index keeps the smallest
    first offset of each full block of 256 entries. A reader skips the blocks whose transactions all begin after its
    range.
    """

    entry = _ENTRY
    __slots__ = ("_checked", "_known", "_smallest")

    def __init__(self, path: Path, base_offset: int, files: Files, known: IndexDigest | None = None) -> None:
        """``known``: the digest of the entries. With it, each read of another file raises OSError."""
        super().__init__(path, base_offset, files)
        self._smallest: list[int] = []
        self._known = known
        self._checked: Mapped | None = None

    def data(self) -> Mapped:
        data = super().data()
        if self._memory is None and self._known is not None and data is not self._checked:
            if self._digest_of(data) != self._known:
                self._view = None
                reason = "is not the index that was written; restart the broker, because a start rebuilds it"
                raise OSError(errno.EIO, reason, str(self.path))
            self._checked = data
        return data

    def _digest_of(self, data: Mapped) -> IndexDigest:
        return IndexDigest(self.base_offset, len(data) // self.entry.size, crc32c(bytes(data)))

    def digest(self) -> IndexDigest | None:
        """Returns the digest of the entries; None without entries. Raises OSError."""
        digest = self._digest_of(self.data())
        if not digest.entries:
            return None
        if self._memory is None:
            self._known = digest
        return digest

    def append(self, entry: AbortedEntry) -> None:
        """Writes an entry. Raises OSError. After a passing error the next write includes it."""
        self._put(_VERSION, *entry)
        try:
            self.save()
        except OSError as error:
            if not is_passing(error):
                raise

    def sync(self) -> None:
        if self.size:
            super().sync()

    def seal(self) -> None:
        """Writes the index of a closed segment and frees its memory."""
        if self.size:
            known = self.digest()
            super().seal()
            self._known = known

    def collect(self, start: int, end: int, aborted: list[AbortedTransaction]) -> bool:
        """Adds the transactions with records in [``start``, ``end``). Returns True if no later segment
        can have one: an entry's last stable offset is at or above ``end``.
        """
        slot = self._slot_at_most(start - 1, _LAST_OFFSET_COLUMN) + 1
        entries = self.entries
        stop = max(self._slot_at_most(end - 1, _LAST_STABLE_COLUMN) + 1, slot)  # the last entry to look at
        view = memoryview(self.data())
        while slot <= stop and slot < entries:
            block = slot // _BLOCK
            block_end = min((block + 1) * _BLOCK, stop + 1, entries)
            if self._smallest_first_offset(block, view) < end:
                part = view[slot * _ENTRY.size : block_end * _ENTRY.size]
                for _, producer_id, first_offset, _, _ in _ENTRY.iter_unpack(part):
                    if first_offset < end:
                        aborted.append(AbortedTransaction(producer_id, first_offset))
            slot = block_end
        return stop < entries

    def _smallest_first_offset(self, block: int, view: memoryview) -> int:
        """Returns the smallest first offset of a block; -1 if it is not full."""
        smallest = self._smallest
        while len(smallest) <= block:
            at = len(smallest) * _BLOCK * _ENTRY.size
            if at + _FIRST_OFFSETS.size > len(view):
                return -1
            smallest.append(min(_FIRST_OFFSETS.unpack_from(view, at)))
        return smallest[block]

    def all_entries(self) -> list[AbortedEntry]:
        """Returns the whole entries, which may be damaged."""
        data = bytes(self.data())
        return [AbortedEntry(*one[1:]) for one in _ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size])]

    def truncate_to(self, offset: int) -> None:
        """Drops the transactions with markers at and after ``offset``."""
        entries = self._slot_at_most(offset - 1, _LAST_OFFSET_COLUMN) + 1
        self.truncate_entries(entries)
        del self._smallest[entries // _BLOCK :]

    def check(self) -> None:
        """Raises IndexCorrupt if this cannot be the index of its segment."""
        self._check_size()
        if self.entries:
            version, _, _, last_offset, _ = _ENTRY.unpack_from(self.data())
            if version > _VERSION or last_offset < self.base_offset:
                raise IndexCorrupt(f"{self.path}: its first entry has version {version}, last offset {last_offset}")


class IndexedSegment(Protocol):
    """A segment that may have an index of aborted transactions."""

    has_aborted: bool

    @property
    def aborted_index(self) -> AbortedIndex: ...


def collect_aborted(segments: Iterable[IndexedSegment], start: int, end: int) -> Sequence[AbortedTransaction]:
    """Returns the aborted transactions with records in [``start``, ``end``), as in Kafka.

    The first of ``segments`` is the one with ``start``. A transaction that began before its marker's segment is found
    in a later segment.
    """
    aborted: list[AbortedTransaction] = []
    for segment in segments:
        if segment.has_aborted and segment.aborted_index.collect(start, end, aborted):
            break
    return aborted


def decode_entries(data: bytes) -> dict[int, bytes]:
    """Returns the packed entries of a ``.txnindex`` file by the offset of the marker."""
    size = _ENTRY.size
    entries = (data[at : at + size] for at in range(0, len(data) - size + 1, size))
    return {_ENTRY.unpack(entry)[_LAST_OFFSET_COLUMN]: entry for entry in entries}
