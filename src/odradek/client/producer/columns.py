"""Encoding of Arrow RecordBatches by numba kernels, without a Python object per record. ``send_batch`` loads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numba
import numpy as np
import pyarrow as pa
from numba import types

from odradek.batches.columns import WRITE_COLUMNS
from odradek.batches.header import HEADER_BYTES
from odradek.batches.kernels.kernel_arrays import Bytes, Int64s, Long, Word
from odradek.batches.kernels.kernel_cache import INT64, INT64S, READ_ONLY, UINT8S, kernel
from odradek.batches.kernels.varint_kernels import varint_size, write_varint
from odradek.core.counts import counted

# An estimate of the bytes of a record's lengths, deltas and attributes, to fill sticky partitions.
_OVERHEAD_BYTES = 16
# A type in kernel signatures, which accepts writable arrays, too. Without an explicit signature numba would compile a
# kernel again, for seconds, for each new mix of writable and readonly arrays.
_NUMBERS = types.Array(types.int64, 1, "C", readonly=True)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class _BinaryColumn(NamedTuple):
    """A binary column: row i is data[offsets[i] : offsets[i + 1]], or null if valid[i] is 0."""

    offsets: Int64s
    valid: Bytes
    data: Bytes


class PackedColumns(NamedTuple):
    """Rows of one partition, encoded as the records of one batch. ``rows`` are their indexes in the input."""

    partition: int
    body: bytearray
    rows: Int64s
    base_timestamp: int
    max_timestamp: int


@kernel(types.int64[::1](_NUMBERS, READ_ONLY, READ_ONLY, _NUMBERS, INT64))
def _partitions(keys: Int64s, valid: Bytes, data: Bytes, given: Int64s, count: int) -> Int64s:
    """Returns each row's partition: the given one; without one, murmur2(key) modulo ``count``; -1 without both."""
    m = np.uint32(0x5BD1E995)
    out = np.empty(len(given), np.int64)
    for row in range(len(given)):
        if given[row] >= 0 or not valid[row]:
            out[row] = given[row]
            continue
        start, end = keys[row], keys[row + 1]
        length = end - start
        h = np.uint32(np.uint32(0x9747B28C) ^ np.uint32(length))
        whole = start + (length & ~3)
        for at in range(start, whole, 4):
            k = np.uint32(data[at]) | np.uint32(data[at + 1]) << np.uint32(8)
            k = np.uint32(k | np.uint32(data[at + 2]) << np.uint32(16) | np.uint32(data[at + 3]) << np.uint32(24))
            k = np.uint32(k * m)
            k = np.uint32(np.uint32(k ^ (k >> np.uint32(24))) * m)
            h = np.uint32(np.uint32(h * m) ^ k)
        if whole < end:
            tail = np.uint32(0)
            for at in range(whole, end):
                tail = np.uint32(tail | np.uint32(data[at]) << np.uint32(8 * (at - whole)))
            h = np.uint32(np.uint32(h ^ tail) * m)
        h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * m)
        h = np.uint32(h ^ (h >> np.uint32(15)))
        out[row] = np.int64(h & np.uint32(0x7FFFFFFF)) % count
    return out


# These kernels take flat arrays, not tuples of arrays: each call would count the references of arrays in a tuple, which
# takes longer than to encode a record. Unsigned positions need no check for negative numbers, so LLVM copies many bytes
# at once.
# Code that copies bytes is inlined as source: a call with arrays adds some percent to a record's time, even if LLVM
# inlines it.


@numba.njit(nogil=True, inline="always")  # type: ignore[untyped-decorator, unused-ignore]  # numba
def _put_bytes(out: Bytes, at: Word, begin: int, end: int, data: Bytes) -> Word:
    """Writes the length and bytes of data[begin:end]; returns the position after them."""
    source, size = np.uint64(begin), end - begin
    at = write_varint(out, at, size)
    for i in range(np.uint64(size)):
        out[at + i] = data[source + i]
    return at + np.uint64(size)


@kernel(
    types.UniTuple(INT64, 3)(
        _NUMBERS, INT64, INT64, _NUMBERS, _NUMBERS, READ_ONLY, _NUMBERS, READ_ONLY, _NUMBERS, _NUMBERS, _NUMBERS,
        READ_ONLY, INT64S,
    )
)  # fmt: skip
def _measure(  # noqa: PLR0917
    rows: Int64s, first: int, limit: int, times: Int64s,
    key_ends: Int64s, has_key: Bytes, value_ends: Int64s, has_value: Bytes,
    head_ends: Int64s, name_ends: Int64s, content_ends: Int64s, has_content: Bytes, sizes: Int64s,
) -> tuple[Long, Long, Long]:  # fmt: skip
    """Fills ``sizes`` with the sizes of records from row ``first`` on, up to ``limit`` bytes, but at least one.

    Returns the total, the row after the last one, and the latest timestamp."""
    base = latest = times[rows[first]]
    total, stop = 0, first
    while stop < len(rows):
        row = rows[stop]
        begin, end = head_ends[row], head_ends[row + 1]
        size = 1 + varint_size(times[row] - base) + varint_size(stop - first) + varint_size(end - begin)
        length = key_ends[row + 1] - key_ends[row] if has_key[row] else 0
        size += length + varint_size(length if has_key[row] else -1)
        length = value_ends[row + 1] - value_ends[row] if has_value[row] else 0
        size += length + varint_size(length if has_value[row] else -1)
        for head in range(begin, end):
            length = name_ends[head + 1] - name_ends[head]
            size += length + varint_size(length)
            length = content_ends[head + 1] - content_ends[head] if has_content[head] else 0
            size += length + varint_size(length if has_content[head] else -1)
        grown = total + varint_size(size) + size
        if stop > first and grown > limit:
            break
        sizes[stop - first] = size
        latest = max(latest, times[row])
        total = grown
        stop += 1
    return total, stop, latest


@kernel(
    types.void(
        _NUMBERS, INT64, INT64, _NUMBERS, _NUMBERS, READ_ONLY, READ_ONLY, _NUMBERS, READ_ONLY, READ_ONLY, _NUMBERS,
        _NUMBERS, READ_ONLY, _NUMBERS, READ_ONLY, READ_ONLY, INT64S, UINT8S,
    )
)  # fmt: skip
def _write(  # noqa: PLR0917
    rows: Int64s, first: int, stop: int, times: Int64s, key_ends: Int64s, has_key: Bytes, keys: Bytes,
    value_ends: Int64s, has_value: Bytes, values: Bytes, head_ends: Int64s, name_ends: Int64s, names: Bytes,
    content_ends: Int64s, has_content: Bytes, contents: Bytes, sizes: Int64s, out: Bytes,
) -> None:  # fmt: skip
    """Writes the records of rows ``first`` to ``stop``."""
    base = times[rows[first]]
    at = np.uint64(0)
    for number in range(first, stop):
        row = rows[number]
        at = write_varint(out, at, sizes[number - first])
        out[at] = 0
        at = write_varint(out, at + np.uint64(1), times[row] - base)
        at = write_varint(out, at, number - first)
        at = _put_bytes(out, at, key_ends[row], key_ends[row + 1], keys) if has_key[row] else write_varint(out, at, -1)
        at = (
            _put_bytes(out, at, value_ends[row], value_ends[row + 1], values)
            if has_value[row]
            else write_varint(out, at, -1)
        )
        begin, end = head_ends[row], head_ends[row + 1]
        at = write_varint(out, at, end - begin)
        for head in range(begin, end):
            at = _put_bytes(out, at, name_ends[head], name_ends[head + 1], names)
            if has_content[head]:
                at = _put_bytes(out, at, content_ends[head], content_ends[head + 1], contents)
            else:
                at = write_varint(out, at, -1)


def _cast(array: pa.Array, kind: pa.DataType, name: str, expected: str) -> pa.Array:
    """Casts a column. Raises ValueError with the column's name."""
    try:
        return array.cast(kind, safe=not pa.types.is_timestamp(kind))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        raise ValueError(f"column {name}: expected {expected}, not {array.type}: cast it first") from error


def _binary_column(array: pa.Array, name: str) -> _BinaryColumn:
    array = _cast(array, pa.large_binary(), name, "bytes or text")
    buffers = array.buffers()
    offsets = np.zeros(1, np.int64)
    if len(array):
        offsets = np.require(np.frombuffer(buffers[1], np.int64, len(array) + 1, array.offset * 8), requirements="A")
    data = np.frombuffer(buffers[2], np.uint8) if buffers[2] is not None and buffers[2].size else np.zeros(0, np.uint8)
    return _BinaryColumn(offsets, _valid(array), data)


def _valid(array: pa.Array) -> Bytes:
    """Returns 1 for each value that is there. pyarrow's own conversion of booleans imports pandas, for seconds."""
    there = array.is_valid()
    bits = np.frombuffer(there.buffers()[1], np.uint8) if len(there) else np.zeros(0, np.uint8)
    return np.ascontiguousarray(np.unpackbits(bits, count=there.offset + len(there), bitorder="little")[there.offset :])


def _column(batch: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array:
    if name in batch.schema.names:
        column = batch.column(name)
        return pa.nulls(batch.num_rows, kind) if pa.types.is_null(column.type) else column
    return pa.nulls(batch.num_rows, kind)


def _headers(batch: pa.RecordBatch) -> tuple[Int64s, _BinaryColumn, _BinaryColumn]:
    column = _cast(_column(batch, "headers", _HEADERS), _HEADERS, "headers", "lists of structs of key and value")
    offsets = np.zeros(batch.num_rows + 1, np.int64)
    if column.null_count < len(column):  # fill_null imports pandas
        lengths = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        np.cumsum(lengths, out=offsets[1:])
    flat = column.flatten()
    names, values = (_binary_column(part, "headers") for part in flat.flatten())
    if not names.valid.all():
        raise ValueError("column headers: a header has no key")
    return offsets, names, values


def _times(batch: pa.RecordBatch, now_ms: int) -> Int64s:
    column = _column(batch, "timestamp", pa.int64())
    if column.null_count == len(column):  # fill_null imports pandas
        return np.full(len(column), now_ms, np.int64)
    if pa.types.is_timestamp(column.type):
        column = _cast(column, pa.timestamp("ms"), "timestamp", "milliseconds or timestamps")
    column = _cast(column, pa.int64(), "timestamp", "milliseconds or timestamps").fill_null(now_ms)
    times: Int64s = np.require(column.to_numpy(zero_copy_only=False), requirements=["C", "A"])
    if len(times) and times.min() < 0:
        raise ValueError(f"column timestamp: {times.min()} ms is before 1970")
    return times


def _assign_sticky_partitions(chosen: Int64s, sizes: Int64s, limit: int, sticky: Callable[[int], int]) -> None:
    """Sets the partition of rows without one: each run of about ``limit`` bytes goes to one sticky partition."""
    rows = np.flatnonzero(chosen < 0)
    if not len(rows):
        return
    sums = np.cumsum(sizes[rows])
    runs = sums // limit
    edges = [0, *(np.flatnonzero(np.diff(runs)) + 1), len(rows)]
    for first, last in pairwise(edges):
        before = sums[first - 1] if first else 0
        chosen[rows[first:last]] = sticky(int(sums[last - 1] - before))


def _chosen_partitions(batch: pa.RecordBatch, key: _BinaryColumn, partition_count: int) -> Int64s:
    column = _cast(_column(batch, "partition", pa.int64()), pa.int64(), "partition", "whole numbers")
    if column.null_count == len(column):  # fill_null imports pandas
        given = np.full(len(column), -1, np.int64)
    else:
        given = np.require(column.fill_null(-1).to_numpy(zero_copy_only=False), requirements=["C", "A"])
    if len(given) and not -1 <= int(given.min()) <= int(given.max()) < partition_count:
        wrong = int(given.min()) if int(given.min()) < -1 else int(given.max())
        raise ValueError(
            f"column partition: there is no partition {wrong}: the topic has {counted(partition_count, 'partition')},"
            " from 0 on: add partitions to it, or leave the column out"
        )
    chosen: Int64s = _partitions(key.offsets, key.valid, key.data, given, partition_count)
    return chosen


def target_partitions(batch: pa.RecordBatch, partition_count: int) -> Int64s:
    """Returns each row's partition: the given one; without one, the one of its key; -1 without both.

    Raises ValueError."""
    return _chosen_partitions(batch, _binary_column(_column(batch, "key", pa.large_binary()), "key"), partition_count)


def pack_columns(
    batch: pa.RecordBatch, partition_count: int, sticky: Callable[[int], int], limit: int, now_ms: int
) -> Iterator[PackedColumns]:
    """Encodes the rows of ``batch`` by partition, in batches of at most ``limit`` bytes (a larger record is alone).

    ``sticky(size)`` returns the partition for ``size`` bytes of rows without partition and key. Raises ValueError for
    an unknown column or partition and for invalid values.
    """
    for name in batch.schema.names:
        if name not in WRITE_COLUMNS:
            raise ValueError(f"unknown column {name!r}: one of {', '.join(WRITE_COLUMNS)}")
    key, value = (_binary_column(_column(batch, name, pa.large_binary()), name) for name in ("key", "value"))
    heads, times = _headers(batch), _times(batch, now_ms)
    chosen = _chosen_partitions(batch, key, partition_count)
    names, contents = heads[1].offsets[heads[0]], heads[2].offsets[heads[0]]
    _assign_sticky_partitions(
        chosen, np.diff(value.offsets) + np.diff(names) + np.diff(contents) + _OVERHEAD_BYTES, limit, sticky
    )
    order = np.argsort(chosen, kind="stable").astype(np.int64)
    edges = np.searchsorted(chosen[order], np.arange(partition_count + 1))
    ends, names_of, contents_of = heads
    sizes = np.empty(min(batch.num_rows, limit // 7 + 1), np.int64)
    for partition in range(partition_count):
        rows = np.ascontiguousarray(order[edges[partition] : edges[partition + 1]])
        first = 0
        while first < len(rows):
            total, stop, latest = _measure(
                rows, first, limit - HEADER_BYTES, times, key.offsets, key.valid, value.offsets, value.valid,
                ends, names_of.offsets, contents_of.offsets, contents_of.valid, sizes,
            )  # fmt: skip
            body = bytearray(total)
            _write(
                rows, first, stop, times, *key, *value, ends, names_of.offsets, names_of.data, *contents_of,
                sizes, np.frombuffer(body, np.uint8),
            )  # fmt: skip
            yield PackedColumns(partition, body, rows[first:stop], int(times[rows[first]]), int(latest))
            first = stop
