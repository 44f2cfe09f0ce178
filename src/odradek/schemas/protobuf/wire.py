"""The wire format of Protobuf: fields with numbers, without a schema."""

from __future__ import annotations

from collections.abc import Iterator

from odradek.core.varints import OverlongVarint, read_uvarint, uvarint
from odradek.schemas.errors import InvalidValue

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_BITS_64 = (1 << 64) - 1


def packed_number(value: int) -> bytes:
    """Returns a number as a varint; negative ones as 64 bits in two's complement."""
    return uvarint(value & _BITS_64)


def field(number: int, kind: int, content: int | bytes) -> bytes:
    """Returns a field. ``content``: a number for VARINT, else its bytes; BYTES get their length."""
    tag = packed_number(number << 3 | kind)
    if isinstance(content, int):
        return tag + packed_number(content)
    return tag + (packed_number(len(content)) if kind == BYTES else b"") + content


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Returns the unsigned number at a place, and the place behind it. Raises InvalidValue."""
    try:
        value, behind = read_uvarint(data, at, 10)
    except (IndexError, OverlongVarint):
        raise InvalidValue("a varint has no end") from None
    return value & _BITS_64, behind


def fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """Yields number, kind and content of the fields. Raises InvalidValue for bytes that are no message."""
    at = 0
    while at < len(data):
        tag, at = read_number(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise InvalidValue("a field has the number 0")
        if kind == VARINT:
            value, at = read_number(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            size, at = read_number(data, at)
        elif kind in (FIXED64, FIXED32):
            size = 8 if kind == FIXED64 else 4
        else:
            raise InvalidValue(f"field {number} has the unknown wire type {kind}")
        if at + size > len(data):
            raise InvalidValue(f"field {number} ends behind the value")
        yield number, kind, data[at : at + size]
        at += size


def signed(value: int, bits: int = 64) -> int:
    """Returns an unsigned number of a varint as a signed one of 32 or 64 bits."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value
