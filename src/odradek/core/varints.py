"""Kafka's varints: seven bits a byte, the lowest bits first. Messages have unsigned ones, records zigzag ones.

All Python code uses these functions, all kernels those of ``batches.varint_kernels``. Some code reads small numbers
inline, for speed.
"""

from __future__ import annotations

from mmap import mmap

_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))
_ONE_BYTE_ZIGZAG = _ONE_BYTE[::2]
"""The varints of 0 to 63. A look-up is faster than a shift, which takes two percent of the time of a record."""
_LONG_MASK = (1 << 63) - 1


class OverlongVarint(ValueError):
    """A varint has more bytes than its type allows."""

    def __init__(self, longest: int) -> None:
        super().__init__(f"a varint is longer than {longest} bytes")


def uvarint(value: int) -> bytes:
    """Returns a number that is not negative as an unsigned varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def varint(value: int) -> bytes:
    """Returns a number of up to 64 bits as a zigzag varint."""
    if 0 <= value < 0x40:
        return _ONE_BYTE_ZIGZAG[value]
    return uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def read_uvarint(data: bytes | memoryview | mmap, at: int, longest: int = 5) -> tuple[int, int]:
    """Returns the unsigned varint at ``at`` and the position after it. 5 bytes hold an int32, 10 an int64.

    Raises IndexError if the bytes end too early, OverlongVarint if the varint has more than ``longest`` bytes.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift >= 7 * longest:
            raise OverlongVarint(longest)


def skip_tagged_fields(data: bytes | memoryview, at: int, count: int) -> int:
    """Returns the position after ``count`` tagged fields, each of which has a tag and its size. Raises IndexError,
    OverlongVarint. The position may be behind the end of the bytes."""
    for _ in range(count):
        _, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        at += size
    return at


def compact_string(value: str | None) -> bytes:
    """Packs a string, or null, as flexible messages and records do."""
    if value is None:
        return b"\0"
    packed = value.encode()
    return uvarint(len(packed) + 1) + packed


def read_varint(data: bytes | mmap, at: int, end: int, longest: int = 5) -> tuple[int, int]:
    """Returns the zigzag varint at ``at``, which ends at ``end`` at the latest, and the position after it.

    Raises the errors of ``read_uvarint``. A call of that function would take several percent of the time of a record of
    some hundred bytes, so this one has its own loop.
    """
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1 & _LONG_MASK) ^ -(value & 1), at
        shift += 7
        if shift >= 7 * longest:
            raise OverlongVarint(longest)
    raise IndexError("a varint is cut off")
