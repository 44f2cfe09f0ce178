"""Checks of the lengths in a message before kio reads it.

kio's reader allocates memory for the declared length of an array before it reads an element. A request of 20 bytes with
an array of 2^31 elements would end the process in the allocator, and no ``except`` could catch this. So this module
compares every array length with the number of remaining bytes, as Kafka does. It refuses a null array where the
protocol allows none; kio would return ``None``.

All arrays of a request together may have ``MAX_ELEMENTS`` elements. Tagged fields count as elements. The element of an
array with only one element does not count. Kafka has no such limit: one of its threads can handle fifty million empty
names while other threads serve clients. Here all clients would wait.

A walk is a function that checks the lengths in a message. Its code is generated and compiled once per message class. A
walk may end before the elements of the last array. So a commit of one topic with any number of partitions needs two
length checks.

A walk that ends there has not checked the strings in these elements. The elements have a smallest total size. If the
rest of the request is at most ``MAX_STRING_BYTES`` longer than this size, no string in the rest is too long. Otherwise
a second walk goes through the whole request.

Another walk finds the tagged fields that this version of a message does not have (``without_unknown_tags``).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_origin

import odradek.core.kio_import  # noqa: F401  # isort: skip  (before kio)
from kio.static.constants import EntityType

from odradek.core.ids import MAX_STRING_BYTES
from odradek.core.lazy_import import LazyModule
from odradek.core.varints import read_uvarint, uvarint

if TYPE_CHECKING:
    from kio.serial import _introspect as introspect
    from kio.static.protocol import Entity
else:  # as in ``schemas``
    introspect = LazyModule("kio.serial._introspect")

Data = bytes | memoryview
CountingWalk = Callable[[Data, int, int, list[int]], int]

MAX_ELEMENTS = 250_000
"""The largest number of elements and tagged fields in one request: 25 times the number of partitions that one request
may create."""
MAX_REPLY_ELEMENTS = 1_000_000
"""The largest number of elements and tagged fields in one reply. Metadata and Fetch replies can have more; ``client/``
reads these without kio."""
ELEMENTS_AT_ONCE = 2000
"""A request with at most this many elements and tagged fields is read in one step, which takes a few milliseconds."""
MOST_NAMES = 1000
"""The largest number of elements of the arrays in ``SHORT_ARRAYS`` in a request of more than ``ELEMENTS_AT_ONCE``."""
SHORT_ARRAYS = {
    ("AddRaftVoterRequest", "listeners"), ("DescribeClientQuotasRequest", "components"),
    ("ListGroupsRequest", "states_filter"), ("ListGroupsRequest", "types_filter"),
    ("ListTransactionsRequest", "state_filters"), ("UpdateFeaturesRequest", "feature_updates"),
}  # fmt: skip
"""Arrays of which a valid request has few elements, because few different ones exist."""
MAX_TAGGED_FIELDS = 1000
"""The largest number of tagged fields in one structure or header. Kafka reads any number; no structure of its protocol
has ten."""

_INT16 = struct.Struct(">h").unpack_from
_INT32 = struct.Struct(">i").unpack_from

_SIZES = {
    "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "float64": 8,
    "bool": 1, "uuid": 16, "error_code": 2, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip


class TooManyElements(ValueError):
    """A message has more elements and tagged fields than the limit."""


class ImpossibleCount(ValueError):
    """An array of ``SHORT_ARRAYS`` has more elements than a valid request can have."""


class _Mode(NamedTuple):
    """The options of a walk.

    ``limits_strings``: the walk checks the lengths of strings. Only flexible requests need this, because the int16
    lengths of older versions cannot exceed the limit. ``until_last``: the walk ends before the elements of the last
    array. ``rest_is_plain``: no strings and no known tagged fields follow the walked part. ``strips``: the walk
    collects unknown tagged fields.
    """

    limits_strings: bool
    until_last: bool = False
    rest_is_plain: bool = True
    strips: bool = False


@cache
def length_check(entity: type[Entity]) -> CountingWalk | None:
    """Returns ``check(data, start, end, left)`` of a kio message class, or ``None`` if there is nothing to check.

    ``left`` has the largest number of elements twice, ``most_elements`` or less. The check subtracts the elements of
    the message from the first. It raises TooManyElements for too many elements, and ValueError, IndexError or
    struct.error for impossible lengths.
    """
    strict = is_strict(entity)
    whole = _compiled_once(entity, _Mode(strict))
    if not _has_arrays(entity):
        if not strict or _is_plain(entity):
            return None
        return lambda data, at, end, left: whole(data, at, end, left) if end - at > MAX_STRING_BYTES else at
    walk = _compiled_once(entity, _Mode(strict, until_last=True))
    if not strict:
        return walk

    def check(data: Data, at: int, end: int, left: list[int]) -> int:
        stopped_at = walk(data, at, end, left)
        if stopped_at != _GO_ON:
            return stopped_at
        left[0] = left[1]
        return whole(data, at, end, left)

    return check


def without_unknown_tags(
    entity: type[Entity], data: bytes | memoryview, at: int, most: int = sys.maxsize
) -> tuple[bytes, int] | None:
    """Returns a message without the tagged fields that its class does not have, and its end in ``data``.

    Returns ``None`` if the message has no such field. Raises the same errors as a check of ``length_check``.
    """
    left = _Stripped(min(most, most_elements(entity)))
    end = _compiled_once(entity, _Mode(is_strict(entity), strips=True))(data, at, len(data), left)
    if not left.cuts:
        return None
    kept: list[bytes | memoryview] = []
    for start, stop, instead in sorted(left.cuts):
        kept += (data[at:start], instead)
        at = stop
    kept.append(data[at:end])
    return b"".join(kept), end


def structure_walk(entity: type[Entity], strict: bool) -> CountingWalk:
    """Returns a walk over one structure of a message.

    The walk subtracts the number of tagged fields and of array elements from ``left[0]``. The element of an array with
    only one element does not count.
    """
    return _compiled_once(entity, _Mode(strict))


def fields_walk(entity: type[Entity], plain: Sequence[Field[object]], strict: bool, *, and_tags: bool) -> CountingWalk:
    """Returns a walk over some consecutive fields of a structure, with ``and_tags`` also over its tagged fields."""
    code = _Code()
    for field in plain:
        _walk_field(code, field, entity.__flexible__, _Mode(strict))
    if and_tags:
        _walk_tagged(code, entity, _Mode(strict))
    return code.function()


def string_walk(field: Field[object], flexible: bool, strict: bool) -> CountingWalk:
    """Returns a walk over an element of an array of strings."""
    return _walk_of_text(field, flexible, _Mode(strict))


def array_start(field: Field[object], flexible: bool) -> Callable[[Data, int, int, list[int]], tuple[int, int]]:
    """Returns a function that reads and checks an array's length.

    It returns the number of elements (−1 for null) and the position of the first element.
    """
    code = _Code()
    _read_count(code, field, flexible)
    start: Callable[[Data, int, int, list[int]], tuple[int, int]] = code.defined("return n, at")
    return start


class _Stripped(list[int]):
    """The counter of a walk, with the parts of the message to remove: start, end, replacement."""

    def __init__(self, most: int) -> None:
        super().__init__((most, most))
        self.cuts: list[tuple[int, int, bytes]] = []
        self.removed = 0

    def cut(self, start: int, stop: int, instead: bytes = b"") -> None:
        self.removed += stop - start - len(instead)
        if self.cuts and self.cuts[-1][1] == start and not instead and not self.cuts[-1][2]:
            start = self.cuts.pop()[0]
        self.cuts.append((start, stop, instead))


_GO_ON = -1
"""The result of a walk up to the last array if the rest of the message must be checked, too."""


def most_elements(entity: type[Entity]) -> int:
    """Returns the largest number of elements and tagged fields that a message may have."""
    return MAX_ELEMENTS if entity.__type__ is EntityType.request else MAX_REPLY_ELEMENTS


def is_strict(entity: type[Entity]) -> bool:
    """Returns whether the lengths of a message's strings are compared with ``MAX_STRING_BYTES``."""
    return entity.__type__ is EntityType.request and bool(entity.__flexible__)


def too_many(most: int) -> None:
    raise TooManyElements(f"it has more than {most:,} elements; send fewer in one request")


def _too_long(name: str, size: int) -> None:
    raise ValueError(f"{name} has {size:,} bytes; the limit of a string is {MAX_STRING_BYTES:,} bytes")


def _refuse(name: str, count: int, left: int) -> None:
    if count < 0:
        raise ValueError(f"{name} is null")
    raise ValueError(f"{name} declares {count} elements in {left} bytes")


def _kafka_type(field: Field[object]) -> str | None:
    kafka_type = field.metadata.get("kafka_type")
    return None if kafka_type is None else str(kafka_type)


@cache
def _has_arrays(entity: type[Entity]) -> bool:
    return any(_bears_arrays(field) for field in fields(entity))


def _bears_arrays(field: Field[object]) -> bool:
    kind = introspect.classify_field(field)
    return kind.is_array or (_kafka_type(field) is None and _has_arrays(kind.type_))


@cache
def _is_plain(entity: type[Entity]) -> bool:
    """Returns whether a structure has no strings and no tagged fields."""
    return all(_is_plain_field(field) for field in fields(entity))


def _is_plain_field(field: Field[object]) -> bool:
    if introspect.get_field_tag(field) is not None:
        return False
    kafka_type = _kafka_type(field)
    return kafka_type != "string" if kafka_type is not None else _is_plain(introspect.classify_field(field).type_)


def _is_nullable(field: Field[object]) -> bool:
    return get_origin(field.type) is not tuple and introspect.is_optional(field)


def _least_bytes(field: Field[object], flexible: bool) -> int:
    """Returns the smallest size of one element of the field."""
    kafka_type = _kafka_type(field)
    if kafka_type is None:
        entity: type[Entity] = introspect.classify_field(field).type_
        least = sum(
            1
            if introspect.classify_field(each).is_array or _is_nullable(each)
            else _least_bytes(each, entity.__flexible__)
            for each in fields(entity)
            if introspect.get_field_tag(each) is None
        )
        return max(1, least + (1 if entity.__flexible__ else 0))
    return _SIZES.get(kafka_type, 1 if flexible else 2)


class _Code:
    """The generated lines of a walk, and the objects that the lines use by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, object] = {"uvarint": read_uvarint, "int16": _INT16, "int32": _INT32}
        self.names |= {"refuse": _refuse, "too_many": too_many, "too_long": _too_long}
        self._pending = 0

    def skip(self, count: int) -> None:
        self._pending += count

    def add(self, *lines: str) -> None:
        if self._pending:
            self.lines.append(f"at += {self._pending}")
            self._pending = 0
        self.lines += lines

    def bind(self, value: object) -> str:
        name = f"f{len(self.names)}"
        self.names[name] = value
        return name

    def read_length(self, flexible: bool, size: int, *, check: str = "") -> None:
        """Adds lines that read a length into ``n`` (−1 for null). ``check``: a line for compact lengths above 126."""
        if flexible:
            self.add("n = d[at] - 1", "if n < 127: at += 1", "else:", "    n, at = uvarint(d, at)", "    n -= 1")
            if check:
                self.add(f"    {check}")
        else:
            self.add(f"n, = int{8 * size}(d, at)", f"at += {size}")

    def skip_text(self, name: str, flexible: bool, is_string: bool, mode: _Mode) -> None:
        """Adds lines that skip a string or bytes. Only a compact length can exceed the limit of a string."""
        too_long = f"if n > {MAX_STRING_BYTES}: too_long({name!r}, n)" if is_string and mode.limits_strings else ""
        self.read_length(flexible, 2 if is_string else 4, check=too_long)
        self.add("if n > 0: at += n", f"elif n < -1: raise ValueError('{name} has a negative length')")

    def stop_here(self, least: int, mode: _Mode) -> None:
        """Adds a line that returns ``_GO_ON`` if a string after this position can be too long.

        ``least`` is the smallest size of each of the ``n`` elements of the last array, or 0.
        """
        if mode.limits_strings and not mode.rest_is_plain:
            taken = f" - n * {least}" if least else ""
            self.add(f"if end - at{taken} > {MAX_STRING_BYTES}: return {_GO_ON}")

    def function(self) -> CountingWalk:
        walk: CountingWalk = self.defined("return at")
        return walk

    def defined(self, last: str) -> Any:
        self.add(last)
        body = "".join(f"    {line}\n" for line in self.lines)
        exec(f"def walk(d, at, end, left):\n{body}", self.names)
        return self.names["walk"]


@cache
def _compiled_once(entity: type[Entity], mode: _Mode) -> CountingWalk:
    return _compiled(entity, mode)


def _compiled(entity: type[Entity], mode: _Mode) -> CountingWalk:
    code, flexible = _Code(), bool(entity.__flexible__)
    plain = [field for field in fields(entity) if introspect.get_field_tag(field) is None]
    tagged = [field for field in fields(entity) if introspect.get_field_tag(field) is not None]
    last = -1
    if mode.until_last and not any(map(_bears_arrays, tagged)):
        rest_is_plain = mode.rest_is_plain and not tagged
        while plain and not _bears_arrays(plain[-1]):
            rest_is_plain = _is_plain_field(plain.pop()) and rest_is_plain
        last = len(plain) - 1
        mode = mode._replace(rest_is_plain=rest_is_plain)
    whole = mode._replace(until_last=False, rest_is_plain=True)
    for number, field in enumerate(plain):
        _walk_field(code, field, flexible, mode if number == last else whole)
    if last < 0:
        _walk_tagged(code, entity, whole)
        code.stop_here(0, mode)
    return code.function()


def _walk_tagged(code: _Code, entity: type[Entity], mode: _Mode) -> None:
    if not entity.__flexible__:
        return
    tagged = [(int(tag), field) for field in fields(entity) if (tag := introspect.get_field_tag(field)) is not None]
    walks = {tag: _walk_of_tag(field, mode) for tag, field in tagged}
    over_tags = code.bind(_strip_tags if mode.strips else _walk_tags)
    code.add("if d[at]:", f"    at = {over_tags}(d, at, end, {code.bind(walks)}, left)", "else:", "    at += 1")


def _walk_field(code: _Code, field: Field[object], flexible: bool, mode: _Mode, *, tagged: bool = False) -> None:
    kind, kafka_type = introspect.classify_field(field), _kafka_type(field)
    if kind.is_array:
        _read_count(code, field, flexible)
        _walk_elements(code, field, flexible, mode)
    elif kafka_type is None:
        nested = code.bind(_compiled_once(kind.type_, mode))
        if _is_nullable(field) and not tagged:
            code.add("n = d[at]", "at += 1", f"if n == 1: at = {nested}(d, at, end, left)")
            code.add(f"elif n != 255: raise ValueError('{field.name} has an invalid null marker')")
            code.stop_here(0, mode)
        else:
            code.add(f"at = {nested}(d, at, end, left)")
    elif kafka_type in _SIZES:
        code.skip(_SIZES[kafka_type])
    else:
        code.skip_text(field.name, flexible, kafka_type == "string", mode)


def _read_count(code: _Code, field: Field[object], flexible: bool) -> None:
    code.read_length(flexible, 4)
    least = _least_bytes(field, flexible)
    refuse = f"refuse({field.name!r}, n, end - at)"
    below = -1 if _is_nullable(field) else 0
    code.add(f"if n < {below} or (n > 0 and n * {least} > end - at): {refuse}")
    code.add("if n > 1:", "    left[0] -= n", "    if left[0] < 0: too_many(left[1])")


def _walk_elements(code: _Code, field: Field[object], flexible: bool, mode: _Mode) -> None:
    kind, kafka_type = introspect.classify_field(field), _kafka_type(field)
    whole = mode._replace(until_last=False, rest_is_plain=True)
    if mode.until_last and (kafka_type is not None or not _has_arrays(kind.type_)):
        is_plain = mode.rest_is_plain and _is_plain_field(field)
        code.stop_here(_least_bytes(field, flexible), mode._replace(rest_is_plain=is_plain))
    elif kafka_type is None:
        walk = code.bind(_compiled_once(kind.type_, whole))
        if mode.until_last:
            final = code.bind(_compiled_once(kind.type_, mode))
            code.add(f"for _ in range(n - 1): at = {walk}(d, at, end, left)")
            code.add(f"if n > 0: return {final}(d, at, end, left)")
            code.stop_here(0, mode)
        else:
            code.add(f"for _ in range(n): at = {walk}(d, at, end, left)")
    elif kafka_type in _SIZES:
        code.add(f"if n > 0: at += n * {_SIZES[kafka_type]}")
    else:
        element = _walk_of_text(field, flexible, mode)
        code.add(f"for _ in range(n): at = {code.bind(element)}(d, at, end, left)")


def _walk_of_text(field: Field[object], flexible: bool, mode: _Mode) -> CountingWalk:
    code = _Code()
    code.skip_text(f"an element of {field.name}", flexible, _kafka_type(field) == "string", mode)
    return code.function()


def _walk_of_tag(field: Field[object], mode: _Mode) -> CountingWalk:
    code = _Code()
    _walk_field(code, field, True, mode, tagged=True)
    return code.function()


def _count_of_tags(data: Data, at: int, end: int, left: list[int]) -> tuple[int, int]:
    count, at = read_uvarint(data, at)
    if count > MAX_TAGGED_FIELDS:
        raise ValueError(f"it has {count:,} tagged fields in one structure; the limit is {MAX_TAGGED_FIELDS:,}")
    left[0] -= count
    if left[0] < 0:
        too_many(left[1])
    return count, at


def _walk_tags(data: Data, at: int, end: int, walks: dict[int, CountingWalk], left: list[int]) -> int:
    """Walks over tagged fields, and into the known ones, because kio does not check their declared sizes."""
    count, at = _count_of_tags(data, at, end, left)
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if size > end - at:
            raise ValueError(f"tagged field {tag} declares {size} bytes, but only {end - at} remain")
        walk = walks.get(tag)
        if walk is not None and walk(data, at, at + size, left) != at + size:
            raise ValueError(f"tagged field {tag} does not fill its {size} bytes")
        at += size
    return at


def _strip_tags(data: Data, at: int, end: int, walks: dict[int, CountingWalk], stripped: _Stripped) -> int:
    """Does the same as ``_walk_tags``, and adds the unknown fields to ``stripped.cuts``."""
    begin = at
    count, at = _count_of_tags(data, at, end, stripped)
    first, kept = at, 0
    for _ in range(count):
        start = at
        tag, at = read_uvarint(data, at)
        size_at = at
        size, at = read_uvarint(data, at)
        if size > end - at:
            raise ValueError(f"tagged field {tag} declares {size} bytes, but only {end - at} remain")
        walk = walks.get(tag)
        if walk is None:
            stripped.cut(start, at + size)
        else:
            kept += 1
            removed = stripped.removed
            if walk(data, at, at + size, stripped) != at + size:
                raise ValueError(f"tagged field {tag} does not fill its {size} bytes")
            removed = stripped.removed - removed
            if removed:
                stripped.cut(size_at, at, uvarint(size - removed))
        at += size
    if kept < count:
        stripped.cut(begin, first, uvarint(kept))
    return at
