"""The codec of all Kafka messages, with kio's schemas.

The reader is kio's and returns kio's frozen dataclasses. The writer takes plain mappings. Their keys are the union of a
message's fields over all versions, and each version uses the fields that it has. So one handler serves all versions.
Durations and times are integers in milliseconds; kio's own writer needs timedelta and datetime.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

import odradek.core.kio_import  # noqa: F401  # isort: skip  (before kio)
from kio.static.constants import EntityType

from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.lazy_import import LazyModule
from odradek.core.varints import uvarint
from odradek.wire.api_keys import API_VERSIONS
from odradek.wire.elements import Elements, Pack, in_pieces
from odradek.wire.request_limits import (
    ELEMENTS_AT_ONCE,
    Data,
    ImpossibleCount,
    TooManyElements,
    length_check,
    most_elements,
    without_unknown_tags,
)

if TYPE_CHECKING:
    from kio import index as messages
    from kio import serial
    from kio.schema import index as names
    from kio.serial import _introspect as introspect
    from kio.static.protocol import Entity
else:  # a broker begins to serve without them: their import takes 10 ms, most of it for dataclasses
    messages, names = LazyModule("kio.index"), LazyModule("kio.schema.index")
    serial, introspect = LazyModule("kio.serial"), LazyModule("kio.serial._introspect")

Writer = Callable[[list[bytes], Any], None]
_MISSING = object()


class UnknownMessage(ValueError):
    """An API key or version without a schema in kio."""


class Kind(IntEnum):
    REQUEST = 0
    RESPONSE = 1


def load() -> None:
    """Imports what is imported at the first message otherwise: kio's schemas and its reader."""
    _ = messages.load_request_schema, names.api_key_map, serial.entity_reader, introspect.classify_field


@cache
def message_type(api_key: int, version: int, kind: Kind) -> Any:
    """Returns kio's dataclass of a message, whose ``repr`` shows no secret. Raises UnknownMessage."""
    try:
        load = messages.load_request_schema if kind is Kind.REQUEST else messages.load_response_schema
        entity = load(api_key, version)
    except (messages.UnknownAPIKey, messages.UnknownEntity) as error:
        raise UnknownMessage(f"no schema for API {api_key} version {version}") from error
    from odradek.wire.hidden_fields import hide  # here, because a start does not need it

    hide(entity, api_key)
    return entity


@cache
def is_flexible(api_key: int, version: int) -> bool:
    return bool(message_type(api_key, version, Kind.REQUEST).__flexible__)


@cache
def has_flexible_reply_header(api_key: int, version: int) -> bool:
    """Returns whether a reply's header has tagged fields.

    The header of an ApiVersions reply never has tagged fields, so that every client can read it.
    """
    return api_key != API_VERSIONS and is_flexible(api_key, version)


@cache
def known_versions(api_key: int) -> tuple[int, int]:
    """Returns the oldest and the newest version that kio can read and write."""
    kinds_by_version = names.schema_name_map[names.api_key_map[api_key]]
    versions = [version for version, kinds in kinds_by_version.items() if EntityType.request in kinds]
    return min(versions), max(versions)


def api_name(api_key: int) -> str:
    """Returns the name of an API: ``offset_commit`` for 8, ``api_<n>`` for an unknown key.

    Nothing is kept for a key: clients that have not logged in choose it.
    """
    name = names.api_key_map.get(api_key)
    return f"api_{api_key}" if name is None else str(name)


_ReadMessage = Callable[[Data, int, list[int]], tuple[object, int]]


@cache
def _reader(api_key: int, version: int, kind: Kind) -> tuple[_ReadMessage, int]:
    """Returns a function that checks and reads a message, and the largest number of elements of such a message.

    The function ignores tagged fields that kio's class does not have. ``left``: see ``length_check``.
    """
    entity = message_type(api_key, version, kind)
    read, check = serial.entity_reader(entity), length_check(entity)

    def check_and_read(data: Data, offset: int, left: list[int]) -> tuple[object, int]:
        if check is not None:
            check(data, offset, len(data), left)
        try:
            return read(data, offset)
        except KeyError:
            known = without_unknown_tags(entity, data, offset, left[1])
            if known is None:
                raise
            return read(known[0], 0)[0], known[1] - offset

    return check_and_read, most_elements(entity)


def decode(api_key: int, version: int, kind: Kind, data: bytes | memoryview, offset: int = 0) -> tuple[Any, int]:
    """Reads one message at ``offset``. Returns the message and its number of bytes.

    Raises UnknownMessage, or ValueError if the bytes are not such a message.
    """
    read, most = _reader(api_key, version, kind)
    try:
        return read(data, offset, [most, most])
    except (UnknownMessage, MemoryError):
        raise
    except Exception as error:  # kio raises errors of its own, IndexError, UnicodeDecodeError and others
        raise ValueError(f"malformed {api_name(api_key)} v{version}: {error}") from error


def decode_short(api_key: int, version: int, data: bytes, offset: int) -> tuple[Any, int]:
    """Reads a request of at most ``ELEMENTS_AT_ONCE`` elements. Returns the request and the number of its elements.

    Raises TooManyElements for more elements, and the errors of ``decode``.
    """
    read, left = _reader(api_key, version, Kind.REQUEST)[0], [ELEMENTS_AT_ONCE, ELEMENTS_AT_ONCE]
    try:
        return read(data, offset, left)[0], ELEMENTS_AT_ONCE - left[0]
    except (UnknownMessage, TooManyElements, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"malformed {api_name(api_key)} v{version}: {error}") from error


def decode_in_steps(
    api_key: int,
    version: int,
    kind: Kind,
    data: bytes | memoryview,
    offset: int = 0,
    *,
    kept: list[list[object]] | None = None,
) -> Generator[None, None, Any]:
    """Reads a long message in steps of a few elements and returns it. Raises the errors of ``decode``.

    ``kept`` gets the elements of the message's long arrays, so that the caller can free them in steps
    (``wire/long_requests``).
    """
    from odradek.wire.long_requests import read_in_steps  # imported here, because few requests are long

    entity = message_type(api_key, version, kind)
    try:
        return (yield from read_in_steps(entity, data, offset, [] if kept is None else kept))[0]
    except (MemoryError, GeneratorExit):
        raise
    except Exception as error:
        raise ValueError(f"malformed {api_name(api_key)} v{version}: {error}") from error


def count_in_steps(api_key: int, version: int, data: bytes, offset: int) -> Generator[None, None, int]:
    """Counts the elements and tagged fields of a request before it is read.

    Raises ImpossibleCount if the request cannot be valid, and the errors of ``decode``."""
    from odradek.wire import long_requests

    try:
        return (yield from long_requests.count_in_steps(message_type(api_key, version, Kind.REQUEST), data, offset))
    except (ImpossibleCount, MemoryError, GeneratorExit):
        raise
    except Exception as error:
        raise ValueError(f"malformed {api_name(api_key)} v{version}: {error}") from error


def milliseconds(value: timedelta | int) -> int:
    """Returns a duration field of a decoded message in milliseconds."""
    if isinstance(value, int):
        return value
    return (value.days * 86_400_000) + value.seconds * 1000 + value.microseconds // 1000


def encode(api_key: int, version: int, kind: Kind, message: Mapping[str, object]) -> bytes:
    """Packs a message. Raises KeyError with a field's name if the field is missing and has no default."""
    out: list[bytes] = []
    _entity_writer(message_type(api_key, version, kind))(out, message)
    return b"".join(out)


def encode_pieces(api_key: int, version: int, kind: Kind, message: Mapping[str, object]) -> list[bytes]:
    """Packs a message that can be long. Returns consecutive pieces: long values as they are, short ones joined."""
    out: list[bytes] = []
    _entity_writer(message_type(api_key, version, kind))(out, message)
    return in_pieces(out)


@cache
def element_packer(api_key: int, version: int, kind: Kind, *path: str) -> Pack:
    """Returns the packer of an array's elements (see ``Elements``). ``path``: the names of the fields to the array."""
    entity = message_type(api_key, version, kind)
    for name in path[:-1]:
        entity = next(introspect.classify_field(field).type_ for field in fields(entity) if field.name == name)
    last = next((field for field in _fields_of(entity)[0] if field.name == path[-1]), None)
    if last is None:
        inner = next(introspect.classify_field(field).type_ for field in fields(entity) if field.name == path[-1])
        write = _entity_writer(inner)
    else:
        write = last.item or _entity_writer(last.inner)

    def pack(element: object) -> list[bytes]:
        out: list[bytes] = []
        write(out, element)
        return in_pieces(out)

    return pack


# --- primitives -------------------------------------------------------------------------------------------------


def _fixed(code: str) -> Writer:
    pack = struct.Struct(code).pack

    def write(out: list[bytes], value: object) -> None:
        out.append(pack(value))

    return write


def _write_uuid(out: list[bytes], value: UUID | None) -> None:
    out.append(value.bytes if value is not None else bytes(16))


def _write_optional_time(out: list[bytes], value: int | None) -> None:
    out.append(struct.pack(">q", -1 if value is None else value))


def _text(value: str | bytes | memoryview) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _write_compact_text(out: list[bytes], value: str | bytes) -> None:
    packed = _text(value)
    out.append(uvarint(len(packed) + 1))
    out.append(packed)


def _legacy_text(length_code: str) -> Writer:
    pack = struct.Struct(length_code).pack

    def write(out: list[bytes], value: str | bytes) -> None:
        packed = _text(value)
        out.append(pack(len(packed)))
        out.append(packed)

    return write


def _nullable(write: Writer, null: bytes) -> Writer:
    def write_nullable(out: list[bytes], value: object) -> None:
        if value is None:
            out.append(null)
        else:
            write(out, value)

    return write_nullable


_FIXED: dict[str, Writer] = {
    "int8": _fixed(">b"), "int16": _fixed(">h"), "int32": _fixed(">i"), "int64": _fixed(">q"),
    "uint8": _fixed(">B"), "uint16": _fixed(">H"), "uint32": _fixed(">I"), "uint64": _fixed(">Q"),
    "float64": _fixed(">d"), "bool": _fixed(">?"), "uuid": _write_uuid, "error_code": _fixed(">h"),
    "timedelta_i32": _fixed(">i"), "timedelta_i64": _fixed(">q"), "datetime_i64": _write_optional_time,
}  # fmt: skip


@cache
def _primitive(kafka_type: str, flexible: bool, optional: bool) -> Writer:
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    if flexible:
        return _nullable(_write_compact_text, b"\0") if optional else _write_compact_text
    code, null = (">h", b"\xff\xff") if kafka_type == "string" else (">i", b"\xff\xff\xff\xff")
    return _nullable(_legacy_text(code), null) if optional else _legacy_text(code)


def _cut(write: Writer) -> Writer:
    """Returns a writer of error messages that truncates them to the largest size of a string.

    Such a message can quote long texts of a client.
    """

    def write_cut(out: list[bytes], value: str | None) -> None:
        if value is not None and len(value) * 4 > MAX_STRING_BYTES:
            value = value.encode()[:MAX_STRING_BYTES].decode(errors="ignore")
        write(out, value)

    return write_cut


# --- structures -------------------------------------------------------------------------------------------------


def _array(item: Writer, flexible: bool) -> Writer:
    def write_compact(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(b"\0")
            return
        out.append(uvarint(len(value) + 1))
        if type(value) is Elements:
            out += value.chunks()
            return
        for element in value:
            item(out, element)

    def write_legacy(out: list[bytes], value: Any) -> None:
        if value is None:
            out.append(b"\xff\xff\xff\xff")
            return
        out.append(len(value).to_bytes(4, "big"))
        if type(value) is Elements:  # not isinstance: a reply to Metadata has hundreds of arrays
            out += value.chunks()
            return
        for element in value:
            item(out, element)

    return write_compact if flexible else write_legacy


def _field_writer(field: Field[object], flexible: bool, *, tagged: bool, is_client_id: bool) -> Writer:
    kind = introspect.classify_field(field)
    optional = not tagged and introspect.is_optional(field)
    kafka_type = field.metadata.get("kafka_type")
    if kafka_type is None:
        nested = _entity_writer(kind.type_)
        if kind.is_array:
            return _array(nested, flexible)
        return _nullable_entity(nested) if optional else nested
    if kind.is_array:
        return _array(_primitive(kafka_type, flexible, False), flexible)
    return _primitive(kafka_type, flexible and not is_client_id, optional)


def _nullable_entity(write: Writer) -> Writer:
    def write_nullable(out: list[bytes], value: object) -> None:
        out.append(b"\xff" if value is None else b"\x01")
        if value is not None:
            write(out, value)

    return write_nullable


def _default(field: Field[object]) -> object:
    """Returns the value for an absent key; ``_MISSING`` if the key is required."""
    if field.metadata.get("kafka_type") in ("timedelta_i32", "timedelta_i64") and field.name == "throttle_time":
        return 0
    if field.default is not MISSING:
        value = field.default
        if isinstance(value, timedelta):
            return milliseconds(value)
        return value
    if field.name == "error_code":
        return 0
    if field.name == "error_message" and introspect.is_optional(field):
        return None
    return _MISSING


def _as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {field.name: getattr(value, field.name) for field in fields(value)}


class _Plain(NamedTuple):
    """A field without a tag. ``inner``: the class of the elements for an array of structures, otherwise None.

    ``item``: the writer of an element for an array of anything else, otherwise None.
    """

    name: str
    write: Writer
    default: object
    inner: type[Entity] | None
    item: Writer | None


Tagged = tuple[int, str, Writer, bytes | None]


@cache
def _fields_of(entity: type[Entity]) -> tuple[list[_Plain], list[Tagged]]:
    flexible = bool(entity.__flexible__)
    header = entity.__name__ == "RequestHeader"
    plain: list[_Plain] = []
    tagged: list[Tagged] = []
    for field in fields(entity):
        tag = introspect.get_field_tag(field)
        write = _field_writer(
            field, flexible, tagged=tag is not None, is_client_id=header and field.name == "client_id"
        )
        if field.name == "error_message":
            write = _cut(write)
        if tag is None:
            kind = introspect.classify_field(field)
            kafka_type = field.metadata.get("kafka_type")
            inner = kind.type_ if kind.is_array and kafka_type is None else None
            item = _primitive(kafka_type, flexible, False) if kind.is_array and kafka_type is not None else None
            plain.append(_Plain(field.name, write, _default(field), inner, item))
        else:
            tagged.append((int(tag), field.name, write, _packed_default(write, _default(field))))
    tagged.sort(key=lambda row: row[0])
    return plain, tagged


@cache
def _entity_writer(entity: type[Entity]) -> Writer:
    flexible = bool(entity.__flexible__)
    fields_without_tag, tagged = _fields_of(entity)
    plain = [(field.name, field.write, field.default) for field in fields_without_tag]

    def write_entity(out: list[bytes], message: object) -> None:
        values = message if type(message) is dict else _as_mapping(message)
        for name, write, default in plain:
            value = values.get(name, default)
            if value is _MISSING:
                raise KeyError(f"{entity.__name__} v{entity.__version__} needs {name}")
            write(out, value)
        if flexible:
            _write_tags(out, tagged, values)

    return write_entity


def _packed_default(write: Writer, default: object) -> bytes | None:
    """Returns a default as bytes, or None without a default. As in Kafka, a tagged field with this value is omitted."""
    if default is _MISSING or default is None:
        return None
    packed: list[bytes] = []
    write(packed, default)
    return b"".join(packed)


def _write_tags(out: list[bytes], tagged: list[Tagged], values: Mapping[str, object]) -> None:
    present: list[tuple[int, bytes]] = []
    for tag, name, write, default in tagged:
        value = values.get(name)
        if value is None:
            continue
        packed: list[bytes] = []
        write(packed, value)
        content = b"".join(packed)
        if content != default:
            present.append((tag, content))
    out.append(uvarint(len(present)))
    for tag, content in present:
        out.append(uvarint(tag))
        out.append(uvarint(len(content)))
        out.append(content)


# --- in steps ---------------------------------------------------------------------------------------------------

LONG_MESSAGE = 200
"""A message with more structures than this, in all its arrays together, is packed in steps."""
LONG_ARRAY = 2000
"""A message whose first-level array of numbers or texts has more elements than this is packed in steps."""
_STEPS_PER_PIECE = 256


def is_long(api_key: int, version: int, kind: Kind, message: Mapping[str, Any]) -> bool:
    """Returns whether a message is so long that packing it takes milliseconds."""
    entity = message_type(api_key, version, kind)
    arrays = _arrays_of(entity)
    if arrays and _left(arrays, message, LONG_MESSAGE) < 0:
        return True
    values = _values_of(entity)
    return bool(values) and any(len(message.get(name) or ()) > LONG_ARRAY for name in values)


_Arrays = tuple[tuple[str, Any], ...]


@cache
def _arrays_of(entity: type[Entity]) -> _Arrays:
    """Returns the names of a structure's arrays of structures, each with ``_arrays_of`` the class of its elements."""
    return tuple((field.name, _arrays_of(field.inner)) for field in _fields_of(entity)[0] if field.inner is not None)


@cache
def _values_of(entity: type[Entity]) -> tuple[str, ...]:
    """Returns the names of a structure's arrays of numbers or texts."""
    return tuple(field.name for field in _fields_of(entity)[0] if field.item is not None)


def _left(arrays: _Arrays, message: object, left: int) -> int:
    """Returns ``left`` minus the number of structures in these arrays. It stops counting below 0."""
    values = message if type(message) is dict else _as_mapping(message)
    for name, inner in arrays:
        array = values.get(name)
        if not array or type(array) is Elements:
            continue
        left -= len(array)
        if left < 0:
            return left
        for element in array if inner else ():
            left = _left(inner, element, left)
            if left < 0:
                return left
    return left


def encode_in_steps(
    api_key: int, version: int, kind: Kind, message: Mapping[str, object], grow: Callable[[int], None]
) -> Generator[None, None, list[bytes]]:
    """Does the same as ``encode_pieces`` in steps of one structure.

    After every ``_STEPS_PER_PIECE`` steps it calls ``grow`` with the number of bytes that these steps have packed.
    """
    out: list[bytes] = []
    packed = 0
    for number, _ in enumerate(_written_in_steps(message_type(api_key, version, kind), out, message), 1):
        if not number % _STEPS_PER_PIECE:
            out[packed:] = [b"".join(out[packed:])]
            grow(len(out[packed]))
            packed += 1
        yield
    return in_pieces(out)


def _written_in_steps(entity: type[Entity], out: list[bytes], message: object) -> Generator[None, None, None]:
    values = message if type(message) is dict else _as_mapping(message)
    plain, tagged = _fields_of(entity)
    flexible = bool(entity.__flexible__)
    for name, write, default, inner, item in plain:
        value = values.get(name, default)
        if value is _MISSING:
            raise KeyError(f"{entity.__name__} v{entity.__version__} needs {name}")
        if not value or type(value) is Elements or (inner is None and (item is None or len(value) <= LONG_ARRAY)):
            write(out, value)
            continue
        out.append(uvarint(len(value) + 1) if flexible else len(value).to_bytes(4, "big"))
        if item is not None:
            for number, element in enumerate(value, 1):
                item(out, element)
                if not number % LONG_MESSAGE:
                    yield
            continue
        assert inner is not None  # an array has elements of one or the other kind
        write_element = _entity_writer(inner)
        for element in value:
            if _arrays_of(inner):
                yield from _written_in_steps(inner, out, element)
            else:
                write_element(out, element)
            yield
    if flexible:
        _write_tags(out, tagged, values)


@cache
def field_names(entity: type[Entity]) -> frozenset[str]:
    """Returns the field names of one version of a structure."""
    return frozenset(field.name for field in fields(entity))
