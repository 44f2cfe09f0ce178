"""Chunks of a reply, which are written one after another. Some of them are parts of files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

FILE_FROM_BYTES = 64 << 10
"""Shorter parts are read and joined with their reply, because one write costs less than three calls."""


class FilePart(Protocol):
    """Bytes of an open file. They are read only when they are sent, or not at all: ``sendfile`` needs no read."""

    def __len__(self) -> int: ...
    def bytes(self) -> bytes:
        """Reads and returns the bytes. Raises OSError."""


Chunk = bytes | bytearray | memoryview | FilePart


def joined(chunks: Iterable[Chunk]) -> bytes:
    """Returns a reply's bytes, and reads the parts of files. Raises OSError."""
    return b"".join(chunk if isinstance(chunk, bytes | bytearray | memoryview) else chunk.bytes() for chunk in chunks)
