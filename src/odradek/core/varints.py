"""Unsigned varints of Kafka's protocol and records: seven bits a byte, the lowest bits first, at most five bytes."""

from __future__ import annotations

_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def uvarint(value: int) -> bytes:
    if value < 0x80:
        return _ONE_BYTE[value]
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def read_uvarint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Returns the value at ``at`` and the position after it.

    Raises IndexError if the bytes end too early, ValueError if the varint has more than five bytes.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise ValueError("varint longer than 5 bytes")
