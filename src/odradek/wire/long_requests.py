"""A reader of long messages in steps of a few elements.

kio reads a message in one call, which takes some tenths of a second for 200,000 elements. This reader checks the
lengths in each array element and then reads the element separately. Other code can run between two steps.
``schemas.decode_in_steps`` uses this reader. It returns the same message as ``schemas.decode`` and raises the same
errors.

The objects of 200,000 structures would take up to 130 MB, so a long array of structures is a ``LongArray``, which reads
them again when they are used (``wire/long_arrays``).

To free the memory of 200,000 texts takes as long as to read them. ``kept`` gets a list of the elements of each long
array of texts. While a caller keeps this list, the message can be freed without them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import Field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import odradek.core.kio_import  # noqa: F401  # isort: skip  (before kio)
from kio.serial import entity_reader
from kio.serial._introspect import classify_field, get_field_tag
from kio.serial.readers import read_compact_string, read_legacy_string

from odradek.wire.long_arrays import LongArray, ReadElement
from odradek.wire.request_limits import (
    MOST_NAMES,
    SHORT_ARRAYS,
    CountingWalk,
    Data,
    ImpossibleCount,
    array_start,
    fields_walk,
    is_strict,
    most_elements,
    string_walk,
    structure_walk,
    too_many,
    without_unknown_tags,
)

if TYPE_CHECKING:
    from kio.static.protocol import Entity

Counting = Generator[None, None, int]
"""Returns the position after the counted part."""
Reading = Generator[None, None, tuple[object, int]]
"""Returns a value and the position after it."""
Kept = list[list[object]]
"""The elements of each long array."""
_CountInSteps = Callable[[Data, int, int, list[int]], Counting]
_ReadInSteps = Callable[[Data, int, int, list[int], Kept], Reading]

STRUCTURES_PER_STEP = 16
COUNTED_PER_STEP = 200
FEW_ELEMENTS = 64
"""A structure with at most this number of elements in its arrays and at most ``BYTES_PER_STEP`` is read in one step."""
BYTES_PER_STEP = 256 << 10


def read_in_steps(entity: type[Entity], data: bytes | memoryview, at: int, kept: Kept) -> Reading:
    """Reads one message of a kio class. Raises the errors of the checks and of kio."""
    return _structure_in_steps(entity, is_strict(entity))(data, at, len(data), [most_elements(entity)] * 2, kept)


def count_in_steps(entity: type[Entity], data: bytes | memoryview, at: int) -> Counting:
    """Counts the elements and tagged fields of a message without reading them. Raises the errors of the checks.

    Raises ImpossibleCount as soon as it finds an array of ``SHORT_ARRAYS`` with too many elements.

    The element of an array with only one element does not count.
    """
    left = [most_elements(entity)] * 2
    yield from _counted_in_steps(entity, is_strict(entity))(data, at, len(data), left)
    return left[1] - left[0]


class _Array(NamedTuple):
    """An array of structures or strings. ``inner`` is a class of structures that can be long; otherwise it is None.

    ``read_again`` reads a structure from checked bytes and returns the position after it; None for strings."""

    name: str
    start: Callable[[Data, int, int, list[int]], tuple[int, int]]
    empty: bytes
    walk: CountingWalk
    read: Callable[[Data, int], Any]
    read_in_steps: _ReadInSteps | None
    inner: type[Entity] | None
    read_again: ReadElement | None = None


@cache
def _structure_in_steps(entity: type[Entity], strict: bool) -> _ReadInSteps:
    """Returns a reader that reads the arrays in steps, and then the rest of the structure with empty arrays at once."""
    parts, read_rest = _parts_of(entity, strict), _known(entity)

    def read(data: Data, at: int, end: int, left: list[int], kept: Kept) -> Reading:
        rest: list[Data] = []
        arrays: dict[str, object] = {}
        begin = at
        for part in parts:
            if not isinstance(part, _Array):
                at = part(data, at, end, left)
                continue
            count_at = at
            count, at = part.start(data, at, end, left)
            if count > 0:
                rest += (data[begin:count_at], part.empty)
                arrays[part.name], at = yield from _elements(part, count, at, (data, end, left, kept))
                begin = at
        rest.append(data[begin:at])
        message = read_rest(b"".join(rest), 0)
        return (replace(message, **arrays) if arrays else message), at

    return read


@cache
def _counted_in_steps(entity: type[Entity], strict: bool) -> _CountInSteps:
    parts = _parts_of(entity, strict)

    def count(data: Data, at: int, end: int, left: list[int]) -> Counting:
        for part in parts:
            if not isinstance(part, _Array):
                at = part(data, at, end, left)
                continue
            number, at = part.start(data, at, end, left)
            if number > MOST_NAMES and (entity.__name__, part.name) in SHORT_ARRAYS:
                raise ImpossibleCount(f"{part.name} has {number:,} elements, but at most {MOST_NAMES:,} are possible")
            walk, inner = part.walk, None if part.inner is None else _counted_in_steps(part.inner, strict)
            for step in range(number):
                if inner is None:
                    at = walk(data, at, end, left)
                else:
                    few = [FEW_ELEMENTS, FEW_ELEMENTS]
                    try:
                        at = walk(data, at, end, few)
                        left[0] -= FEW_ELEMENTS - few[0]
                    except ValueError:  # the element is long, or the count in steps raises the same error
                        at = yield from inner(data, at, end, left)
                if not step % COUNTED_PER_STEP:
                    if left[0] < 0:
                        too_many(left[1])
                    yield
            if left[0] < 0:
                too_many(left[1])
        return at

    return count


def _elements(array: _Array, count: int, at: int, source: tuple[Data, int, list[int], Kept]) -> Reading:
    if array.read_again is not None and count > FEW_ELEMENTS:
        return (yield from _long_array(array, array.read_again, count, at, source))
    data, end, left, kept = source
    walk, read, read_in_steps = array.walk, array.read, array.read_in_steps
    values: list[object] = []
    if count > FEW_ELEMENTS:
        kept.append(values)
    paused_at = at
    for number in range(count):
        if read_in_steps is None:
            stop = walk(data, at, end, left)
            value = read(data, at)
        else:
            few = [FEW_ELEMENTS, FEW_ELEMENTS]
            try:
                stop = walk(data, at, end, few)
                is_short = stop - at <= BYTES_PER_STEP
            except ValueError:  # the element is long, or ``read_in_steps`` raises the same error
                stop, is_short = at, False
            if is_short:
                left[0] -= FEW_ELEMENTS - few[0]
                value = read(data, at)
            else:
                value, stop = yield from read_in_steps(data, at, end, left, kept)
        values.append(value)
        at = stop
        if not number % STRUCTURES_PER_STEP or at - paused_at > BYTES_PER_STEP:
            paused_at = at
            yield
    if left[0] < 0:
        too_many(left[1])
    return tuple(values), at


def _long_array(
    array: _Array, read: ReadElement, count: int, at: int, source: tuple[Data, int, list[int], Kept]
) -> Reading:
    """Reads each element once, so that all errors of the request are found, and keeps its position.

    A long element is kept itself."""
    data, end, left, kept = source
    walk, read_in_steps = array.walk, array.read_in_steps
    elements = LongArray(data, read)
    paused_at = at
    for number in range(count):
        few = [FEW_ELEMENTS, FEW_ELEMENTS] if read_in_steps is not None else left
        try:
            is_short = walk(data, at, end, few) - at <= BYTES_PER_STEP
        except ValueError:  # the element is long, or ``read_in_steps`` raises the same error
            if read_in_steps is None:
                raise
            is_short = False
        if is_short or read_in_steps is None:
            if few is not left:
                left[0] -= FEW_ELEMENTS - few[0]
            elements.add(at)
            _, at = read(data, at)
        else:
            element, stop = yield from read_in_steps(data, at, end, left, kept)
            elements.add_object(at, element, stop)
            at = stop
        if not number % STRUCTURES_PER_STEP or at - paused_at > BYTES_PER_STEP:
            paused_at = at
            yield
    if left[0] < 0:
        too_many(left[1])
    return elements, at


@cache
def _parts_of(entity: type[Entity], strict: bool) -> list[_Array | CountingWalk]:
    """Returns the parts of a structure in order.

    A part is an array of structures or strings, or the check of the lengths in the fields before or after an array.
    """
    flexible = bool(entity.__flexible__)
    parts: list[_Array | CountingWalk] = []
    others: list[Field[object]] = []
    for field in fields(entity):
        if get_field_tag(field) is not None:
            continue
        if classify_field(field).is_array and field.metadata.get("kafka_type") in (None, "string"):
            parts += (fields_walk(entity, others, strict, and_tags=False), _array(field, flexible, strict))
            others = []
        else:
            others.append(field)
    parts.append(fields_walk(entity, others, strict, and_tags=True))
    return parts


def _array(field: Field[object], flexible: bool, strict: bool) -> _Array:
    start, empty = array_start(field, flexible), b"\1" if flexible else bytes(4)
    if "kafka_type" in field.metadata:
        walk = string_walk(field, flexible, strict)
        return _Array(field.name, start, empty, walk, _read_compact if flexible else _read_legacy, None, None)
    inner: Any = classify_field(field).type_
    may_be_long = any(isinstance(part, _Array) for part in _parts_of(inner, strict))
    in_steps = _structure_in_steps(inner, strict) if may_be_long else None
    walk = structure_walk(inner, strict)
    last = inner if may_be_long else None
    return _Array(field.name, start, empty, walk, _known(inner), in_steps, last, _known_and_end(inner))


def _read_compact(data: Data, at: int) -> str:
    return read_compact_string(data, at)[0]


def _read_legacy(data: Data, at: int) -> str:
    return read_legacy_string(data, at)[0]


@cache
def _known(entity: type[Entity]) -> Callable[[Data, int], Any]:
    """Returns a reader of a structure with checked lengths. It ignores tagged fields that the class does not have."""
    read_structure = _known_and_end(entity)
    return lambda data, at: read_structure(data, at)[0]


@cache
def _known_and_end(entity: type[Entity]) -> ReadElement:
    """Returns a reader like that of ``_known``. It also returns the position after the structure."""
    read_structure = entity_reader(entity)

    def read(data: Data, at: int) -> tuple[Any, int]:
        try:
            element, size = read_structure(data, at)
        except KeyError:
            known = without_unknown_tags(entity, data, at)
            if known is None:
                raise
            return read_structure(known[0], 0)[0], known[1]
        return element, at + size

    return read
