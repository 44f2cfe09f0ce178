"""The readable records of a damaged metadata log.

A batch whose checksum is right is used, even if the fields outside of the checksum are wrong. CRC-32C finds the place
of a single flipped bit, so a batch with one is corrected. Otherwise reading continues at the next batch with a right
checksum, and the offsets between are lost.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from odradek.batches.header import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER_BYTES,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    crc_is_valid,
    read_header,
)
from odradek.batches.rows import batch_rows
from odradek.broker.metadata_log import snapshot as metadata_snapshot
from odradek.broker.metadata_log.check import next_batch, segment_bases
from odradek.catalog import records
from odradek.catalog.records import (
    Id16,
    IdFactory,
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    UnsupportedRecord,
)
from odradek.catalog.state import CatalogState
from odradek.core.crc import crc32c
from odradek.core.errors import CorruptRecord
from odradek.storage.disk.files import Buffer, Files
from odradek.storage.segments.segment import LOG_SUFFIX, file_name

_LONGEST_CORRECTED = 1 << 18


class LostOffsets(NamedTuple):
    """Offsets that cannot be read. ``end`` is None if it is not known."""

    start: int
    end: int | None


class FoundBatch(NamedTuple):
    """A batch that can be read, or ``data=b""`` for lost offsets. ``note`` says what is wrong, or is empty."""

    offset: int
    data: bytes
    note: str = ""


def found_batches(data: Buffer, offset: int) -> Iterator[FoundBatch]:
    """Yields the readable batches of a file in order, and an entry without data where some are lost."""
    view = memoryview(data)
    position, size = 0, len(view)
    while position < size:
        whole = _whole(view, position, size)
        note = ""
        if not whole:
            following = next_batch(data, position + 1, offset)
            end = size if following is None else following
            whole = _corrected(bytes(view[position:end]))
            note = f"the batch at offset {offset} (byte {position}) has a flipped bit or a wrong length: corrected"
            if not whole:
                yield FoundBatch(offset, b"", f"the batch at offset {offset} (byte {position}) cannot be read")
                if following is None:
                    return
                position = following
                offset = read_header(data, following).base_offset
                continue
        elif read_header(whole).base_offset != offset:
            note = f"the batch at offset {offset} (byte {position}) has a wrong base offset: corrected"
        yield FoundBatch(offset, whole, note)
        offset += read_header(whole).last_offset_delta + 1
        position += len(whole)


def _whole(view: memoryview, position: int, size: int) -> bytes:
    """Returns the batch at a position if its length and checksum are right, else b""."""
    if position + HEADER_BYTES > size:
        return b""
    header = read_header(view, position)
    end = position + header.size_in_bytes
    if header.length < HEADER_BYTES - LOG_OVERHEAD or end > size or header.last_offset_delta + 1 != header.record_count:
        return b""
    return bytes(view[position:end]) if crc_is_valid(view, position, header) else b""


def _corrected(damaged: bytes) -> bytes:
    """Returns the batch if one flipped bit, or a wrong length or magic byte, is all that is wrong, else b""."""
    if not HEADER_BYTES <= len(damaged) <= _LONGEST_CORRECTED:
        return b""
    batch = bytearray(damaged)
    struct.pack_into(">i", batch, LENGTH_OFFSET, len(batch) - LOG_OVERHEAD)
    batch[MAGIC_OFFSET] = MAGIC
    checked = memoryview(batch)[ATTRIBUTES_OFFSET:]
    (stored,) = struct.unpack_from(">I", batch, CRC_OFFSET)
    difference = crc32c(checked) ^ stored
    if difference.bit_count() == 1:  # the bit is in the checksum itself
        struct.pack_into(">I", batch, CRC_OFFSET, stored ^ difference)
    elif difference:
        place = _flipped_bit(difference, len(checked))
        if place is None:
            return b""
        checked[place[0]] ^= place[1]
    header = read_header(batch)
    return bytes(batch) if header.last_offset_delta + 1 == header.record_count else b""


def _flipped_bit(difference: int, size: int) -> tuple[int, int] | None:
    """Returns (byte, mask) of the only flipped bit of ``size`` bytes whose checksum differs by ``difference``."""
    table = [crc32c(bytes([value])) ^ crc32c(b"\0") for value in range(256)]
    states = [table[1 << bit] for bit in range(8)]
    for byte in range(size - 1, -1, -1):
        if difference in states:
            return byte, 1 << states.index(difference)
        states = [table[state & 0xFF] ^ (state >> 8) for state in states]
    return None


class NodeReader(NamedTuple):
    """How the records of a node of a cluster are read: into an empty catalogue, by a function like
    ``records.decode``."""

    new_catalog: Callable[[], CatalogState]
    decode: Callable[[bytes, IdFactory], MetadataRecord]


class Salvage:
    """The catalogue of all readable records. ``notes``: what is wrong; ``lost``: offsets without a record.

    ``reader``: None for the directory of a lone broker."""

    def __init__(
        self, path: Path, files: Files, node_id: int, directory_id: Id16, reader: NodeReader | None = None
    ) -> None:
        self.catalog = reader.new_catalog() if reader else CatalogState(_topic_id, (node_id,), directory_id)
        self._decode = reader.decode if reader else records.decode
        self.notes: list[str] = []
        self.lost: list[LostOffsets] = []
        self.refused: list[str] = []
        """Records that contradict the readable records before them."""
        self.unread: list[str] = []
        """Records that this release does not read. A repair leaves them out."""
        self.removed: dict[Id16, str] = {}
        self.directory_id: Id16 | None = None
        """The id of the log directory in the records of partitions."""
        self.leader: int | None = None
        self.timestamp_ms = -1
        self.end_offset = 0
        self._path = path
        self._files = files
        self._read_snapshots()
        self._read_log()

    @property
    def is_lossy(self) -> bool:
        return bool(self.lost or self.refused or self.unread)

    def _read_snapshots(self) -> None:
        """Loads the newest complete snapshot; a damaged one only if the log does not have its records."""
        rows = [row for row in metadata_snapshot.find(self._path, self._files.list(self._path)) if row[0]]
        bases = segment_bases(self._path, self._files)
        damaged: list[tuple[int, Path]] = []
        complete = None
        for end_offset, _, file in reversed(rows):
            complete = metadata_snapshot.read(file, self._files)
            if complete is not None:
                self.end_offset, (self.timestamp_ms, values) = end_offset, complete
                break
            damaged.append((end_offset, file))
            self.notes.append(f"the snapshot {file.name} is damaged")
        if damaged and (not bases or bases[0] > self.end_offset):
            self.end_offset = damaged[0][0]
            self._read_damaged_snapshot(damaged[0][1])
        elif complete is not None:
            for value in values:
                self._apply(-1, value)

    def _read_damaged_snapshot(self, file: Path) -> None:
        for batch in found_batches(memoryview(self._files.view(file)), 0):
            if not batch.data:
                self.lost.append(LostOffsets(0, self.end_offset))
            else:
                self._apply_batch(batch.data, -1, 0)

    def _read_log(self) -> None:
        needed = self.end_offset
        offset = needed
        for base in segment_bases(self._path, self._files):
            if base > offset:
                self._lose(offset, base, needed)
            offset = base
            name = file_name(base, LOG_SUFFIX)
            for batch in found_batches(memoryview(self._files.view(self._path / name)), base):
                if batch.offset > offset:
                    self._lose(offset, batch.offset, needed)
                    offset = batch.offset
                if batch.note:
                    self.notes.append(f"{name}: {batch.note}")
                if batch.data:
                    self._apply_batch(batch.data, batch.offset, needed)
                    offset = batch.offset + read_header(batch.data).last_offset_delta + 1
                elif batch.offset >= needed:
                    self.lost.append(LostOffsets(batch.offset, None))
        self.end_offset = max(offset, needed)

    def _lose(self, start: int, end: int, needed: int) -> None:
        if self.lost and self.lost[-1].end is None:
            self.lost.pop()
        if end > needed:
            self.lost.append(LostOffsets(max(start, needed), end))

    def _apply_batch(self, batch: bytes, offset: int, needed: int) -> None:
        header = read_header(batch)
        if header.is_control:
            return
        if offset >= 0:
            self.timestamp_ms = header.max_timestamp
        try:
            for number, row in enumerate(batch_rows(batch, 0, header)):
                if offset < 0 or offset + number >= needed:
                    self._apply(offset, row.value or b"")
        except CorruptRecord as error:
            self.refused.append(f"the records of the batch at offset {offset} cannot be read: {error.message}")

    def _apply(self, offset: int, value: bytes) -> None:
        catalog = self.catalog
        try:
            record = self._decode(value, _topic_id)
            self._note(record)
            catalog.apply(offset, record)
        except UnsupportedRecord as error:
            self.unread.append(str(error) if offset < 0 else f"{error} in the batch at offset {offset}")
        except (ValueError, IndexError) as error:
            self.refused.append(str(error))

    def _note(self, record: MetadataRecord) -> None:
        match record:
            case PartitionRecord(leader=leader, directories=directories):
                self.leader = leader
                if directories:
                    self.directory_id = directories[0]
            case RemoveTopicRecord(topic_id) if topic_id in self.catalog.topics_by_id:
                self.removed[topic_id] = self.catalog.topics_by_id[topic_id].name


def _topic_id(data: bytes) -> UUID:
    return UUID(bytes=data)
