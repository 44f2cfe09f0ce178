"""A reply in pieces, which are written one behind the other; some of them are still in a file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class FilePart(Protocol):
    """Bytes of an open file that are not read before they are sent, perhaps never into this process."""

    def __len__(self) -> int: ...
    def bytes(self) -> bytes:
        """The bytes, read now. Raises OSError."""


Chunk = bytes | bytearray | memoryview | FilePart


def joined(chunks: Iterable[Chunk]) -> bytes:
    """A reply's bytes, those of files read now. Raises OSError."""
    return b"".join(chunk if isinstance(chunk, bytes | bytearray | memoryview) else chunk.bytes() for chunk in chunks)
