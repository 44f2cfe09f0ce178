"""The numba kernel for Avro: values to columns of numbers and positions, with the node table of ``json_columns.py``.

It reads values whose writer schema equals the reader schema. ``avro.py`` reads all other values, and those that the
kernel refuses, one by one. ``json_columns.py`` explains nodes, domains, slots and states.
"""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.kernels.kernel_arrays import Bytes, Int32s, Int64s, Long
from odradek.batches.kernels.kernel_cache import kernel
from odradek.pipelines.decoders.json_columns import (
    _I64S,
    _OFFSETS,
    _RO,
    _U8S,
    BASE,
    CHILD,
    DONE,
    FULL,
    HIGH,
    HINT,
    INNER,
    KIND,
    LOW,
    MAP,
    NEXT,
    NULL,
    STRUCT,
    VALUE,
    _pointer,
    _refuse,
)
from odradek.pipelines.decoders.json_scan import _BYTES, _I64, _INTS, _PAIR, _TENS, _past_character

# Kinds of leaves. INT: a number between LOW and HIGH. LONG: a number that is multiplied by HIGH. FIXED: HIGH bytes.
# DECIMAL: at most LOW digits, in HIGH bytes (-1: a length is before the bytes). ENUM: a number from LOW to HIGH.
BOOL, INT, LONG, FLOAT, DOUBLE, BYTES, STRING, FIXED, DECIMAL, ENUM = range(100, 110)
NULLABLE = HINT
NOT_NULL, NULL_FIRST, NULL_SECOND = range(3)
"""The values of a node's NULLABLE: its type is no union with null, or null is the first or second type of the union."""
MAX_KEYS = 32
"""The most keys of a map. The kernel compares each key with all earlier ones, so ``avro.py`` reads larger maps."""


@kernel(types.UniTuple(_I64, 3)(_BYTES, _I64, _I64))
def _long(data: Bytes, at: int, end: int) -> tuple[Long, Long, Long]:
    """Returns a number, the position after it, and whether it is valid."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += 1
        if shift == np.uint64(63) and byte > np.uint64(1):
            break
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at, 1
        shift += np.uint64(7)
    return 0, at, 0


@kernel(_PAIR(_BYTES, _I64, _I64))
def _span(data: Bytes, at: int, end: int) -> tuple[Long, Long]:
    """Returns the start and the length of bytes with a length prefix; the length is -1 if they are incomplete."""
    size, at, found = _long(data, at, end)
    return at, size if found and 0 <= size <= end - at else -1


@kernel(types.boolean(_BYTES, _I64, _I64))
def _is_text(data: Bytes, at: int, end: int) -> bool:
    while at < end:
        if data[at] < 0x80:
            at += 1
        else:
            at = _past_character(data, at, end)
            if at < 0:
                return False
    return True


@kernel(types.UniTuple(_I64, 4)(_INTS, _I64, _BYTES, _I64, _I64))
def _leaf(nodes: Int64s, node: int, data: Bytes, at: int, end: int) -> tuple[Long, Long, Long, Long]:
    """Reads a leaf at ``at``. Returns the position after the leaf (-1: refused), its slot, its length and its state."""
    kind, low, high = nodes[node + KIND], nodes[node + LOW], nodes[node + HIGH]
    if kind in (INT, LONG, ENUM):
        value, at, found = _long(data, at, end)
        if kind == LONG:
            limit = np.int64((1 << 63) - 1) // high
            return (at if found and -limit <= value <= limit else -1), value * high, 0, VALUE
        return (at if found and low <= value <= high else -1), value, 0, VALUE
    if kind in (BYTES, STRING):
        begin, size = _span(data, at, end)
        if size < 0 or (kind == STRING and not _is_text(data, begin, begin + size)):
            return -1, 0, 0, VALUE
        return begin + size, begin, size, VALUE
    if kind == BOOL:
        return (at + 1 if at < end and data[at] <= 1 else -1), np.int64(data[at]) if at < end else 0, 0, VALUE
    if kind == FIXED:
        return (at + high if high <= end - at else -1), at, high, VALUE
    if kind == DECIMAL:
        size = high
        if size < 0:
            at, size = _span(data, at, end)
        if not 0 < size <= 8 or size > end - at:
            return -1, 0, 0, VALUE
        value = np.int64(data[at])
        value = value - 256 if value > 127 else value
        for i in range(at + 1, at + size):
            value = (value << 8) | np.int64(data[i])
        limit = np.int64(_TENS[min(low, 18)])
        return (at + size if -limit < value < limit else -1), value, 0, VALUE
    size = 4 if kind == FLOAT else 8
    if size > end - at:
        return -1, 0, 0, VALUE
    value = 0
    for i in range(size):
        value |= np.int64(data[at + i]) << (8 * i)
    return at + size, value, 0, VALUE


@kernel(types.boolean(_BYTES, _INTS, _INTS, _I64, _I64))
def _is_among(data: Bytes, slots: Int64s, lengths: Int64s, begin: int, at: int) -> bool:
    """Returns whether the key at ``at`` equals one of the keys from ``begin`` on."""
    for other in range(begin, at):
        if lengths[other] == lengths[at]:
            i = 0
            while i < lengths[at] and data[slots[other] + i] == data[slots[at] + i]:
                i += 1
            if i == lengths[at]:
                return True
    return False


@kernel(types.UniTuple(_I64, 3)(_BYTES, _I64, _I64))
def _block(data: Bytes, at: int, end: int) -> tuple[Long, Long, Long]:
    """Returns the number of elements in a block, the position of the first element, and whether the number is valid."""
    count, at, found = _long(data, at, end)
    if found and count < 0:
        at, found = _long(data, at, end)[1:]
        count = -count
    return count, at, 1 if found and count >= 0 else 0


@kernel(_I64(_BYTES, _I64, _I64, _I64, _I64, _INTS, _INTS, _BYTES))
def _key(  # noqa: PLR0917  kernels take flat arrays
    data: Bytes, at: int, end: int, first: int, place: int, slots: Int64s, lengths: Int64s, states: Bytes
) -> Long:
    """Reads a key of a map into ``place``. The map's keys begin at ``first``.

    Returns the position after the key, or -1 if the key is refused."""
    begin, size = _span(data, at, end)
    if size < 0 or place - first >= MAX_KEYS or not _is_text(data, begin, begin + size):
        return -1
    slots[place], lengths[place], states[place] = begin, size, VALUE
    return -1 if _is_among(data, slots, lengths, first, place) else begin + size


@kernel(types.void(_INTS, _I64, _I64, _I64, _I64, _I64, _I64))
def _push(  # noqa: PLR0917  kernels take flat arrays
    stack: Int64s, at: int, node: int, index: int, following: int, left: int, begun: int
) -> None:
    stack[at], stack[at + 1], stack[at + 2] = node, index, following
    stack[at + 3], stack[at + 4] = left, begun


@kernel(_I64(_INTS, _BYTES, _I64, _I64, _I64, _INTS, _INTS, _INTS, _INTS, _BYTES, _INTS))
def _read_one(  # noqa: PLR0917  kernels take flat arrays
    nodes: Int64s, data: Bytes, at: int, end: int, row: int, counts: Int64s, capacities: Int64s,
    slots: Int64s, lengths: Int64s, states: Bytes, stack: Int64s,
) -> Long:  # fmt: skip
    """Reads one value. Returns DONE, -1 if the value is refused, or FULL if a domain is full."""
    depth = 0
    node, index, following, left, begun = -1, row, 0, 0, 0  # the open node; -1 at the start
    child, inner = 0, row
    while True:
        # The value of ``child``, number ``inner`` of its domain, begins at ``at``.
        is_null = False
        if nodes[child + NULLABLE] != NOT_NULL:
            branch, at, found = _long(data, at, end)
            if not found or branch < 0 or branch > 1:
                return -1
            is_null = (branch == 0) == (nodes[child + NULLABLE] == NULL_FIRST)
        place = nodes[child + BASE] + inner
        kind = nodes[child + KIND]
        if is_null:
            states[place] = NULL
        elif kind > MAP:
            at, slots[place], lengths[place], states[place] = _leaf(nodes, child, data, at, end)
            if at < 0:
                return -1
        else:
            states[place] = VALUE
            _push(stack, 5 * depth, node, index, following, left, begun)
            depth += 1
            node, index, left = child, inner, 0
            following = nodes[node + CHILD]
            begun = 0 if kind == STRUCT else counts[nodes[node + INNER]]
        # After this value comes a field, an element, or the end of the open node.
        while True:
            if node < 0:
                return DONE if at == end else -1
            if nodes[node + KIND] == STRUCT:
                if following >= 0:
                    child, inner = following, index
                    following = nodes[child + NEXT]
                    if following == nodes[node + CHILD]:
                        following = -1
                    break
            else:
                if left == 0:
                    left, at, found = _block(data, at, end)
                    if not found:
                        return -1
                if left > 0:
                    left -= 1
                    inner = counts[nodes[node + INNER]]
                    if inner >= capacities[nodes[node + INNER]]:
                        return FULL
                    counts[nodes[node + INNER]] = inner + 1
                    child = nodes[node + CHILD]
                    if nodes[node + KIND] == MAP:
                        base = nodes[child + BASE]
                        at = _key(data, at, end, base + begun, base + inner, slots, lengths, states)
                        if at < 0:
                            return -1
                        child = nodes[child + NEXT]
                    break
                lengths[nodes[node + BASE] + index] = counts[nodes[node + INNER]] - begun
            depth -= 1
            base = 5 * depth
            node, index, following = stack[base], stack[base + 1], stack[base + 2]
            left, begun = stack[base + 3], stack[base + 4]


@kernel(_I64(_I64S, _U8S, _RO, _OFFSETS, _U8S, _I64S, _I64S, _I64S, _I64S, _U8S, _I64S, _U8S))
def read_columns(  # noqa: PLR0917  kernels take flat arrays
    node_table: Int64s, names: Bytes, data: Bytes, offsets: Int32s, marks: Bytes, counts: Int64s, capacities: Int64s,
    slots: Int64s, lengths: Int64s, states: Bytes, stack: Int64s, skipped: Bytes,
) -> Long:  # fmt: skip
    """Does the same as ``json_columns.read_columns`` for Avro values.

    Before each value is a header as long as ``skipped``. If the header is not empty, its first byte must be 0.
    """
    nodes = _pointer(node_table)
    before = counts.copy()
    for row in range(len(offsets) - 1):
        if marks[row]:
            continue
        before[:] = counts
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        outcome = -1
        if len(skipped) == 0 or (end - at >= len(skipped) and data[at] == 0):
            outcome = _read_one(
                nodes, _pointer(data), at + len(skipped), end, row, _pointer(counts), _pointer(capacities),
                _pointer(slots), _pointer(lengths), _pointer(states), _pointer(stack),
            )  # fmt: skip
        if outcome == DONE:
            continue
        full: Long = _refuse(nodes, outcome, row, before, counts, capacities, marks, lengths, states)
        if full:
            return full
    return DONE
