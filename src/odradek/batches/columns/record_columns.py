"""The records of batches as flat columns: numba kernels that read every record once.

Each length is checked against its record, its batch and the buffer before the bytes are read. Malformed bytes end the
read with a status. Keys and values are copied in the same pass. There is no Python object for each record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from odradek.batches.columns import MAX_MS, NO_MICROS
from odradek.batches.columns.column_memory import space
from odradek.batches.columns.decode import (
    ATTRIBUTES,
    BAD_FIELD,
    BAD_HEADERS,
    BAD_OFFSET,
    BAD_RECORD,
    BASE,
    BASE_TIME,
    COUNT,
    FAULTS,
    FROM,
    LAST_DELTA,
    LEFT_OVER,
    MAX_TIME,
    OK,
    TO,
)
from odradek.batches.kernels.kernel_arrays import Array, Bytes, Int32s, Int64s, Long, Word
from odradek.batches.kernels.kernel_cache import INT32S, INT64, INT64S, READ_ONLY, TABLE, UINT8S, kernel
from odradek.batches.kernels.varint_kernels import read_varint
from odradek.core.errors import CorruptRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from llvmlite.ir import IRBuilder, Value
    from numba.core.base import BaseContext
    from numba.core.typing.templates import Signature

KEYS, VALUES, TYPES, HEADERS = 1, 2, 4, 8
"""The flags of the columns besides offsets and timestamps."""
STRIDE = 16
"""The number of bytes in one move of a copy. A copy can write up to 15 bytes after its end."""
_PLAIN = 9
"""The largest number of bytes before a record's key, if no number there has more than two bytes."""


@kernel(types.UniTuple(types.int64, 3)(READ_ONLY, INT64, INT64))
def _field(buffer: Bytes, at: int, end: int) -> tuple[Long, Long, Long]:
    """Returns (start, length, position after) of a key or value; start -1 for null, position -1 if it is malformed."""
    length, at = read_varint(buffer, at, end, 5)
    if at < 0 or length < -1 or length > end - at:
        return np.int64(-1), np.int64(0), np.int64(-1)
    if length == -1:
        return np.int64(-1), np.int64(0), at
    return at, length, at + length


@kernel(types.UniTuple(types.int64, 4)(READ_ONLY, INT64, INT64))
def _measure_headers(buffer: Bytes, at: int, end: int) -> tuple[Long, Long, Long, Long]:
    """Returns (headers, bytes of names, bytes of values, position after); position -1 if they are malformed."""
    count, at = read_varint(buffer, at, end, 5)
    if at < 0 or count < 0 or 2 * count > end - at:
        return count, np.int64(0), np.int64(0), np.int64(-1)
    names = np.int64(0)
    values = np.int64(0)
    for _ in range(count):
        start, length, at = _field(buffer, at, end)
        if at < 0 or start < 0:
            return count, names, values, np.int64(-1)
        names += length
        start, length, at = _field(buffer, at, end)
        if at < 0:
            return count, names, values, np.int64(-1)
        values += length
    return count, names, values, at


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _copy_stride(context: object, out: object, target: object, buffer: object, start: object) -> object:
    """Copies STRIDE bytes in one move. A numba loop over a few bytes takes three times as long."""

    def generate(context: BaseContext, builder: IRBuilder, signature: Signature, args: Sequence[Value]) -> Value:
        target_array = context.make_array(signature.args[0])(context, builder, args[0])
        source_array = context.make_array(signature.args[2])(context, builder, args[2])
        pointer = ir.VectorType(ir.IntType(8), STRIDE).as_pointer()
        source = builder.bitcast(builder.gep(source_array.data, [args[3]]), pointer)
        loaded = builder.load(source)
        loaded.align = 1
        stored = builder.store(loaded, builder.bitcast(builder.gep(target_array.data, [args[1]]), pointer))
        stored.align = 1
        return context.get_dummy_value()

    return types.void(out, types.uint64, buffer, types.uint64), generate


@kernel(types.void(UINT8S, INT64, READ_ONLY, INT64, INT64))
def _copy_bytes(out: Bytes, target: int, buffer: Bytes, start: int, size: int) -> None:
    to, of, count = np.uint64(target), np.uint64(start), np.uint64(size)
    if start + size + STRIDE <= len(buffer) and target + size + STRIDE <= len(out):
        done = np.uint64(0)
        while done < count:
            _copy_stride(out, to + done, buffer, of + done)
            done += np.uint64(STRIDE)
    else:
        for i in range(count):
            out[to + i] = buffer[of + i]


@kernel(types.UniTuple(types.int64, 3)(READ_ONLY, types.uint64))
def _short(buffer: Bytes, pos: Word) -> tuple[Long, Long, Long]:
    """Returns (zigzag-encoded number, position after it, last byte read) for a number of one or two bytes.

    The number has more than two bytes if the last byte is 128 or more.
    """
    first = np.int64(buffer[pos])
    if first < 0x80:
        return first, np.int64(pos) + 1, np.int64(0)
    second = np.int64(buffer[pos + np.uint64(1)])
    return (first & 0x7F) | (second << 7), np.int64(pos) + 2, second


@kernel(types.UniTuple(types.int64, 7)(READ_ONLY, INT64, INT64, INT64))
def _plain(buffer: Bytes, at: Long, end: int, last_delta: int) -> tuple[Long, ...]:
    """Returns (position after, ms, offset delta, key's start, key's size, value's start, value's size) of a record.

    The position is -1 for a record that ``_walk`` has to read in the general way: one with headers, with long numbers,
    or near the end of its batch, or a malformed one. A start of -1 means null.
    """
    no = np.int64(-1)
    zero = np.int64(0)
    none = (no, zero, zero, no, zero, no, zero)
    if end - at < _PLAIN:
        return none
    size, at, long = _short(buffer, np.uint64(at))
    record_end = at + (size >> 1)
    ms, at, longer = _short(buffer, np.uint64(at + 1))  # after the attributes
    long |= longer
    delta, at, longer = _short(buffer, np.uint64(at))
    odd = (size | delta) & 1
    key = np.int64(buffer[np.uint64(at)])
    long |= longer | key
    key_at, key_size = at + 1, key >> 1
    if key == 1:
        key_at, key_size = no, zero
    else:
        odd |= key & 1
    at += 1 + key_size
    if long >= 0x80 or odd or at + 2 > end:
        return none
    value, at, long = _short(buffer, np.uint64(at))
    value_at, value_size = at, value >> 1
    if value == 1:
        value_at, value_size = no, zero
    else:
        odd |= value & 1
    behind = at + value_size
    if long >= 0x80 or odd or record_end > end or behind + 1 != record_end:
        return none
    if buffer[np.uint64(behind)] != 0 or (delta >> 1) > last_delta:
        return none
    return record_end, (ms >> 1) ^ -(ms & 1), delta >> 1, key_at, key_size, value_at, value_size


@kernel(
    types.UniTuple(types.int64, 7)(
        READ_ONLY,
        TABLE,
        INT64,
        INT64,
        INT64,
        INT64,
        INT64S,
        INT64S,
        INT32S,
        UINT8S,
        INT32S,
        UINT8S,
        UINT8S,
        INT32S,
        UINT8S,
        INT64S,
        INT32S,
    )
)
def _walk(  # noqa: PLR0917  kernels take flat arrays
    buffer: Bytes, table: Int64s, first_offset: int, end_offset: int, row: int, kept: int,
    offsets: Int64s, times: Int64s, time_types: Int32s,
    keys: Bytes, key_ends: Int32s, key_is_there: Bytes, values: Bytes, value_ends: Int32s, value_is_there: Bytes,
    headers_at: Int64s, headers_ends: Int32s,
) -> tuple[Long, ...]:  # fmt: skip
    """Reads the records of all batches of ``table`` into the arrays, from row number ``row`` on.

    Returns (status, malformed batch or -1, rows so far, null keys, null values, bytes of header names and of values).
    """
    no_keys = no_values = np.int64(0)
    name_bytes = np.int64(0)
    header_value_bytes = np.int64(0)
    for i in range(len(table)):
        base, last_delta = table[i, BASE], table[i, LAST_DELTA]
        log_append = (table[i, ATTRIBUTES] >> 3) & 1
        at, end = table[i, FROM], table[i, TO]
        for _ in range(table[i, COUNT]):
            start = at
            at, delta_ms, delta, key_at, key_size, value_at, value_size = _plain(buffer, start, end, last_delta)
            headers_start, headers, names, header_values = at - 1, np.int64(0), np.int64(0), np.int64(0)
            if at < 0:
                size, at = read_varint(buffer, start, end, 5)
                if at < 0 or size < 6 or size > end - at:
                    return np.int64(BAD_RECORD), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                record_end = at + size
                delta_ms, at = read_varint(buffer, at + 1, record_end, 10)
                if at < 0:
                    return np.int64(BAD_RECORD), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                delta, at = read_varint(buffer, at, record_end, 5)
                if at < 0:
                    return np.int64(BAD_RECORD), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                if delta < 0 or delta > last_delta:
                    return np.int64(BAD_OFFSET), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                key_at, key_size, at = _field(buffer, at, record_end)
                if at < 0:
                    return np.int64(BAD_FIELD), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                value_at, value_size, at = _field(buffer, at, record_end)
                if at < 0:
                    return np.int64(BAD_FIELD), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
                headers_start = at
                headers, names, header_values, at = _measure_headers(buffer, at, record_end)
                if at != record_end:
                    return np.int64(BAD_HEADERS), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
            offset = base + delta
            if offset < first_offset or offset >= end_offset:
                continue
            ms = table[i, MAX_TIME] if log_append else table[i, BASE_TIME] + delta_ms
            offsets[row] = offset
            times[row] = ms * 1000 if -MAX_MS <= ms <= MAX_MS else NO_MICROS
            if kept & KEYS:
                key_is_there[row] = key_at >= 0
                no_keys += key_at < 0
                target = np.int64(key_ends[row])
                key_ends[row + 1] = target + key_size
                _copy_bytes(keys, target, buffer, key_at, key_size)
            if kept & VALUES:
                value_is_there[row] = value_at >= 0
                no_values += value_at < 0
                target = np.int64(value_ends[row])
                value_ends[row + 1] = target + value_size
                _copy_bytes(values, target, buffer, value_at, value_size)
            if kept & TYPES:
                time_types[row] = log_append
            if kept & HEADERS:
                headers_at[row] = headers_start
                headers_ends[row + 1] = headers_ends[row] + headers
                name_bytes += names
                header_value_bytes += header_values
            row += 1
        if at != end:
            return np.int64(LEFT_OVER), np.int64(i), row, no_keys, no_values, name_bytes, header_value_bytes
    return np.int64(OK), np.int64(-1), row, no_keys, no_values, name_bytes, header_value_bytes


@kernel(
    types.UniTuple(types.int64, 2)(
        READ_ONLY, INT64, INT64, INT64S, INT64, INT64, INT32S, UINT8S, INT32S, UINT8S, UINT8S
    )
)
def _copy_headers(  # noqa: PLR0917  kernels take flat arrays
    buffer: Bytes, first: int, last: int, at: Int64s, header: int, end: int,
    name_ends: Int32s, names: Bytes, value_ends: Int32s, values: Bytes, value_is_null: Bytes,
) -> tuple[Long, Long]:  # fmt: skip
    """Copies the headers of the rows from ``first`` to ``last`` (exclusive), the first one as header number ``header``.

    Returns (number of the next header, 0).
    """
    for i in range(first, last):
        count, pos = read_varint(buffer, at[i], end, 5)
        for _ in range(count):
            start, length, pos = _field(buffer, pos, end)
            target = np.int64(name_ends[header])
            for j in range(length):
                names[target + j] = buffer[start + j]
            name_ends[header + 1] = target + length
            start, length, pos = _field(buffer, pos, end)
            target = np.int64(value_ends[header])
            for j in range(length):
                values[target + j] = buffer[start + j]
            value_ends[header + 1] = target + length
            value_is_null[header] = start < 0
            header += 1
    return header, np.int64(0)


class _Scratch(threading.local):
    """A thread's memory for keys until their size is known."""

    def __init__(self) -> None:
        self.memory: Bytes = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        if len(self.memory) >= size:
            return self.memory
        memory: Bytes = np.empty(size, np.uint8)
        if size <= _SCRATCH:
            self.memory = memory
        return memory


_SCRATCH = 4 << 20
_scratch = _Scratch()
_FEW, _LITTLE = 1 << 8, 4 << 10
"""Columns with fewer than ``_FEW`` records and at most ``_LITTLE`` bytes do not use the shared blocks of ``space``."""
_NO_BYTES = np.empty(0, np.uint8)
_NO_INT32S = np.empty(0, np.int32)
_NO_INT64S = np.empty(0, np.int64)


class Blobs:
    """The keys or the values of the records, as Arrow stores them.

    ``data``: their bytes. ``ends``: Arrow's offsets. ``is_there``: 0 for null, else 1. ``nulls``: the number of nulls.
    """

    __slots__ = ("data", "ends", "is_there", "nulls")

    def __init__(self, capacity: int, data: Bytes, take: Callable[..., Array] = space.take) -> None:
        self.data = data
        self.nulls = 0
        self.ends: Int32s = take(capacity + 1, np.int32)
        self.ends[0] = 0
        self.is_there: Bytes = np.empty(capacity, np.uint8)


_NO_BLOBS = Blobs(0, _NO_BYTES)


class RecordColumns:
    """The records of some batches as flat arrays, of which ``rows`` rows are filled.

    ``capacity`` is the largest number of records, ``size`` the largest number of their bytes. ``kept`` selects the
    columns besides ``offsets`` and ``times`` (microseconds; NO_MICROS for a time that does not fit).
    """

    __slots__ = (
        "_fits",
        "_header_value_bytes",
        "_headers_at",
        "_kept",
        "_name_bytes",
        "_runs",
        "headers_ends",
        "keys",
        "offsets",
        "rows",
        "time_types",
        "times",
        "values",
    )  # fmt: skip

    def __init__(self, capacity: int, size: int, kept: int = KEYS | VALUES) -> None:
        self.rows = 0
        self._kept = kept
        self._name_bytes = self._header_value_bytes = 0
        self._runs: list[tuple[Bytes, int, int]] = []
        is_little = capacity < _FEW and size <= _LITTLE
        take: Callable[..., Array] = np.empty if is_little else space.take
        self.offsets: Int64s = take(capacity, np.int64)
        self.times: Int64s = take(capacity, np.int64)
        self.time_types: Int32s = np.empty(capacity, np.int32) if kept & TYPES else _NO_INT32S
        self._headers_at: Int64s = np.empty(capacity, np.int64) if kept & HEADERS else _NO_INT64S
        self.headers_ends: Int32s = take(capacity + 1, np.int32) if kept & HEADERS else _NO_INT32S
        if kept & HEADERS:
            self.headers_ends[0] = 0
        self.keys = self.values = _NO_BLOBS
        self._fits = is_little
        if is_little:
            if kept & KEYS:
                self.keys = Blobs(capacity, np.empty(size + STRIDE, np.uint8), take)
            if kept & VALUES:
                self.values = Blobs(capacity, np.empty(size + STRIDE, np.uint8), take)
            return
        if kept & KEYS:
            self.keys = Blobs(capacity, _scratch.take(size + STRIDE))
        if kept & VALUES:
            self.values = Blobs(capacity, _NO_BYTES)
            self.values.data = space.take(size + STRIDE, np.uint8)  # last, so that ``finish`` can give the rest back

    def read(self, buffer: Bytes, table: Int64s, first_offset: int, end_offset: int) -> None:
        """Adds the records of batches from ``buffer``. Raises CorruptRecord."""
        before = self.rows
        keys, values = self.keys, self.values
        status, batch, self.rows, no_keys, no_values, names, header_values = _walk(
            buffer, table, first_offset, end_offset, before, self._kept,
            self.offsets, self.times, self.time_types,
            keys.data, keys.ends, keys.is_there, values.data, values.ends, values.is_there,
            self._headers_at, self.headers_ends,
        )  # fmt: skip
        if status != OK:
            raise CorruptRecord(f"batch at offset {table[batch, BASE]}: {FAULTS[status]}")
        keys.nulls += no_keys
        values.nulls += no_values
        if self._kept & HEADERS:
            self._name_bytes += names
            self._header_value_bytes += header_values
            self._runs.append((buffer, before, self.rows))

    def finish(self) -> None:
        """Reduces the memory to the used size.

        Call it after the last ``read``, and before this thread decodes other records into the same scratch memory.
        """
        if self._fits:
            for blobs in (self.keys, self.values):
                blobs.data = blobs.data[: int(blobs.ends[self.rows])] if blobs is not _NO_BLOBS else blobs.data
            return
        if self._kept & VALUES:
            values = self.values
            used = int(values.ends[self.rows])
            space.give_back(values.data, used)
            values.data = values.data[:used]
        if self._kept & KEYS:
            keys = self.keys
            used = int(keys.ends[self.rows])
            data: Bytes = space.take(used, np.uint8)
            data[:] = keys.data[:used]
            keys.data = data

    def gather_headers(self) -> tuple[Int32s, Bytes, Int32s, Bytes, Bytes]:
        """Returns name offsets, names, value offsets, values, and for each header 1 if its value is null, else 0."""
        count = int(self.headers_ends[self.rows])
        name_ends, value_ends = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
        names = np.empty(self._name_bytes, np.uint8)
        values = np.empty(self._header_value_bytes, np.uint8)
        is_null = np.zeros(count, np.uint8)
        header = 0
        for buffer, first, last in self._runs:
            header, _ = _copy_headers(
                buffer, first, last, self._headers_at, header, len(buffer),
                name_ends, names, value_ends, values, is_null,
            )  # fmt: skip
        return name_ends, names, value_ends, values, is_null
