"""A look at the lengths in a message before kio reads it.

kio's reader makes room for as many elements as an array claims to have before it has seen one: a request of 20 bytes
that claims 2^31 elements ends the process in the allocator, beyond the reach of ``except``. Here every array's length
is held against the bytes that are left, as Kafka does it, and arrays that are null against the protocol are refused,
which kio lets pass as ``None``.

A request may hold ``MAX_ELEMENTS`` in all its arrays together. Kafka has no such bound: it answers fifty million empty
names from one of its threads while the others serve. Here everybody would wait for that answer.

The walk is straight code, generated once per message. It ends behind the last array: a commit of one topic costs two
lengths, however many partitions it has.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from functools import cache
from typing import Any, get_origin

import odradek.core.kio_alone  # noqa: F401  # isort: skip  (before kio)
from kio.serial._introspect import classify_field, get_field_tag, is_optional
from kio.static.constants import EntityType

from odradek.core.varints import read_uvarint

Walk = Callable[[Any, int, int], int]
_CountingWalk = Callable[[Any, int, int, list[int]], int]

MAX_ELEMENTS = 250_000
"""In one request: more than ten times the partitions a broker can have."""

_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from

_SIZES = {
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float64": 8,
    "bool": 1, "uuid": 16, "error_code": 2, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip


@cache
def length_check(entity: Any) -> Walk | None:
    """``check(data, start, end)`` of one of kio's message classes; ``None`` where it has no array.

    The check raises ValueError, IndexError or struct.error for lengths that cannot be, and for too many elements.
    """
    return _counted(entity, _compiled(entity, True)) if _has_arrays(entity) else None


@cache
def whole_walk(entity: Any) -> Walk:
    """Like ``length_check``, to the end of the message; returns the position behind it."""
    return _counted(entity, _compiled(entity, False))


def _counted(entity: Any, walk: _CountingWalk) -> Walk:
    most = MAX_ELEMENTS if entity.__type__ is EntityType.request else sys.maxsize
    return lambda data, at, end: walk(data, at, end, [most])


def _too_many() -> None:
    raise ValueError(f"it holds more than {MAX_ELEMENTS:,} elements; ask for fewer at a time")


def _refuse(name: str, count: int, left: int) -> None:
    if count < 0:
        raise ValueError(f"{name} is null")
    raise ValueError(f"{name} claims {count} elements in {left} bytes")


def _kafka_type(field: Field[Any]) -> str | None:
    found = field.metadata.get("kafka_type")
    return None if found is None else str(found)


@cache
def _has_arrays(entity: Any) -> bool:
    return any(_bears_arrays(field) for field in fields(entity))


def _bears_arrays(field: Field[Any]) -> bool:
    kind = classify_field(field)
    return kind.is_array or (_kafka_type(field) is None and _has_arrays(kind.type_))


def _is_nullable(field: Field[Any]) -> bool:
    return get_origin(field.type) is not tuple and is_optional(field)


def _least_bytes(field: Field[Any], flexible: bool) -> int:
    """Fewest bytes one element of the field takes."""
    kafka_type = _kafka_type(field)
    if kafka_type is None:
        entity: Any = classify_field(field).type_
        least = sum(
            1 if classify_field(each).is_array or _is_nullable(each) else _least_bytes(each, entity.__flexible__)
            for each in fields(entity)
            if get_field_tag(each) is None
        )
        return max(1, least + (1 if entity.__flexible__ else 0))
    return _SIZES.get(kafka_type, 1 if flexible else 2)


class _Code:
    """The lines of one walk being written; ``names`` are what they refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"uvarint": read_uvarint, "int16": _INT16, "int32": _INT32}
        self.names |= {"refuse": _refuse, "too_many": _too_many}
        self._pending = 0

    def skip(self, count: int) -> None:
        self._pending += count

    def add(self, *lines: str) -> None:
        if self._pending:
            self.lines.append(f"at += {self._pending}")
            self._pending = 0
        self.lines += lines

    def bind(self, value: Any) -> str:
        name = f"f{len(self.names)}"
        self.names[name] = value
        return name

    def read_length(self, flexible: bool, size: int) -> None:
        """``n``: −1 for null."""
        if flexible:
            self.add("n = d[at] - 1", "if n < 127: at += 1", "else:", "    n, at = uvarint(d, at)", "    n -= 1")
        else:
            self.add(f"n, = int{8 * size}(d, at)", f"at += {size}")

    def function(self) -> _CountingWalk:
        self.add("return at")
        body = "".join(f"    {line}\n" for line in self.lines)
        exec(f"def walk(d, at, end, left):\n{body}", self.names)
        walk: _CountingWalk = self.names["walk"]
        return walk


def _compiled(entity: Any, until_last: bool) -> _CountingWalk:
    code, flexible = _Code(), bool(entity.__flexible__)
    plain = [field for field in fields(entity) if get_field_tag(field) is None]
    tagged = {int(tag): field for field in fields(entity) if (tag := get_field_tag(field)) is not None}
    watched = {tag: field for tag, field in tagged.items() if _bears_arrays(field)}
    last = -1
    if until_last and not watched:
        while plain and not _bears_arrays(plain[-1]):
            plain.pop()
        last = len(plain) - 1
    for number, field in enumerate(plain):
        _walk_field(code, field, flexible, until_last=number == last)
    if flexible and last < 0:
        walks = {tag: _walk_of_tag(field) for tag, field in watched.items()}
        code.add(
            "if d[at]:", f"    at = {code.bind(_tags)}(d, at, end, {code.bind(walks)}, left)", "else:", "    at += 1"
        )
    return code.function()


def _walk_field(code: _Code, field: Field[Any], flexible: bool, *, until_last: bool) -> None:
    kind, kafka_type = classify_field(field), _kafka_type(field)
    if kind.is_array:
        code.read_length(flexible, 4)
        least = _least_bytes(field, flexible)
        refuse = f"refuse({field.name!r}, n, end - at)"
        below = -1 if _is_nullable(field) else 0
        code.add(f"if n < {below} or (n > 0 and n * {least} > end - at): {refuse}")
        code.add("if n > 1:", "    left[0] -= n", "    if left[0] < 0: too_many()")
        _walk_elements(code, field, flexible, until_last=until_last)
    elif kafka_type is None:
        nested = code.bind(_compiled_once(kind.type_, until_last))
        if _is_nullable(field):
            code.add("n = d[at]", "at += 1", f"if n == 1: at = {nested}(d, at, end, left)")
            code.add(f"elif n != 255: raise ValueError('{field.name} is neither there nor null')")
        else:
            code.add(f"at = {nested}(d, at, end, left)")
    elif kafka_type in _SIZES:
        code.skip(_SIZES[kafka_type])
    else:
        code.read_length(flexible, 2 if kafka_type == "string" else 4)
        code.add("if n > 0: at += n")
        code.add(f"elif n < -1: raise ValueError('{field.name} has a negative length')")


def _walk_elements(code: _Code, field: Field[Any], flexible: bool, *, until_last: bool) -> None:
    kind, kafka_type = classify_field(field), _kafka_type(field)
    if kafka_type is None:
        if until_last and not _has_arrays(kind.type_):
            return
        whole = code.bind(_compiled_once(kind.type_, False))
        if until_last:
            final = code.bind(_compiled_once(kind.type_, True))
            code.add(
                f"for _ in range(n - 1): at = {whole}(d, at, end, left)", f"if n > 0: at = {final}(d, at, end, left)"
            )
        else:
            code.add(f"for _ in range(n): at = {whole}(d, at, end, left)")
    elif until_last:
        return
    elif kafka_type in _SIZES:
        code.add(f"if n > 0: at += n * {_SIZES[kafka_type]}")
    else:
        element = _Code()
        element.read_length(flexible, 2 if kafka_type == "string" else 4)
        element.add("if n > 0: at += n", "elif n < -1: raise ValueError('an element has a negative length')")
        code.add(f"for _ in range(n): at = {code.bind(element.function())}(d, at, end, left)")


@cache
def _compiled_once(entity: Any, until_last: bool) -> _CountingWalk:
    return _compiled(entity, until_last)


def _walk_of_tag(field: Field[Any]) -> _CountingWalk:
    code = _Code()
    _walk_field(code, field, True, until_last=False)
    return code.function()


def _tags(data: Any, at: int, end: int, walks: dict[int, _CountingWalk], left: list[int]) -> int:
    """Over tagged fields, into those that hold arrays: these have to take as many bytes as they say."""
    count, at = read_uvarint(data, at)
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > end - at:
            raise ValueError(f"tagged field {tag} claims {size} bytes of {end - at}")
        walk = walks.get(tag)
        if walk is not None and walk(data, at, at + size, left) != at + size:
            raise ValueError(f"tagged field {tag} does not fill its {size} bytes")
        at += size
    return at
