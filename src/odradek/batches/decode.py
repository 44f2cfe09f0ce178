"""Record batches to columns: the numba kernels. ``arrow.py`` wraps their output.

Two passes. The first walks every record once, checks each length against its record, its batch and the buffer, and
notes where keys and values lie; hostile bytes end it with a status, before anything was read out of bounds. The
second copies keys and values into the columns' buffers. No Python object is made per record.

Loaded only when something is decoded (importing numba takes a quarter of a second). The kernels have explicit
signatures and are compiled once per machine: numba keeps them beside this file, or in the user's cache directory
where the package is read-only, or in a private temporary directory where there is no home either.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress
from odradek.core.crc import crc32c
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview

# Columns of what `scan` returns, one row per batch.
POS, END, BASE, LAST_DELTA, EPOCH, CRC, ATTRIBUTES, BASE_TIME, MAX_TIME, PRODUCER, COUNT, FROM, TO = range(13)
FIELDS = 13

# Statuses of the kernels.
OK, BAD_LENGTH, BAD_MAGIC, BAD_HEADER, BAD_RECORD, BAD_FIELD, BAD_HEADERS, BAD_OFFSET, LEFT_OVER = range(9)
_WHY = {
    BAD_LENGTH: "its length is smaller than a batch header",
    BAD_MAGIC: "it is not in message format v2",
    BAD_HEADER: "its offsets or its record count are impossible",
    BAD_RECORD: "a record does not fit into it",
    BAD_FIELD: "a key or a value does not fit into its record",
    BAD_HEADERS: "the headers of a record do not fit into it",
    BAD_OFFSET: "a record's offset lies outside of it",
    LEFT_OVER: "bytes follow its last record",
}

_MAX_MS = (1 << 63) // 1000 - 1

_RO = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.int64
_I64S = types.int64[::1]
_I32S = types.int32[::1]
_U8S = types.uint8[::1]
_TABLE = types.int64[:, ::1]


def _compiled(*signature: Any) -> Callable[[Any], Any]:
    """``numba.njit`` with one signature, kept on disk wherever that is possible."""

    def wrap(function: Any) -> Any:
        try:
            return numba.njit(*signature, cache=True, nogil=True)(function)
        except RuntimeError as error:
            if "cannot cache function" not in str(error):
                raise
        private = _private_cache()
        if private is None:
            return numba.njit(*signature, nogil=True)(function)
        numba.config.CACHE_DIR = private
        return numba.njit(*signature, cache=True, nogil=True)(function)

    return wrap


def _private_cache() -> str | None:
    """A cache directory in the temporary directory that only this user can write: what it holds is run."""
    if not hasattr(os, "getuid"):
        return None
    path = os.path.join(tempfile.gettempdir(), f"odradek-numba-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError:
        return None
    is_private = found.st_uid == os.getuid() and found.st_mode & 0o170777 == 0o040700
    return path if is_private and os.access(path, os.W_OK) else None


# --- batches --------------------------------------------------------------------------------------------------------


@_compiled(types.int64(_RO, _I64))
def _int16(buffer: Any, at: int) -> Any:
    return (np.int64(np.int8(buffer[at])) << 8) | np.int64(buffer[at + 1])


@_compiled(types.int64(_RO, _I64))
def _int32(buffer: Any, at: int) -> Any:
    high = np.int64(np.int8(buffer[at])) << 24
    return high | np.int64(buffer[at + 1]) << 16 | np.int64(buffer[at + 2]) << 8 | np.int64(buffer[at + 3])


@_compiled(types.int64(_RO, _I64))
def _int64(buffer: Any, at: int) -> Any:
    return (_int32(buffer, at) << 32) | (_int32(buffer, at + 4) & 0xFFFFFFFF)


@_compiled(types.UniTuple(types.int64, 3)(_RO))
def _count_batches(buffer: Any) -> Any:
    """(status, whole batches, position behind them): the last batch of a fetch may be cut off."""
    size = np.int64(len(buffer))
    at = np.int64(0)
    count = np.int64(0)
    while size - at >= 61:
        length = _int32(buffer, at + 8)
        if buffer[at + 16] != 2:
            return np.int64(BAD_MAGIC), count, at
        if length < 49:
            return np.int64(BAD_LENGTH), count, at
        if length + 12 > size - at:
            break
        count += 1
        at += length + 12
    return np.int64(OK), count, at


@_compiled(types.int64(_RO, _TABLE))
def _read_batches(buffer: Any, table: Any) -> Any:
    at = np.int64(0)
    for i in range(len(table)):
        end = at + 12 + _int32(buffer, at + 8)
        table[i, POS] = at
        table[i, END] = end
        table[i, BASE] = _int64(buffer, at)
        table[i, LAST_DELTA] = _int32(buffer, at + 23)
        table[i, EPOCH] = _int32(buffer, at + 12)
        table[i, CRC] = _int32(buffer, at + 17) & 0xFFFFFFFF
        table[i, ATTRIBUTES] = _int16(buffer, at + 21)
        table[i, BASE_TIME] = _int64(buffer, at + 27)
        table[i, MAX_TIME] = _int64(buffer, at + 35)
        table[i, PRODUCER] = _int64(buffer, at + 43)
        table[i, COUNT] = _int32(buffer, at + 57)
        table[i, FROM] = at + 61
        table[i, TO] = end
        impossible = table[i, COUNT] < 0 or table[i, LAST_DELTA] < 0
        if impossible or table[i, BASE] < 0 or table[i, BASE] > (1 << 62):
            return np.int64(i)
        at = end
    return np.int64(-1)


def as_bytes(data: Buffer) -> Bytes:
    """A read-only array over ``data``, without copying."""
    array = np.frombuffer(data, dtype=np.uint8)
    array.flags.writeable = False
    return array


def scan(data: Bytes) -> Int64s:
    """One row per whole batch, columns POS to TO. A batch cut off at the end is left out.

    Raises CorruptRecord, and UNSUPPORTED_FOR_MESSAGE_FORMAT for batches of format v0 or v1.
    """
    status, count, at = _count_batches(data)
    if status == BAD_MAGIC and data[at + 16] < 2:
        raise KafkaError(
            ErrorCode.unsupported_for_message_format,
            f"a batch is stored in message format v{data[at + 16]}, older than Kafka 0.11; only v2 can be read",
        )
    if status != OK:
        raise CorruptRecord(f"batch at byte {at}: {_WHY[status]}")
    table = np.empty((count, FIELDS), dtype=np.int64)
    wrong = _read_batches(data, table)
    if wrong >= 0:
        raise CorruptRecord(f"batch at byte {table[wrong, POS]}: {_WHY[BAD_HEADER]}")
    return table


def check_crcs(data: Buffer, table: Int64s) -> None:
    """Compares each batch's CRC32C with its bytes. Raises CorruptRecord."""
    view = memoryview(data)
    for start, end, base, wanted in table[:, (POS, END, BASE, CRC)].tolist():
        if crc32c(view[start + 21 : end]) != wanted:
            raise CorruptRecord(f"batch at offset {base}: its CRC does not match its bytes")


def inflate(data: Buffer, table: Int64s, room: int, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[Bytes, int]:
    """Decompresses batches of ``table`` into one buffer, in which FROM and TO then are positions.

    Stops behind the batch that fills ``room`` bytes; returns the buffer and the number of batches in it.
    ``max_bytes`` bounds what one batch may unpack to. Raises CorruptRecord.
    """
    view = memoryview(data)
    parts: list[Buffer] = []
    at = 0
    for i, (start, end, attributes) in enumerate(table[:, (FROM, TO, ATTRIBUTES)].tolist()):
        part = decompress(attributes & 7, view[start:end], max_bytes)
        table[i, FROM], table[i, TO] = at, at + len(part)
        at += len(part)
        parts.append(part)
        if at >= room:
            break
    return as_bytes(parts[0] if len(parts) == 1 else b"".join(parts)), len(parts)


# --- records --------------------------------------------------------------------------------------------------------


@_compiled(types.UniTuple(types.int64, 2)(_RO, _I64, _I64, _I64))
def _varint(buffer: Any, at: int, end: int, longest: int) -> Any:
    """A zigzag number and the position behind it; position -1 where it is cut off or longer than ``longest``."""
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


@_compiled(types.UniTuple(types.int64, 3)(_RO, _I64, _I64))
def _field(buffer: Any, at: int, end: int) -> Any:
    """(start, length, position behind) of a key or value; start -1 for null, position -1 where it does not fit."""
    length, at = _varint(buffer, at, end, 5)
    if at < 0 or length < -1 or length > end - at:
        return np.int64(-1), np.int64(0), np.int64(-1)
    if length == -1:
        return np.int64(-1), np.int64(0), at
    return at, length, at + length


@_compiled(types.UniTuple(types.int64, 4)(_RO, _I64, _I64))
def _measure_headers(buffer: Any, at: int, end: int) -> Any:
    """(headers, bytes of names, bytes of values, position behind); position -1 where they do not fit."""
    count, at = _varint(buffer, at, end, 5)
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


@_compiled(
    types.UniTuple(types.int64, 5)(
        _RO, _TABLE, _I64, _I64, _I64, _I64S, _I64S, _I32S, _I64S, _I32S, _I64S, _I32S, _I64S, _I32S
    )
)
def _parse(  # noqa: PLR0917  kernels take flat arrays
    buffer: Any, table: Any, first_offset: int, end_offset: int, row: int,
    offsets: Any, times: Any, time_types: Any,
    key_at: Any, key_ends: Any, value_at: Any, value_ends: Any, headers_at: Any, headers_ends: Any,
) -> Any:  # fmt: skip
    """The first pass: (status, batch, rows so far, bytes of header names, bytes of header values)."""
    name_bytes = np.int64(0)
    header_value_bytes = np.int64(0)
    for i in range(len(table)):
        base, last_delta = table[i, BASE], table[i, LAST_DELTA]
        log_append = (table[i, ATTRIBUTES] >> 3) & 1
        at, end = table[i, FROM], table[i, TO]
        for _ in range(table[i, COUNT]):
            size, at = _varint(buffer, at, end, 5)
            if at < 0 or size < 6 or size > end - at:
                return np.int64(BAD_RECORD), np.int64(i), row, name_bytes, header_value_bytes
            record_end = at + size
            delta_ms, at = _varint(buffer, at + 1, record_end, 10)
            if at < 0:
                return np.int64(BAD_RECORD), np.int64(i), row, name_bytes, header_value_bytes
            delta, at = _varint(buffer, at, record_end, 5)
            if at < 0:
                return np.int64(BAD_RECORD), np.int64(i), row, name_bytes, header_value_bytes
            if delta < 0 or delta > last_delta:
                return np.int64(BAD_OFFSET), np.int64(i), row, name_bytes, header_value_bytes
            key_start, key_size, at = _field(buffer, at, record_end)
            if at < 0:
                return np.int64(BAD_FIELD), np.int64(i), row, name_bytes, header_value_bytes
            value_start, value_size, at = _field(buffer, at, record_end)
            if at < 0:
                return np.int64(BAD_FIELD), np.int64(i), row, name_bytes, header_value_bytes
            headers_start = at
            headers, names, values, at = _measure_headers(buffer, at, record_end)
            if at != record_end:
                return np.int64(BAD_HEADERS), np.int64(i), row, name_bytes, header_value_bytes
            offset = base + delta
            if offset < first_offset or offset >= end_offset:
                continue
            ms = table[i, MAX_TIME] if log_append else table[i, BASE_TIME] + delta_ms
            offsets[row] = offset
            times[row] = min(max(ms, -_MAX_MS), _MAX_MS) * 1000
            time_types[row] = log_append
            key_at[row] = key_start
            key_ends[row + 1] = key_ends[row] + key_size
            value_at[row] = value_start
            value_ends[row + 1] = value_ends[row] + value_size
            headers_at[row] = headers_start
            headers_ends[row + 1] = headers_ends[row] + headers
            name_bytes += names
            header_value_bytes += values
            row += 1
        if at != end:
            return np.int64(LEFT_OVER), np.int64(i), row, name_bytes, header_value_bytes
    return np.int64(OK), np.int64(-1), row, name_bytes, header_value_bytes


@_compiled(types.void(_RO, _I64, _I64, _I64S, _I32S, _U8S))
def _copy(buffer: Any, first: int, last: int, at: Any, ends: Any, out: Any) -> None:  # noqa: PLR0917
    # Unsigned positions spare the check for negative ones, so that the inner loop is vectorised: 10 times as fast.
    for i in range(first, last):
        start, target = np.uint64(at[i]), np.uint64(ends[i])
        for j in range(np.uint64(ends[i + 1]) - target):
            out[target + j] = buffer[start + j]


@_compiled(types.UniTuple(types.int64, 2)(_RO, _I64, _I64, _I64S, _I64, _I64, _I32S, _U8S, _I32S, _U8S, _U8S))
def _copy_headers(  # noqa: PLR0917
    buffer: Any, first: int, last: int, at: Any, header: int, end: int,
    name_ends: Any, names: Any, value_ends: Any, values: Any, value_is_null: Any,
) -> Any:  # fmt: skip
    """Fills the flattened headers of rows ``first`` to ``last`` from header number ``header`` on."""
    for i in range(first, last):
        count, pos = _varint(buffer, at[i], end, 5)
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


class _Space(threading.local):
    """Memory for what is kept, a thread's own. Fresh pages cost more time than what is written to them, large ones
    less (numpy asks for these): so arrays share blocks of them, each freed with the last array in it. The last two
    blocks stay, and are written again once nobody holds an array in them."""

    def __init__(self) -> None:
        self.block: Bytes = np.empty(0, np.uint8)
        self.before: Bytes = np.empty(0, np.uint8)
        self.used = 0

    def take(self, count: int, kind: Any) -> Any:
        """An array of ``count`` numbers, not filled. Small ones are not worth a block that lives as long as they."""
        size = count * np.dtype(kind).itemsize
        if size < _SMALL:
            return np.empty(count, kind)
        at = -(-self.used // 64) * 64
        if at + size > len(self.block):
            if size > _BLOCK // 4:
                return np.empty(count, kind)
            self._next_block()
            at = 0
        self.used = at + size
        return self.block[at : at + size].view(kind)

    def _next_block(self) -> None:
        block, self.before = self.before, self.block
        is_free = len(block) and sys.getrefcount(block) == _MINE  # every array in it holds it
        self.block = block if is_free else np.empty(_BLOCK, np.uint8)


_BLOCK = 8 << 20
_SMALL = 16 << 10
_MINE = 2
"""References to an object that one name holds: the name's, and the one under which it is counted."""
_space = _Space()


class Columns:
    """The records of some batches as flat arrays; ``rows`` of them are filled.

    ``*_at`` is where a field starts in the buffer of its run (-1: null), ``*_ends`` are Arrow's offsets.
    """

    __slots__ = (
        "header_value_bytes", "headers_at", "headers_ends", "key_at", "key_ends", "name_bytes", "offsets",
        "rows", "runs", "time_types", "times", "value_at", "value_ends",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.rows = 0
        self.offsets: Int64s = _space.take(capacity, np.int64)
        self.times: Int64s = _space.take(capacity, np.int64)
        self.time_types: Int32s = np.empty(capacity, np.int32)
        self.key_at: Int64s = np.empty(capacity, np.int64)
        self.value_at: Int64s = np.empty(capacity, np.int64)
        self.headers_at: Int64s = np.empty(capacity, np.int64)
        self.key_ends: Int32s = _space.take(capacity + 1, np.int32)
        self.value_ends: Int32s = _space.take(capacity + 1, np.int32)
        self.headers_ends: Int32s = _space.take(capacity + 1, np.int32)
        self.key_ends[0] = self.value_ends[0] = self.headers_ends[0] = 0
        self.name_bytes = self.header_value_bytes = 0
        self.runs: list[tuple[Bytes, int, int]] = []

    def parse(self, buffer: Bytes, table: Int64s, first_offset: int, end_offset: int) -> None:
        """First pass over batches whose records lie in ``buffer``. Raises CorruptRecord."""
        before = self.rows
        status, batch, self.rows, names, values = _parse(
            buffer, table, first_offset, end_offset, before,
            self.offsets, self.times, self.time_types, self.key_at, self.key_ends,
            self.value_at, self.value_ends, self.headers_at, self.headers_ends,
        )  # fmt: skip
        if status != OK:
            raise CorruptRecord(f"batch at offset {table[batch, BASE]}: {_WHY[status]}")
        self.name_bytes += names
        self.header_value_bytes += values
        self.runs.append((buffer, before, self.rows))

    def gather(self, at: Int64s, ends: Int32s) -> Bytes:
        """Second pass for keys or values: their bytes one behind the other."""
        out: Bytes = _space.take(int(ends[self.rows]), np.uint8)
        for buffer, first, last in self.runs:
            _copy(buffer, first, last, at, ends, out)
        return out

    def gather_headers(self) -> tuple[Int32s, Bytes, Int32s, Bytes, Bytes]:
        """Name offsets, names, value offsets, values, and one byte per header that is 1 for a null value."""
        count = int(self.headers_ends[self.rows])
        name_ends, value_ends = np.zeros(count + 1, np.int32), np.zeros(count + 1, np.int32)
        names = np.empty(self.name_bytes, np.uint8)
        values = np.empty(self.header_value_bytes, np.uint8)
        is_null = np.zeros(count, np.uint8)
        header = 0
        for buffer, first, last in self.runs:
            header, _ = _copy_headers(
                buffer, first, last, self.headers_at, header, len(buffer),
                name_ends, names, value_ends, values, is_null,
            )  # fmt: skip
        return name_ends, names, value_ends, values, is_null


def runs_by_compression(table: Int64s) -> Sequence[tuple[int, int, bool]]:
    """(first, last, compressed) of each stretch of batches that are all compressed or all not."""
    if not len(table):
        return []
    packed = (table[:, ATTRIBUTES] & 7) != 0
    edges = [0, *(np.flatnonzero(packed[1:] != packed[:-1]) + 1).tolist(), len(table)]
    return [(first, last, bool(packed[first])) for first, last in pairwise(edges)]
