"""Kafka's varints for numba kernels. ``core.varints`` has the functions for Python."""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.kernels.kernel_arrays import Bytes, Long, Word
from odradek.batches.kernels.kernel_cache import INT64, READ_ONLY, UINT8S, kernel

_PAIR = types.UniTuple(types.int64, 2)


@kernel(_PAIR(READ_ONLY, INT64, INT64))
def read_uvarint(buffer: Bytes, at: int, end: int) -> tuple[Long, Long]:
    """Returns an unsigned varint and the position after it; position -1 if it is cut off or longer than 5 bytes."""
    result: Long = np.int64(0)
    for i in range(5):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(buffer[at + i])
        result |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return result, np.int64(at + i + 1)
    return np.int64(0), np.int64(-1)


@kernel(_PAIR(READ_ONLY, INT64, INT64, INT64))
def read_varint(buffer: Bytes, at: int, end: int, longest: int) -> tuple[Long, Long]:
    """Returns a zigzag varint and the position after it; position -1 if it is cut off or longer than ``longest``
    bytes."""
    if at >= end:
        return np.int64(0), np.int64(-1)
    byte = np.int64(buffer[np.uint64(at)])
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), np.int64(at + 1)
    result = byte & 0x7F
    for i in range(1, longest):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(buffer[np.uint64(at + i)])
        result |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return ((result >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(result & 1), np.int64(at + i + 1)
    return np.int64(0), np.int64(-1)


@kernel(INT64(INT64))
def varint_size(value: int) -> Long:
    """Returns the size of a number as a zigzag varint."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    size = np.int64(1)
    while rest > np.uint64(0x7F):
        rest >>= np.uint64(7)
        size += 1
    return size


@kernel(types.uint64(UINT8S, types.uint64, INT64))
def write_varint(out: Bytes, at: Word, value: int) -> Word:
    """Writes a zigzag varint and returns the position after it. Unsigned positions need no check for negative ones."""
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest > np.uint64(0x7F):
        out[at] = np.uint8(rest & np.uint64(0x7F) | np.uint64(0x80))
        rest >>= np.uint64(7)
        at += np.uint64(1)
    out[at] = np.uint8(rest)
    return at + np.uint64(1)
