"""The numba kernels that read JSON texts into columns of numbers and positions, for ``json_values.py``.

In one pass the kernel reads each text and writes the fields of the schema. It refuses a text as soon as the text is not
a simple value of the schema, erases what it has written for the text, and continues with the next text.
``json_rows.py`` then reads the refused texts one by one and decides whether they are valid. So the kernel may refuse
too much, but it never accepts too much.

A schema is a table of nodes. Nodes with one value for each text are in domain 0. The elements of an array or a map are
in a domain of their own, which grows by one for each element. Each node owns a section of ``slots``, ``lengths`` and
``states``; a section begins at BASE and is as long as the capacity of the node's domain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from odradek.batches.kernels.kernel_arrays import Bytes, Int32s, Int64s, Long, Word
from odradek.batches.kernels.kernel_cache import kernel
from odradek.pipelines.decoders.json_scan import (
    _BACKSLASH,
    _BYTES,
    _CLOSE,
    _CLOSE_LIST,
    _COLON,
    _COMMA,
    _I64,
    _INTS,
    _LONG,
    _MINUS,
    _NEGATIVE,
    _NO_DATE,
    _NO_TIME,
    _OPEN,
    _OPEN_LIST,
    _PAIR,
    _QUOTE,
    _TENS,
    _U64,
    _WITH_FRACTION,
    MAX_NAME,
    MAX_SKIPPED_DEPTH,
    _date,
    _double_bits,
    _hex4,
    _number,
    _past_blanks,
    _past_string,
    _past_value,
    _past_word,
    _timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite.ir import IRBuilder, Value
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

# Columns of the table of nodes. LOW, HIGH: the limits of an INT, or the precision and the scale of a DECIMAL; LOW of a
# TIMESTAMP: the ``zone`` of ``_timestamp``. CHILD, NEXT: the ids of the first child and of the next sibling. NAME,
# NAME_SIZE: the place of the field's name in ``names``. INNER: the domain of the elements. HINT: the child with which
# the next search by name begins.
KIND, DOMAIN, LOW, HIGH, CHILD, NEXT, NAME, NAME_SIZE, BASE, INNER, HINT, COUNT = range(12)
NODE_FIELDS = 12
"""A node's id is the position in the table at which its numbers begin. COUNT: the number of nodes; only the first node
has it."""
# Kinds.
STRUCT, LIST, MAP, BOOL, INT, DOUBLE, FLOAT, STRING, DATE, TIMESTAMP, DECIMAL, ODD = range(12)
"""ODD: all values of this kind except null are left to ``json_rows.py``."""
# States of a slot: no value found, a value, JSON's null, a string with escapes.
ABSENT, VALUE, NULL, ESCAPED = range(4)
DONE, FULL = 0, 1
_N = 110
_RO = types.Array(types.uint8, 1, "C", readonly=True)
_I64S = types.int64[::1]
_I32S = types.int32[::1]
_OFFSETS = types.Array(types.int32, 1, "C", readonly=True)
_U8S = types.uint8[::1]

SKIPPED = MAX_SKIPPED_DEPTH
"""The bytes of memory that the kernel needs to skip values of unknown names."""


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _pointer(context: Any, array: Any) -> Any:
    """Returns the pointer to an array's first element."""

    def generate(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        return context.make_array(signature.args[0])(context, builder, args[0]).data

    return types.CPointer(array.dtype)(array), generate


@kernel(_I64(_INTS, _BYTES, _I64, _BYTES, _I64, _I64))
def _find(  # noqa: PLR0917  kernels take flat arrays
    nodes: Int64s, names: Bytes, node: int, data: Bytes, at: int, size: int
) -> Long:
    """Returns the field with this name, or -1. Most texts have their fields in the same order, so the search begins
    after the last found field. NEXT of the last field is the first field."""
    first = nodes[node + HINT]
    child: Long = first
    while child >= 0:
        if nodes[child + NAME_SIZE] == size:
            name = nodes[child + NAME]
            i = 0
            while i < size and names[name + i] == data[at + i]:
                i += 1
            if i == size:
                nodes[node + HINT] = nodes[child + NEXT]
                return child
        child = nodes[child + NEXT]
        if child == first:
            break
    return -1


@kernel(_PAIR(_U64, _I64, _I64, _I64))
def _integer(digits: Word, flags: int, low: int, high: int) -> tuple[Long, Long]:
    """Returns an integer, and whether it is between the two limits."""
    if flags & _WITH_FRACTION:
        return 0, 0
    if digits > np.uint64((1 << 63) - 1):
        is_least = flags & _NEGATIVE and digits == np.uint64(1 << 63)
        return np.int64(-(1 << 63)), 1 if is_least and low == -(1 << 63) else 0
    value = -np.int64(digits) if flags & _NEGATIVE else np.int64(digits)
    return value, 1 if low <= value <= high else 0


@kernel(_PAIR(_U64, _I64, _I64))
def _unscaled(digits: Word, power: int, precision: int) -> tuple[Long, Long]:
    """Returns digits * 10^power, and whether it is an integer of at most 18 digits that fits the precision."""
    if digits == np.uint64(0):
        return 0, 1
    ten = np.uint64(10)
    while power < 0 and digits % ten == np.uint64(0):
        digits //= ten
        power += 1
    if power < 0 or power > 18:
        return 0, 0
    most = _TENS[min(precision, 18)]
    if digits >= most // _TENS[power]:
        return 0, 0
    return np.int64(digits * _TENS[power]), 1


@kernel(types.boolean(_I64))
def _is_sure_as_float(bits: int) -> bool:
    """Returns True only if a double, rounded to a float, surely gives the same float as the decimal digits."""
    exponent = bits >> 52
    return bits == 0 or (1023 - 126 <= exponent < 1023 + 127 and bits & 0x1FFFFFFF != 0x10000000)


@kernel(types.UniTuple(_I64, 4)(_INTS, _I64, _BYTES, _I64, _I64))
def _scalar(nodes: Int64s, node: int, data: Bytes, at: int, end: int) -> tuple[Long, Long, Long, Long]:
    """Reads a value of the node's kind, or null, at ``at``. Returns the position after it (-1: refused), its slot, its
    length and its state."""
    kind = nodes[node + KIND]
    c = data[at]
    if c == _N:
        return _past_word(data, at, end), 0, 0, NULL
    if kind == ODD:
        return -1, 0, 0, 0
    if kind >= STRING and kind <= TIMESTAMP:
        if c != _QUOTE:
            return -1, 0, 0, 0
        begin = at + 1
        at, escaped = _past_string(data, begin, end)
        size = at - 1 - begin
        if at < 0 or kind == STRING:
            return at, begin, size, ESCAPED if escaped else VALUE
        if kind == DATE:
            value = _date(data, begin) if size == 10 else _NO_DATE
            return (-1 if value == _NO_DATE else at), value, 0, VALUE
        value = _timestamp(data, begin, size, nodes[node + LOW])
        return (-1 if value == _NO_TIME else at), value, 0, VALUE
    if kind == BOOL:
        behind = _past_word(data, at, end)
        return behind, 1 if c == 116 else 0, 0, VALUE
    if c != _MINUS and not 48 <= c <= 57:
        return -1, 0, 0, 0
    at, digits, power, flags = _number(data, at, end)
    if at < 0 or flags & _LONG:
        return -1, 0, 0, 0
    negative = flags & _NEGATIVE
    if kind == INT:
        value, fits = _integer(digits, flags, nodes[node + LOW], nodes[node + HIGH])
    elif kind == DECIMAL:
        value, fits = _unscaled(digits, power + nodes[node + HIGH], nodes[node + LOW])
        value = -value if negative else value
    else:
        value = _double_bits(digits, power)
        fits = value >= 0 and (kind == DOUBLE or _is_sure_as_float(value))
        if negative and (digits > np.uint64(0) or flags & _WITH_FRACTION):
            value |= -(1 << 63)
    return (at if fits else -1), value, 0, VALUE


@kernel(types.void(_INTS, _I64, _I64, _I64, _BYTES, _INTS))
def _erase(  # noqa: PLR0917  kernels take flat arrays
    nodes: Int64s, domain: int, begin: int, end: int, states: Bytes, lengths: Int64s
) -> None:
    for number in range(nodes[COUNT]):
        node = number * NODE_FIELDS
        if nodes[node + DOMAIN] == domain:
            base = nodes[node + BASE]
            for i in range(base + begin, base + end):
                states[i] = ABSENT
                lengths[i] = 0


@kernel(_PAIR(_BYTES, _I64, _I64, _I64, _I64))
def _to_next(data: Bytes, at: int, end: int, closing: int, is_fresh: int) -> tuple[Long, Long]:
    """Returns (start of the next element, 0), or (position of ``closing``, 1); the position -1 if neither follows."""
    at = _past_blanks(data, at, end)
    if at >= end:
        return -1, 0
    if data[at] == closing:
        return at, 1
    if is_fresh:
        return at, 0
    if data[at] != _COMMA:
        return -1, 0
    at = _past_blanks(data, at + 1, end)
    return (at if at < end else -1), 0


@kernel(types.UniTuple(_I64, 4)(_BYTES, _I64, _I64))
def _name(data: Bytes, at: int, end: int) -> tuple[Long, Long, Long, Long]:
    """Returns the start of the value after a name (-1: none), the name's start and size, and whether the name has
    escapes."""
    if data[at] != _QUOTE:
        return -1, 0, 0, 0
    begin = at + 1
    at, escaped = _past_string(data, begin, end)
    size = at - 1 - begin
    if at < 0 or size > MAX_NAME:
        return -1, 0, 0, 0
    at = _past_blanks(data, at, end)
    if at >= end or data[at] != _COLON:
        return -1, 0, 0, 0
    at = _past_blanks(data, at + 1, end)
    return (at if at < end else -1), begin, size, escaped


@kernel(_I64(_INTS, _BYTES, _BYTES, _I64, _I64, _I64, _INTS, _INTS, _INTS, _INTS, _BYTES, _INTS, _BYTES))
def _read_one(  # noqa: PLR0917  kernels take flat arrays
    nodes: Int64s, names: Bytes, data: Bytes, at: int, end: int, row: int, counts: Int64s, capacities: Int64s,
    slots: Int64s, lengths: Int64s, states: Bytes, stack: Int64s, skipped: Bytes,
) -> Long:  # fmt: skip
    """Reads one text. Returns DONE, -1 if the text is refused, or FULL if a domain is full."""
    at = _past_blanks(data, at, end)
    if at >= end or data[at] != _OPEN:
        return -1
    states[nodes[BASE] + row] = VALUE
    depth, node, index, begun, kind, is_fresh = 0, 0, row, 0, nodes[KIND], 1
    at += 1
    while True:
        at, is_end = _to_next(data, at, end, _CLOSE_LIST if kind == LIST else _CLOSE, is_fresh)
        if at < 0:
            return -1
        is_fresh = 0
        if is_end:
            at += 1
            if kind != STRUCT:
                lengths[nodes[node + BASE] + index] = counts[nodes[node + INNER]] - begun
            if depth == 0:
                return DONE if _past_blanks(data, at, end) == end else -1
            depth -= 1
            node, index, begun = stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2]
            kind = nodes[node + KIND]
            continue
        child, inner, name, size, escaped = nodes[node + CHILD], index, at, at, 0
        if kind != LIST:
            at, name, size, escaped = _name(data, at, end)
            if at < 0 or (escaped and kind == STRUCT):
                return -1
        if kind == STRUCT:
            child = _find(nodes, names, node, data, name, size)
            if child < 0:
                at = _past_value(data, at, end, skipped)
                if at < 0:
                    return -1
                continue
        else:
            inner = counts[nodes[node + INNER]]
            if inner >= capacities[nodes[node + INNER]]:
                return FULL
            counts[nodes[node + INNER]] = inner + 1
            if kind == MAP:
                key = nodes[child + BASE] + inner
                slots[key], lengths[key], states[key] = name, size, ESCAPED if escaped else VALUE
                child = nodes[child + NEXT]
        place, child_kind = nodes[child + BASE] + inner, nodes[child + KIND]
        if states[place] != ABSENT:
            return -1  # a duplicate field
        if child_kind > MAP or data[at] == _N:
            at, slots[place], lengths[place], states[place] = _scalar(nodes, child, data, at, end)
            if at < 0:
                return -1
            continue
        if data[at] != (_OPEN_LIST if child_kind == LIST else _OPEN):
            return -1
        states[place] = VALUE
        stack[3 * depth], stack[3 * depth + 1], stack[3 * depth + 2] = node, index, begun
        depth, node, index, kind, is_fresh, at = depth + 1, child, inner, child_kind, 1, at + 1
        begun = 0 if kind == STRUCT else counts[nodes[node + INNER]]


@kernel(_I64(_INTS, _I64, _I64, _I64S, _I64S, _I64S, _U8S, _I64S, _U8S))
def _refuse(  # noqa: PLR0917  kernels take flat arrays
    nodes: Int64s,
    outcome: int,
    row: int,
    before: Int64s,
    counts: Int64s,
    capacities: Int64s,
    marks: Bytes,
    lengths: Int64s,
    states: Bytes,
) -> Long:
    """Erases and marks a row. If the cause is a full domain, returns that domain instead, without a change."""
    if outcome == FULL:
        for domain in range(1, len(counts)):
            if counts[domain] >= capacities[domain]:
                return domain
    marks[row] = 2
    _erase(nodes, 0, row, row + 1, _pointer(states), _pointer(lengths))
    for domain in range(1, len(counts)):
        if counts[domain] > before[domain]:
            _erase(nodes, domain, before[domain], counts[domain], _pointer(states), _pointer(lengths))
            counts[domain] = before[domain]
    return DONE


@kernel(_I64(_I64S, _U8S, _RO, _OFFSETS, _U8S, _I64S, _I64S, _I64S, _I64S, _U8S, _I64S, _U8S))
def read_columns(  # noqa: PLR0917  kernels take flat arrays
    node_table: Int64s, names: Bytes, data: Bytes, offsets: Int32s, marks: Bytes, counts: Int64s, capacities: Int64s,
    slots: Int64s, lengths: Int64s, states: Bytes, stack: Int64s, skipped: Bytes,
) -> Long:  # fmt: skip
    """Reads the texts between successive ``offsets`` in ``data``. ``marks``: texts with 1 are null and are skipped;
    refused texts get 2. Returns DONE, or the number (from 1) of a full domain."""
    nodes = _pointer(node_table)
    before = counts.copy()
    for row in range(len(offsets) - 1):
        if marks[row]:
            continue
        before[:] = counts
        outcome = _read_one(
            nodes, _pointer(names), _pointer(data), np.int64(offsets[row]), np.int64(offsets[row + 1]), row,
            _pointer(counts), _pointer(capacities), _pointer(slots), _pointer(lengths), _pointer(states),
            _pointer(stack), _pointer(skipped),
        )  # fmt: skip
        if outcome == DONE:
            continue
        full: Long = _refuse(nodes, outcome, row, before, counts, capacities, marks, lengths, states)
        if full:
            return full
    return DONE


@kernel(types.void(_RO, _OFFSETS, _U8S, _U8S))
def check_texts(texts: Bytes, offsets: Int32s, marks: Bytes, skipped: Bytes) -> None:
    """Does the work of ``read_columns`` without a schema: marks texts that are not one JSON value."""
    data = _pointer(texts)
    for row in range(len(offsets) - 1):
        if marks[row]:
            continue
        end = np.int64(offsets[row + 1])
        at = _past_value(data, _past_blanks(data, np.int64(offsets[row]), end), end, _pointer(skipped))
        if at < 0 or _past_blanks(data, at, end) != end:
            marks[row] = 2


@kernel(_I64(_BYTES, _I64, _I64, _BYTES, _I64))
def _unescape(data: Bytes, at: int, end: int, out: Bytes, to: int) -> Long:
    """Copies a valid string and decodes its escapes. Returns the position after it in ``out``."""
    while at < end:
        c = data[at]
        if c != _BACKSLASH:
            out[to] = c
            at += 1
            to += 1
            continue
        c = data[at + 1]
        at += 2
        if c != 117:
            if c == 98:
                c = 8
            elif c == 102:
                c = 12
            elif c == 110:
                c = 10
            elif c == 114:
                c = 13
            elif c == 116:
                c = 9
            out[to] = c
            to += 1
            continue
        code = _hex4(data, at, end)
        at += 4
        if 0xD800 <= code <= 0xDBFF:
            code = 0x10000 + ((code - 0xD800) << 10) + _hex4(data, at + 2, end) - 0xDC00
            at += 6
        if code < 0x80:
            out[to] = code
            to += 1
            continue
        if code < 0x800:
            out[to] = 0xC0 | (code >> 6)
            to += 1
        else:
            if code < 0x10000:
                out[to] = 0xE0 | (code >> 12)
                to += 1
            else:
                out[to] = 0xF0 | (code >> 18)
                out[to + 1] = 0x80 | ((code >> 12) & 0x3F)
                to += 2
            out[to] = 0x80 | ((code >> 6) & 0x3F)
            to += 1
        out[to] = 0x80 | (code & 0x3F)
        to += 1
    return to


@kernel(_I64(_RO, _I64S, _I64S, _U8S, _I32S, _U8S))
def gather(  # noqa: PLR0917  kernels take flat arrays
    data: Bytes, starts: Int64s, sizes: Int64s, states: Bytes, offsets: Int32s, out: Bytes
) -> Long:
    """Concatenates strings in Arrow's layout. ``out`` has room for all sizes. Returns the used size."""
    to = 0
    for i in range(len(starts)):
        offsets[i] = to
        size = sizes[i]
        if states[i] == ESCAPED:
            to = _unescape(_pointer(data), starts[i], starts[i] + size, _pointer(out), to)
        elif size:
            start = starts[i]
            out[to : to + size] = data[start : start + size]
            to += size
    offsets[len(starts)] = to
    return to
