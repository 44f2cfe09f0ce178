"""The ``.txnindex`` file of a segment: the aborted transactions whose markers are in the segment, in Kafka's format.

An entry has a version (int16, 0), the producer id, the first offset, the last offset (that of the marker) and the last
stable offset after the marker, each int64. The entries are in the order of the markers. A segment without an aborted
transaction has no file. Each entry is written at once; after a crash, recovery writes the file again from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from odradek.batches.aborted_transactions import AbortedTransaction
from odradek.storage.descriptors import is_exhausted
from odradek.storage.index import IndexCorrupt, IndexFile

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
_LAST_OFFSET_COLUMN = 3


class AbortedEntry(NamedTuple):
    """An aborted transaction. ``last_offset`` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedIndex(IndexFile):
    """The aborted transactions of a segment."""

    entry = _ENTRY
    __slots__ = ()

    def append(self, entry: AbortedEntry) -> None:
        """Writes an entry. Raises OSError. Without a free descriptor the next write includes the entry."""
        self._put(_VERSION, *entry)
        try:
            self.save()
        except OSError as error:
            if not is_exhausted(error):
                raise

    def sync(self) -> None:
        if self.size:
            super().sync()

    def seal(self) -> None:
        """Frees the memory of a closed segment's index."""
        if self.size:
            super().seal()

    def collect(self, start: int, end: int, found: list[AbortedTransaction]) -> bool:
        """Adds the transactions with records in [``start``, ``end``). Returns True if later segments have none. This is
        so after an entry whose last stable offset is at or above ``end``.
        """
        first_slot = self._slot_at_most(start - 1, _LAST_OFFSET_COLUMN) + 1
        view = memoryview(self._data())[first_slot * _ENTRY.size : self.entries * _ENTRY.size]
        for _, producer_id, first_offset, _, last_stable_offset in _ENTRY.iter_unpack(view):
            if first_offset < end:
                found.append(AbortedTransaction(producer_id, first_offset))
            if last_stable_offset >= end:
                return True
        return False

    def truncate_to(self, offset: int) -> None:
        """Drops the transactions with markers at and after ``offset``."""
        self.truncate_entries(self._slot_at_most(offset - 1, _LAST_OFFSET_COLUMN) + 1)

    def check(self) -> None:
        """Raises IndexCorrupt if this cannot be the index of its segment."""
        self._check_size()
        if self.entries:
            version, _, _, last_offset, _ = _ENTRY.unpack_from(self._data())
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
    found: list[AbortedTransaction] = []
    for segment in segments:
        if segment.has_aborted and segment.aborted_index.collect(start, end, found):
            break
    return found


def decode_entries(data: bytes) -> dict[int, bytes]:
    """Returns the packed entries of a ``.txnindex`` file by the offset of the marker."""
    size = _ENTRY.size
    entries = (data[at : at + size] for at in range(0, len(data) - size + 1, size))
    return {_ENTRY.unpack(entry)[_LAST_OFFSET_COLUMN]: entry for entry in entries}
