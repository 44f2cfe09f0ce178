"""Protobuf's binary values: bytes to JSON values and back, by the names of the file.

Numbers are numbers, an enum's value is its name, bytes are base64, a map is an object. A field without a value is left
out. Bytes of unknown fields are left out.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

from odradek.schemas.errors import InvalidValue
from odradek.schemas.protobuf.model import SCALARS, ProtoEnum, ProtoField, ProtoFile, ProtoMessage
from odradek.schemas.protobuf.names import TypeNames, joined
from odradek.schemas.protobuf.wire import (
    BYTES,
    FIXED32,
    FIXED64,
    VARINT,
    field,
    fields,
    packed_number,
    read_number,
    signed,
)

_FIXED = {
    "double": (FIXED64, "<d"), "float": (FIXED32, "<f"), "fixed64": (FIXED64, "<Q"), "fixed32": (FIXED32, "<I"),
    "sfixed64": (FIXED64, "<q"), "sfixed32": (FIXED32, "<i"),
}  # fmt: skip
_LIMITS = {
    "int32": (-(1 << 31), (1 << 31) - 1), "int64": (-(1 << 63), (1 << 63) - 1), "uint32": (0, (1 << 32) - 1),
    "uint64": (0, (1 << 64) - 1), "sint32": (-(1 << 31), (1 << 31) - 1), "sint64": (-(1 << 63), (1 << 63) - 1),
    "fixed64": (0, (1 << 64) - 1), "fixed32": (0, (1 << 32) - 1), "sfixed64": (-(1 << 63), (1 << 63) - 1),
    "sfixed32": (-(1 << 31), (1 << 31) - 1),
}  # fmt: skip


def message_at(file: ProtoFile, indexes: tuple[int, ...]) -> tuple[ProtoMessage, str]:
    """Returns the message that Confluent's indexes name, and its full name. Raises InvalidValue."""
    messages, scope = file.messages, file.package
    found: ProtoMessage | None = None
    for number in indexes or (0,):
        if not 0 <= number < len(messages):
            raise InvalidValue(f"the schema has no message {list(indexes)}")
        found = messages[number]
        scope = joined(scope, found.name)
        messages = [one for one in found.messages if not one.is_map_entry]
    assert found is not None
    return found, scope


def read_indexes(data: bytes) -> tuple[tuple[int, ...], bytes]:
    """Returns the indexes of the message at the begin of a value, and the rest. Raises InvalidValue."""
    count, at = read_number(data, 0)
    count = count >> 1 ^ -(count & 1)
    if count == 0:
        return (0,), data[at:]
    if not 0 < count < 100:
        raise InvalidValue(f"{count} is no number of indexes of a message")
    found = []
    for _ in range(count):
        one, at = read_number(data, at)
        found.append(one >> 1 ^ -(one & 1))
    return tuple(found), data[at:]


class ProtobufCodec:
    """Reads and writes the messages of a file."""

    def __init__(self, names: TypeNames) -> None:
        self._names = names

    def decode(self, message: ProtoMessage, scope: str, data: bytes) -> dict[str, Any]:
        """Returns a message. ``scope``: its full name. Raises InvalidValue."""
        known = {one.number: one for one in message.all_fields()}
        found: dict[str, Any] = {}
        for number, kind, content in fields(data):
            one = known.get(number)
            if one is None:
                continue
            if (types := self._map_types(one, scope)) is not None:
                key, value = self._entry(one, types, scope, content)
                found.setdefault(one.name, {})[key] = value
            elif one.label == "repeated":
                found.setdefault(one.name, []).extend(self._repeated(one, scope, kind, content))
            else:
                found[one.name] = self._value(one.type, scope, content, one.name)
        order = [one.name for one in message.all_fields()]
        return {name: found[name] for name in order if name in found}

    def _map_types(self, one: ProtoField, scope: str) -> tuple[str, str] | None:
        if one.map_types is not None:
            return one.map_types
        named = None if one.type in SCALARS else self._names.find(one.type, scope)
        if named is None or not isinstance(named.type, ProtoMessage) or not named.type.is_map_entry:
            return None
        parts = {each.number: each.type for each in named.type.fields}
        return parts[1], parts[2]

    def _entry(self, one: ProtoField, types: tuple[str, str], scope: str, content: int | bytes) -> tuple[str, object]:
        entry = ProtoMessage("", [ProtoField("key", 1, types[0]), ProtoField("value", 2, types[1])])
        if not isinstance(content, bytes):
            raise InvalidValue(f"{one.name}: an entry of a map is no message")
        found = self.decode(entry, scope, content)
        key = found.get("key", _default(types[0]))
        value = found["value"] if "value" in found else self._missing(types[1], scope)
        return (str(key).lower() if isinstance(key, bool) else str(key)), value

    def _missing(self, kind: str, scope: str) -> object:
        named = None if kind in SCALARS else self._names.find(kind, scope)
        if named is None:
            return _default(kind)
        return named.type.values[0][0] if isinstance(named.type, ProtoEnum) else {}

    def _repeated(self, one: ProtoField, scope: str, kind: int, content: int | bytes) -> list[Any]:
        """The values of one occurrence: several if they are packed."""
        named = None if one.type in SCALARS else self._names.find(one.type, scope)
        is_number = one.type in SCALARS and one.type not in ("string", "bytes")
        if not isinstance(content, bytes) or kind != BYTES or not (is_number or _is_enum(named)):
            return [self._value(one.type, scope, content, one.name)]
        found, at = [], 0
        size = 8 if _FIXED.get(one.type, (0, ""))[0] == FIXED64 else 4
        while at < len(content):
            part: int | bytes
            if one.type in _FIXED:
                part, at = content[at : at + size], at + size
            else:
                part, at = read_number(content, at)
            found.append(self._value(one.type, scope, part, one.name))
        return found

    def _value(self, kind: str, scope: str, content: int | bytes, name: str) -> Any:
        try:
            if kind in SCALARS:
                return _scalar(kind, content)
            named = self._names.find(kind, scope)
            if named is None:
                raise InvalidValue(f"the type {kind} is unknown")
            if isinstance(named.type, ProtoEnum):
                number = signed(_whole(content), 32)
                return next((text for text, one, _ in named.type.values if one == number), number)
            if not isinstance(content, bytes):
                raise InvalidValue("a message is no number")
            return self.decode(named.type, named.name, content)
        except (struct.error, UnicodeDecodeError) as error:
            raise InvalidValue(f"{name}: {error}") from None

    # --- writing ----------------------------------------------------------------------------------------------

    def encode(self, message: ProtoMessage, scope: str, value: object, place: str = "") -> bytes:
        """Returns the bytes of a message. Raises InvalidValue with the place that does not fit."""
        if not isinstance(value, Mapping):
            raise InvalidValue(f"{place or 'the value'}: {str(value)[:60]!r} is no {message.name}")
        known = {one.name: one for one in message.all_fields()}
        if unknown := value.keys() - known.keys():
            raise InvalidValue(f"{place or message.name} has no field {min(unknown)}")
        data = b""
        for name, one in sorted(known.items(), key=lambda item: item[1].number):
            given = value.get(name)
            at = f"{place + '.' if place else ''}{name}"
            if given is None:
                if one.label == "required":
                    raise InvalidValue(f"{at} is missing")
                continue
            if (types := self._map_types(one, scope)) is not None:
                data += self._map(one, types, scope, given, at)
            elif one.label == "repeated":
                if not isinstance(given, list):
                    raise InvalidValue(f"{at}: {str(given)[:60]!r} is no list")
                data += b"".join(self._field(one.number, one.type, scope, item, at) for item in given)
            else:
                data += self._field(one.number, one.type, scope, given, at)
        return data

    def _map(self, one: ProtoField, types: tuple[str, str], scope: str, given: object, place: str) -> bytes:
        if not isinstance(given, Mapping):
            raise InvalidValue(f"{place}: {str(given)[:60]!r} is no object")
        data = b""
        for key, item in given.items():
            kind = types[0]
            try:
                own: Any = key if kind == "string" else key == "true" if kind == "bool" else int(key)
            except ValueError:
                raise InvalidValue(f"{place}: {key!r} is no {kind}") from None
            entry = self._field(1, kind, scope, own, place) + self._field(2, types[1], scope, item, f"{place}[{key!r}]")
            data += field(one.number, BYTES, entry)
        return data

    def _field(self, number: int, kind: str, scope: str, value: Any, place: str) -> bytes:
        if kind in SCALARS:
            return _scalar_field(number, kind, value, place)
        named = self._names.find(kind, scope)
        if named is None:
            raise InvalidValue(f"{place}: the type {kind} is unknown")
        if isinstance(named.type, ProtoMessage):
            return field(number, BYTES, self.encode(named.type, named.name, value, place))
        known = {text: one for text, one, _ in named.type.values}
        if value not in known and not isinstance(value, int):
            raise InvalidValue(f"{place}: {value!r} is no value of {named.name}")
        return field(number, VARINT, known.get(value, value))


def _is_enum(named: Any) -> bool:
    return named is not None and isinstance(named.type, ProtoEnum)


def _default(kind: str) -> object:
    return "" if kind in ("string", "bytes") else False if kind == "bool" else 0.0 if kind in ("float", "double") else 0


def _whole(content: int | bytes) -> int:
    if not isinstance(content, int):
        raise InvalidValue("a number has another wire type")
    return content


def _scalar(kind: str, content: int | bytes) -> Any:
    if kind in _FIXED:
        if not isinstance(content, bytes):
            raise InvalidValue(f"a {kind} has another wire type")
        return struct.unpack(_FIXED[kind][1], content)[0]
    if kind in ("string", "bytes"):
        if not isinstance(content, bytes):
            raise InvalidValue(f"a {kind} has another wire type")
        return content.decode() if kind == "string" else base64.b64encode(content).decode()
    number = _whole(content)
    if kind == "bool":
        return number != 0
    if kind.startswith("uint"):
        return number & ((1 << 32) - 1) if kind == "uint32" else number
    if kind.startswith("sint"):
        return number >> 1 ^ -(number & 1)
    return signed(number, 32 if kind == "int32" else 64)


def _scalar_field(number: int, kind: str, value: object, place: str) -> bytes:
    misfit = InvalidValue(f"{place}: {str(value)[:60]!r} is no {kind}")
    if kind in ("string", "bytes"):
        if not isinstance(value, str):
            raise misfit
        try:
            return field(number, BYTES, value.encode() if kind == "string" else base64.b64decode(value, validate=True))
        except (binascii.Error, ValueError):
            raise InvalidValue(f"{place}: {value[:60]!r} is not base64") from None
    if kind == "bool":
        if not isinstance(value, bool):
            raise misfit
        return field(number, VARINT, int(value))
    if kind in ("double", "float"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise misfit
        try:
            return field(number, _FIXED[kind][0], struct.pack(_FIXED[kind][1], value))
        except OverflowError:
            raise misfit from None
    given = int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value
    low, high = _LIMITS[kind]
    if isinstance(given, bool) or not isinstance(given, int) or not low <= given <= high:
        raise misfit
    if kind in _FIXED:
        return field(number, _FIXED[kind][0], struct.pack(_FIXED[kind][1], given))
    if kind.startswith("sint"):
        given = given << 1 ^ given >> 63
    return packed_number(number << 3) + packed_number(given)
