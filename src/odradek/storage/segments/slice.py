"""Bytes of a segment file for a reader, and the read that finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from odradek.storage.disk.files import File
from odradek.storage.segments.segment import Segment


class Slice:
    """Bytes of a segment file: whole batches, perhaps with a part of the next one.

    The bytes can be read while this object exists, even after the segment was removed. ``base_offset`` is that of the
    first batch; an empty slice has the requested offset.
    """

    __slots__ = ("base_offset", "file", "on_failure", "position", "size")

    is_final: ClassVar[bool] = True
    """Whether no truncation rewrites these bytes of the file."""

    def __init__(
        self,
        file: File | None,
        position: int,
        size: int,
        base_offset: int,
        on_failure: Callable[[OSError], object] | None = None,
    ) -> None:
        self.file = file
        self.on_failure = on_failure
        self.position = position
        self.size = size
        self.base_offset = base_offset

    def __len__(self) -> int:
        return self.size

    def send(self, socket: int, start: int) -> int:
        """Writes bytes from position ``start`` of the slice to a socket. Returns how many. Raises OSError."""
        if self.file is None:
            raise OSError("an empty slice has no file")
        return self.file.send(socket, self.position + start, self.size - start)

    def part(self, start: int, size: int) -> bytes:
        """Reads and returns at most ``size`` bytes from position ``start`` of the slice. Raises OSError."""
        return self.file.pread(self.position + start, size) if self.file is not None else b""

    def report_failure(self, error: OSError) -> None:
        """Reports a failed read of the file to the log."""
        if self.on_failure is not None:
            self.on_failure(error)

    def bytes(self) -> bytes:
        """Reads and returns the bytes. Raises OSError."""
        return self.file.pread(self.position, self.size) if self.file is not None and self.size else b""

    def memoryview(self) -> memoryview:
        return memoryview(self.bytes())


class UncommittedSlice(Slice):
    """Bytes for a follower that may be above the high watermark: a truncation may rewrite them in the file."""

    __slots__ = ()
    is_final: ClassVar[bool] = False

    @classmethod
    def of(cls, read: Slice) -> UncommittedSlice:
        return cls(read.file, read.position, read.size, read.base_offset, read.on_failure)


def read_slice(
    segments: Sequence[Segment],
    offset: int,
    limit: int,
    *,
    max_bytes: int,
    min_one: bool,
    on_failure: Callable[[OSError], None],
) -> Slice:
    """Returns batches of one segment from ``offset`` on and below ``limit``, up to ``max_bytes``. Raises OSError.

    The first of ``segments`` is the one that may have the offset. The last batch may be cut off. If the first batch is
    larger than ``max_bytes``, ``min_one`` decides: True returns this batch, False an empty slice. ``on_failure`` is
    called if a later read of the slice fails.
    """
    for segment in segments:
        place = segment.locate(offset)
        if place is None:
            continue
        position, header = place
        if header.base_offset >= limit:
            break
        end = segment.size
        if limit < segment.next_offset:
            beyond = segment.locate(limit)
            end = beyond[0] if beyond is not None else end
        size = header.size_in_bytes
        if size > max_bytes and not min_one:
            break
        length = min(max(max_bytes, size), end - position)
        return Slice(segment.file, position, length, header.base_offset, on_failure)
    return Slice(None, 0, 0, offset)
