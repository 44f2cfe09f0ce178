"""Avro's binary values: bytes to JSON values and back.

A union is its value, without the name of the branch; writing takes the first branch that fits. Bytes and fixed values
are texts with one letter for each byte, as in Avro's JSON. Logical types are their underlying values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import isfinite
from typing import Any

from odradek.core.varints import OverlongVarint, read_uvarint, varint
from odradek.schemas.avro.types import AvroType
from odradek.schemas.errors import InvalidValue

_FLOAT, _DOUBLE = struct.Struct("<f"), struct.Struct("<d")


def decode(schema: AvroType, data: bytes) -> Any:
    """Returns the value. Raises InvalidValue for bytes that are no value of the schema, or more than one."""
    reader = _AvroReader(data)
    try:
        found = reader.read(schema)
    except RecursionError:
        raise InvalidValue("the value is nested too deeply") from None
    if reader.at != len(data):
        raise InvalidValue(f"{len(data) - reader.at} bytes follow the value")
    return found


def encode(schema: AvroType, value: object) -> bytes:
    """Returns the bytes of a JSON value. Raises InvalidValue with the place that does not fit."""
    out = bytearray()
    _write(schema, value, out, "")
    return bytes(out)


class _AvroReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def read(self, schema: AvroType) -> Any:
        kind = schema.kind
        if kind == "record":
            return {one.name: self.read(one.type) for one in schema.fields}
        if kind == "union":
            number = self._long()
            if not 0 <= number < len(schema.branches):
                raise InvalidValue(f"a union has no branch {number}")
            return self.read(schema.branches[number])
        if kind == "array":
            return self._items(lambda: self.read(schema.element))
        if kind == "map":
            return dict(self._items(lambda: (self._text(), self.read(schema.element))))
        if kind == "enum":
            number = self._long()
            if not 0 <= number < len(schema.symbols):
                raise InvalidValue(f"enum {schema.name} has no symbol {number}")
            return schema.symbols[number]
        if kind == "fixed":
            return self._take(schema.size).decode("latin-1")
        return self._primitive(kind)

    def _primitive(self, kind: str) -> object:
        if kind == "null":
            return None
        if kind == "boolean":
            byte = self._take(1)[0]
            if byte > 1:
                raise InvalidValue(f"{byte} is no boolean")
            return bool(byte)
        if kind in ("int", "long"):
            return self._long()
        if kind == "float":
            return float(_FLOAT.unpack(self._take(4))[0])
        if kind == "double":
            return float(_DOUBLE.unpack(self._take(8))[0])
        return self._text() if kind == "string" else self._take(self._long()).decode("latin-1")

    def _items(self, read: Callable[[], object]) -> list[Any]:
        found: list[Any] = []
        while count := self._long():
            if count < 0:
                self._long()  # the size in bytes
                count = -count
            if count > len(self._data) * 8 + 1_000_000:
                raise InvalidValue(f"{count} items are more than the value has")
            found += (read() for _ in range(count))
        return found

    def _text(self) -> str:
        try:
            return self._take(self._long()).decode()
        except UnicodeDecodeError:
            raise InvalidValue("a string is no UTF-8") from None

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if size < 0 or end > len(self._data):
            raise InvalidValue("the value ends too early")
        found = self._data[self.at : end]
        self.at = end
        return found

    def _long(self) -> int:
        try:
            value, self.at = read_uvarint(self._data, self.at, 10)
        except IndexError:
            raise InvalidValue("the value ends too early") from None
        except OverlongVarint:
            raise InvalidValue("a number has more than 64 bits") from None
        return (value >> 1) ^ -(value & 1)


def _write(schema: AvroType, value: Any, out: bytearray, place: str) -> None:
    kind = schema.kind
    if kind == "union":
        number = next((at for at, one in enumerate(schema.branches) if _fits(one, value)), None)
        if number is None:
            raise _misfit(schema, value, place)
        out += varint(number)
        _write(schema.branches[number], value, out, place)
        return
    if not _fits(schema, value, shallow=True):
        raise _misfit(schema, value, place)
    if kind == "record":
        unknown = value.keys() - {one.name for one in schema.fields}
        if unknown:
            raise InvalidValue(f"{place or schema.name} has no field {min(unknown)}")
        for one in schema.fields:
            if one.name not in value and not one.has_default:
                raise InvalidValue(f"{place + '.' if place else ''}{one.name} is missing, and has no default")
            _write(one.type, value.get(one.name, one.default), out, f"{place + '.' if place else ''}{one.name}")
    elif kind in ("array", "map"):
        if value:
            out += varint(len(value))
        pairs: list[tuple[Any, Any]] = list(value.items() if kind == "map" else enumerate(value))
        for name, item in pairs:
            if kind == "map":
                out += varint(len(name.encode())) + name.encode()
            _write(schema.element, item, out, f"{place}[{name!r}]")
        out += b"\0"
    else:
        out += _scalar(schema, value)


def _scalar(schema: AvroType, value: Any) -> bytes:
    kind = schema.kind
    if kind == "null":
        return b""
    if kind == "boolean":
        return bytes([value])
    if kind in ("int", "long"):
        return varint(value)
    if kind in ("float", "double"):
        return (_FLOAT if kind == "float" else _DOUBLE).pack(value)
    if kind == "enum":
        return varint(schema.symbols.index(value))
    if kind == "fixed":
        return bytes(value.encode("latin-1"))
    data = value.encode() if kind == "string" else value.encode("latin-1")
    return varint(len(data)) + bytes(data)


def _fits(schema: AvroType, value: object, *, shallow: bool = False) -> bool:
    """Whether a value is one of the schema. ``shallow``: without the parts of records, arrays and maps."""
    kind = schema.kind
    if kind == "union":
        return any(_fits(one, value) for one in schema.branches)
    if kind == "record":
        names = {one.name: one for one in schema.fields}
        return isinstance(value, dict) and (
            shallow
            or (
                value.keys() <= names.keys()
                and all(
                    _fits(one.type, value[name]) if name in value else one.has_default for name, one in names.items()
                )
            )
        )
    if kind == "array":
        return isinstance(value, list) and (shallow or all(_fits(schema.element, one) for one in value))
    if kind == "map":
        return isinstance(value, dict) and (shallow or all(_fits(schema.element, one) for one in value.values()))
    return _fits_scalar(schema, value)


def _packs(kind: str, value: float) -> bool:
    try:
        (_FLOAT if kind == "float" else _DOUBLE).pack(value)
    except OverflowError:
        return False
    return isfinite(value)


def _fits_scalar(schema: AvroType, value: object) -> bool:
    kind = schema.kind
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("int", "long"):
        limit = 1 << (31 if kind == "int" else 63)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if kind in ("float", "double"):
        return isinstance(value, int | float) and not isinstance(value, bool) and _packs(kind, value)
    if not isinstance(value, str):
        return False
    if kind == "enum":
        return value in schema.symbols
    is_bytes = kind == "string" or all(ord(letter) < 256 for letter in value)
    return is_bytes and (kind != "fixed" or len(value) == schema.size)


def _misfit(schema: AvroType, value: object, place: str) -> InvalidValue:
    wanted = " or ".join(one.name or one.kind for one in schema.branches) or schema.name or schema.kind
    return InvalidValue(f"{place or 'the value'}: {str(value)[:60]!r} is no {wanted}")
