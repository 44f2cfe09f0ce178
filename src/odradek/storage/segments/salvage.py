"""The check of a segment's bytes after damage: which batches are whole, which bytes are lost, and the new file.

A bad batch does not end the log. The batches after it stay, and its offsets become a gap, as after a compaction. Its
bytes are kept in a file ``<first offset>-<next offset>.lost`` in the partition's directory. Such a file also says
that the gap is known, so a later start does not report it again.

The base offset is the one field of consequence that the CRC does not cover. If the neighbours of a batch leave only one
base offset for it, the batch gets this offset back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from odradek.batches.header import (
    HEADER_BYTES,
    MAGIC,
    MAGIC_OFFSET,
    BatchHeader,
    check_header,
    crc_is_valid,
    read_header,
)
from odradek.core.errors import CorruptRecord
from odradek.storage.disk.files import File, Files

LOST_SUFFIX = ".lost"
_LOST_NAME = re.compile(r"(\d{20})-(\d{20})\.lost")
_PART_BYTES = 1 << 20
_MAGIC_BYTE = bytes([MAGIC])
MAX_RELATIVE_OFFSET = 0x7FFFFFFF


class GoodBatch(NamedTuple):
    """A valid batch: at ``at`` in ``buffer``, at ``position`` in the file. ``header`` has its right base offset."""

    buffer: bytes
    at: int
    position: int
    header: BatchHeader
    is_mended: bool


class BadBytes(NamedTuple):
    """Bytes [``start``, ``end``) that are no valid batch. They took offsets from ``first_offset`` on."""

    start: int
    end: int
    first_offset: int


class Surroundings(NamedTuple):
    """What is known about the offsets of a segment.

    ``following``: the base offset of the next segment, None for the last one. ``expected_end``: the end of the log by
    witnesses that agree, or None. ``is_contiguous``: the log was never compacted and has no gap.
    """

    following: int | None = None
    expected_end: int | None = None
    is_contiguous: bool = False


class FileCheck:
    """One pass over the bytes of a segment file."""

    def __init__(self, file: File, size: int, base_offset: int, around: Surroundings) -> None:
        self._file = file
        self._size = size
        self._base_offset = base_offset
        self._around = around
        self._buffer = b""
        self._start = 0

    def __iter__(self) -> Iterator[GoodBatch | BadBytes]:
        position, next_offset = 0, self._base_offset
        is_contiguous = self._around.is_contiguous
        while position < self._size:
            header = self._whole(position)
            placed = None if header is None else self._placed(position, header, next_offset, is_contiguous)
            if header is not None and placed is not None:
                at = self._at(position, header.size_in_bytes)
                yield GoodBatch(self._buffer, at, position, placed, placed is not header)
                position += header.size_in_bytes
                next_offset, is_contiguous = placed.last_offset + 1, self._around.is_contiguous
                continue
            after = position + header.size_in_bytes if header is not None else self._next_whole(position, next_offset)
            yield BadBytes(position, after, next_offset)
            position, is_contiguous = after, False  # the lost offsets are a gap

    def _at(self, position: int, size: int) -> int:
        """Returns where ``position`` is in the buffer, which then has ``size`` bytes from there on, if they exist."""
        at = position - self._start
        if at < 0 or at + size > len(self._buffer):
            self._start, at = position, 0
            self._buffer = self._file.pread(position, max(size, _PART_BYTES))
        return at

    def _whole(self, position: int) -> BatchHeader | None:
        """Returns the header of the batch at ``position``; None if its bytes are not a whole, valid batch."""
        if position + HEADER_BYTES > self._size:
            return None
        at = self._at(position, HEADER_BYTES)
        if self._buffer[at + MAGIC_OFFSET] != MAGIC:
            return None
        header = read_header(self._buffer, at)
        try:
            check_header(header)
        except CorruptRecord:
            return None
        if position + header.size_in_bytes > self._size:
            return None
        at = self._at(position, header.size_in_bytes)
        return header if crc_is_valid(self._buffer, at, header) else None

    def _next_whole(self, position: int, next_offset: int) -> int:
        """Returns the position of the next valid batch after ``position``; the file's size if there is none."""
        limit = self._around.following or next_offset + MAX_RELATIVE_OFFSET
        start = position + 1
        while start + HEADER_BYTES <= self._size:
            chunk = self._file.pread(start, _PART_BYTES)
            magic_at = chunk.find(_MAGIC_BYTE, MAGIC_OFFSET)
            while magic_at >= 0 and magic_at - MAGIC_OFFSET + HEADER_BYTES <= len(chunk):
                header = read_header(chunk, magic_at - MAGIC_OFFSET)
                candidate = start + magic_at - MAGIC_OFFSET
                if next_offset <= header.base_offset < limit and self._whole(candidate) is not None:
                    return candidate
                magic_at = chunk.find(_MAGIC_BYTE, magic_at + 1)
            start += max(len(chunk) - HEADER_BYTES + 1, 1)
        return self._size

    def _placed(self, position: int, header: BatchHeader, next_offset: int, is_contiguous: bool) -> BatchHeader | None:
        """Returns the header with its right base offset; None if this offset is wrong and cannot be found out."""
        if header.base_offset == next_offset:
            return header
        around = self._around
        following = around.following if around.following is not None else around.expected_end
        after = self._whole(position + header.size_in_bytes)
        if after is not None and after.base_offset >= next_offset:
            following = after.base_offset
        fits = next_offset + header.last_offset_delta + 1
        is_wrong = (
            header.base_offset < next_offset
            or header.last_offset - self._base_offset > MAX_RELATIVE_OFFSET
            or (following is not None and header.last_offset >= following)
        )
        if not is_wrong and not is_contiguous:
            return header
        if following in (None, fits) or (is_contiguous and after is None and around.following is None):
            return header._replace(base_offset=next_offset)
        return None if is_wrong else header


def rewrite(files: Files, path: Path, size: int, bad: Sequence[BadBytes], mended: Sequence[GoodBatch]) -> None:
    """Replaces a segment file by its good batches, with their right base offsets. Raises OSError."""
    source = files.open(path)
    temporary = path.with_name(path.name + ".tmp")
    files.remove(temporary)
    target = files.open(temporary, create=True)
    changes = sorted(
        [(one.start, one.end, b"") for one in bad]
        + [(one.position, one.position + 8, one.header.base_offset.to_bytes(8, "big")) for one in mended]
    )
    try:
        position = 0
        for start, end, replacement in [*changes, (size, size, b"")]:
            while position < start:
                part = source.pread(position, min(_PART_BYTES, start - position))
                target.append([part])
                position += len(part)
            if replacement:
                target.append([replacement])
            position = end
        target.sync()
    finally:
        source.close()
        target.close()
    files.rename(temporary, path)


def keep_lost(files: Files, path: Path, start: int, end: int, offsets: tuple[int, int]) -> Path:
    """Copies bytes [``start``, ``end``) of a file, which took ``offsets``, to a ``.lost`` file. Returns its path."""
    kept = lost_path(path.parent, *offsets)
    files.remove(kept)
    source, target = files.open(path), files.open(kept, create=True)
    try:
        while start < end:
            part = source.pread(start, min(_PART_BYTES, end - start))
            if not part:
                break
            target.append([part])
            start += len(part)
        target.sync()
    finally:
        source.close()
        target.close()
    return kept


def lost_path(directory: Path, first: int, following: int) -> Path:
    """Returns the path of the file for the lost offsets [``first``, ``following``)."""
    return directory / f"{first:020d}-{following:020d}{LOST_SUFFIX}"


def known_gaps(names: Iterable[str]) -> list[tuple[int, int]]:
    """Returns the ranges of lost offsets in the names of a directory's files."""
    matches = (_LOST_NAME.fullmatch(name) for name in names if name.endswith(LOST_SUFFIX))
    return [(int(match[1]), int(match[2])) for match in matches if match is not None]
