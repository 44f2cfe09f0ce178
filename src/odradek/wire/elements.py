"""Arrays of long replies: packed element by element while they are made, and kept in pieces that are never joined.

A mapping for each row of a reply takes ten times the room of its bytes. And what a reply repeats is packed once: every
further time is a reference to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

PIECE_BYTES = 64 << 10
"""Shorter chunks are joined to pieces of about this size."""

Pack = Callable[[Mapping[str, Any]], list[bytes]]


class Pieces:
    """Chunks one behind the other, joined to pieces while they come."""

    __slots__ = ("_chunks", "_short", "_short_bytes")

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._short: list[bytes] = []
        self._short_bytes = 0

    def append(self, chunk: bytes) -> None:
        size = len(chunk)
        if size >= PIECE_BYTES:
            self._close_piece()
            self._chunks.append(chunk)
            return
        self._short.append(chunk)
        self._short_bytes += size
        if self._short_bytes >= PIECE_BYTES:
            self._close_piece()

    def extend(self, chunks: Iterable[bytes]) -> None:
        for chunk in chunks:
            self.append(chunk)

    def chunks(self) -> list[bytes]:
        """All of them."""
        self._close_piece()
        return self._chunks

    def _close_piece(self) -> None:
        if self._short:
            self._chunks.append(b"".join(self._short))
            self._short, self._short_bytes = [], 0


class Elements(Pieces):
    """An array's elements, packed. As a value in a message's mapping it stands for the array.

    ``grow`` is called with the number of bytes that have come, now and then: it may raise to end it.
    """

    __slots__ = ("_grow", "_new_bytes", "_pack", "count", "counted")

    def __init__(self, pack: Pack, grow: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.count = 0
        self.counted = 0
        """Bytes that ``grow`` was called with, for this array and those inside its elements."""
        self._pack = pack
        self._grow = grow
        self._new_bytes = 0

    def __len__(self) -> int:
        return self.count

    def add(self, element: Mapping[str, Any]) -> list[bytes]:
        """Packs an element and appends it. The bytes may be given to ``repeat``."""
        packed = self._pack(element)
        inner = sum(value.counted for value in element.values() if type(value) is Elements)
        self.counted += inner
        self._new_bytes -= inner
        self.repeat(packed)
        return packed

    def repeat(self, packed: Iterable[bytes]) -> None:
        """Appends an element that was packed before."""
        self.count += 1
        for chunk in packed:
            self._new_bytes += len(chunk)
            self.append(chunk)
        if self._new_bytes >= PIECE_BYTES:
            self.counted += self._new_bytes
            new, self._new_bytes = self._new_bytes, 0
            if self._grow is not None:
                self._grow(new)


def in_pieces(chunks: list[bytes]) -> list[bytes]:
    """The same bytes with short chunks joined."""
    if sum(map(len, chunks)) <= PIECE_BYTES:
        return [b"".join(chunks)]
    pieces: list[bytes] = []
    short: list[bytes] = []
    size = 0
    for chunk in chunks:
        if len(chunk) >= PIECE_BYTES:
            if short:
                pieces.append(b"".join(short))
                short, size = [], 0
            pieces.append(chunk)
            continue
        short.append(chunk)
        size += len(chunk)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(short))
            short, size = [], 0
    if short:
        pieces.append(b"".join(short))
    return pieces
