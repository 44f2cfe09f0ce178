"""Arrays of long replies. Each element is packed when it is made, and the result is a list of pieces.

A mapping for each element of a reply takes ten times the memory of the element's bytes. A caller can pack
equal elements once and append the packed bytes several times (``repeat``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

PIECE_BYTES = 64 << 10
"""Short chunks are joined to pieces of about this size."""

Pack = Callable[[object], list[bytes]]


class Pieces:
    """Consecutive chunks, which are joined to pieces when they are added."""

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
        """Returns all pieces."""
        self._close_piece()
        return self._chunks

    def _close_piece(self) -> None:
        if self._short:
            self._chunks.append(b"".join(self._short))
            self._short, self._short_bytes = [], 0


class Elements(Pieces):
    """The packed elements of an array, used as the array's value in a message's mapping.

    From time to time it calls ``grow`` with the number of new bytes. ``grow`` may raise an error to refuse them.
    """

    __slots__ = ("_grow", "_new_bytes", "_pack", "count", "counted")

    def __init__(self, pack: Pack, grow: Callable[[int], None] | None = None) -> None:
        super().__init__()
        self.count = 0
        self.counted = 0
        """The bytes that were passed to ``grow`` for this array and the arrays inside its elements."""
        self._pack = pack
        self._grow = grow
        self._new_bytes = 0

    def __len__(self) -> int:
        return self.count

    def add(self, element: Mapping[str, object]) -> list[bytes]:
        """Packs and appends an element. Returns its bytes, e.g. for ``repeat``."""
        packed = self.packed(element)
        self.repeat(packed)
        return packed

    def packed(self, element: Mapping[str, object]) -> list[bytes]:
        """Packs an element without appending it: ``repeat`` appends it. The bytes in its own arrays are counted now."""
        packed = self._pack(element)
        inner = sum(value.counted for value in element.values() if type(value) is Elements)
        self.counted += inner
        self._new_bytes -= inner
        return packed

    def add_value(self, value: object) -> None:
        """Packs and appends a number or text."""
        self.repeat(self._pack(value))

    def repeat(self, packed: Iterable[bytes]) -> None:
        """Appends a packed element."""
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
    """Returns the same bytes with short chunks joined."""
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
