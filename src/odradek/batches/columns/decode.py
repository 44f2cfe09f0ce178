"""The table of fetched batches, which numba kernels make, and the CRC checks and the decompression of batches.

``record_columns.py`` reads the records of these batches, and ``arrow.py`` makes Arrow RecordBatches from them.

This module is imported at the first decode, because the import of numba takes long. The kernels have explicit
signatures and are compiled once per computer (``kernel_cache.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from numba import types

from odradek.batches.compression import DEFAULT_MAX_BYTES, decompress, decompress_into
from odradek.batches.header import (
    ATTRIBUTES_OFFSET,
    BASE_TIME_OFFSET,
    COMPRESSION_MASK,
    COUNT_OFFSET,
    CRC_OFFSET,
    EPOCH_OFFSET,
    HEADER_BYTES,
    LAST_DELTA_OFFSET,
    LENGTH_OFFSET,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_OFFSET,
    MAX_TIME_OFFSET,
    MIN_RECORD_BYTES,
    PRODUCER_OFFSET,
    Buffer,
)
from odradek.batches.kernels.kernel_arrays import Bytes, Int64s, Long
from odradek.batches.kernels.kernel_cache import INT64, READ_ONLY, TABLE, kernel
from odradek.core.crc import crc32c
from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError

Int32s = npt.NDArray[np.int32]

# The columns of the table of `scan`, which has one row for each batch.
POS, END, BASE, LAST_DELTA, EPOCH, CRC, ATTRIBUTES, BASE_TIME, MAX_TIME, PRODUCER, COUNT, FROM, TO = range(13)
FIELDS = 13

# Statuses of the kernels.
OK, BAD_LENGTH, BAD_MAGIC, BAD_HEADER, BAD_RECORD, BAD_FIELD, BAD_HEADERS, BAD_OFFSET, LEFT_OVER = range(9)
FAULTS = {
    BAD_LENGTH: "its length is smaller than a batch header",
    BAD_MAGIC: "it is not in message format v2",
    BAD_HEADER: "its offsets or its record count are impossible",
    BAD_RECORD: "a record does not fit into it",
    BAD_FIELD: "a key or a value does not fit into its record",
    BAD_HEADERS: "the headers of a record do not fit into it",
    BAD_OFFSET: "a record's offset is outside of it",
    LEFT_OVER: "bytes follow its last record",
}

CODEC_BITS = COMPRESSION_MASK
_FEW = 4
"""For at most this number of rows, the conversion of all columns is faster than a selection of four columns."""


# --- batches --------------------------------------------------------------------------------------------------------


@kernel(types.int64(READ_ONLY, INT64))
def int16_at(buffer: Bytes, at: int) -> Long:
    return (np.int64(np.int8(buffer[at])) << 8) | np.int64(buffer[at + 1])


@kernel(types.int64(READ_ONLY, INT64))
def int32_at(buffer: Bytes, at: int) -> Long:
    high = np.int64(np.int8(buffer[at])) << 24
    return high | np.int64(buffer[at + 1]) << 16 | np.int64(buffer[at + 2]) << 8 | np.int64(buffer[at + 3])


@kernel(types.int64(READ_ONLY, INT64))
def int64_at(buffer: Bytes, at: int) -> Long:
    value: Long = (int32_at(buffer, at) << 32) | (int32_at(buffer, at + 4) & 0xFFFFFFFF)
    return value


@kernel(types.UniTuple(types.int64, 3)(READ_ONLY), nogil=False)
def _count_batches(buffer: Bytes) -> tuple[Long, Long, Long]:
    """Returns (status, whole batches, position after them). The last batch of a fetch may be cut off."""
    size = np.int64(len(buffer))
    at = np.int64(0)
    count = np.int64(0)
    while size - at >= HEADER_BYTES:
        length = int32_at(buffer, at + LENGTH_OFFSET)
        if buffer[at + MAGIC_OFFSET] != MAGIC:
            return np.int64(BAD_MAGIC), count, at
        if length < HEADER_BYTES - LOG_OVERHEAD:
            return np.int64(BAD_LENGTH), count, at
        if length + LOG_OVERHEAD > size - at:
            break
        count += 1
        at += length + LOG_OVERHEAD
    return np.int64(OK), count, at


@kernel(types.UniTuple(types.int64, 3)(READ_ONLY, TABLE), nogil=False)
def _read_batches(buffer: Bytes, table: Int64s) -> tuple[Long, Long, Long]:
    """Fills the table. Returns (first invalid batch or -1, 1 if offsets ascend else 0, bitwise or of attributes)."""
    at = np.int64(0)
    before = np.int64(-1)
    in_order = np.int64(1)
    attributes = np.int64(0)
    for i in range(len(table)):
        end = at + LOG_OVERHEAD + int32_at(buffer, at + LENGTH_OFFSET)
        table[i, POS] = at
        table[i, END] = end
        table[i, BASE] = int64_at(buffer, at)
        table[i, LAST_DELTA] = int32_at(buffer, at + LAST_DELTA_OFFSET)
        table[i, EPOCH] = int32_at(buffer, at + EPOCH_OFFSET)
        table[i, CRC] = int32_at(buffer, at + CRC_OFFSET) & 0xFFFFFFFF
        table[i, ATTRIBUTES] = int16_at(buffer, at + ATTRIBUTES_OFFSET)
        table[i, BASE_TIME] = int64_at(buffer, at + BASE_TIME_OFFSET)
        table[i, MAX_TIME] = int64_at(buffer, at + MAX_TIME_OFFSET)
        table[i, PRODUCER] = int64_at(buffer, at + PRODUCER_OFFSET)
        table[i, COUNT] = int32_at(buffer, at + COUNT_OFFSET)
        table[i, FROM] = at + HEADER_BYTES
        table[i, TO] = end
        impossible = table[i, COUNT] < 0 or table[i, LAST_DELTA] < 0
        if impossible or table[i, BASE] < 0 or table[i, BASE] > (1 << 62):
            return np.int64(i), in_order, attributes
        if table[i, BASE] <= before:
            in_order = np.int64(0)
        before = table[i, BASE] + table[i, LAST_DELTA]
        attributes |= table[i, ATTRIBUTES]
        at = end
    return np.int64(-1), in_order, attributes


@kernel(types.UniTuple(types.int64, 3)(TABLE), nogil=False)
def _stated_sizes(table: Int64s) -> tuple[Long, Long, Long]:
    """Returns (first batch with an impossible record count or -1, records, bytes of records)."""
    count = np.int64(0)
    size = np.int64(0)
    for i in range(len(table)):
        bytes_of = table[i, TO] - table[i, FROM]
        if table[i, COUNT] > bytes_of // MIN_RECORD_BYTES:
            return np.int64(i), count, size
        count += table[i, COUNT]
        size += bytes_of
    return np.int64(-1), count, size


def stated_sizes(table: Int64s) -> tuple[int, int]:
    """Returns the sum of the record counts in the headers, and the bytes of all records (the sum of TO - FROM).

    Raises CorruptRecord for a count that is too large for its batch.
    """
    impossible, count, size = _stated_sizes(table)
    if impossible >= 0:
        raise CorruptRecord(f"batch at offset {table[impossible, BASE]}: its record count is too large for its size")
    return count, size


def as_bytes(data: Buffer) -> Bytes:
    """Returns a read-only array of ``data`` without a copy."""
    array = np.frombuffer(data, dtype=np.uint8)
    array.flags.writeable = False
    return array


def scan(data: Bytes) -> Int64s:
    """Returns the table of ``survey``: one row for each whole batch."""
    return survey(data)[0]


def survey(data: Bytes) -> tuple[Int64s, bool, int]:
    """Returns a table, whether the batches' offsets ascend, and the bitwise or of all their attributes.

    The table has one row for each whole batch, with the columns POS to TO. A last batch that is cut off is skipped.
    Raises CorruptRecord, and KafkaError (UNSUPPORTED_FOR_MESSAGE_FORMAT) for batches of format v0 or v1.
    """
    status, count, at = _count_batches(data)
    if status == BAD_MAGIC and data[at + 16] < 2:
        raise KafkaError(
            ErrorCode.unsupported_for_message_format,
            f"a batch has message format v{data[at + 16]}, which is older than Kafka 0.11; only v2 is supported",
        )
    if status != OK:
        raise CorruptRecord(f"batch at byte {at}: {FAULTS[status]}")
    table = np.empty((count, FIELDS), dtype=np.int64)
    wrong, in_order, attributes = _read_batches(data, table)
    if wrong >= 0:
        raise CorruptRecord(f"batch at byte {table[wrong, POS]}: {FAULTS[BAD_HEADER]}")
    return table, bool(in_order), attributes


def check_crcs(data: Buffer, table: Int64s) -> None:
    """Checks each batch's CRC32C. Raises CorruptRecord."""
    view = memoryview(data)
    if len(table) <= _FEW:
        rows = [(row[POS], row[END], row[BASE], row[CRC]) for row in table.tolist()]
    else:
        rows = table[:, (POS, END, BASE, CRC)].tolist()
    for start, end, base, wanted in rows:
        if crc32c(view[start + ATTRIBUTES_OFFSET : end]) != wanted:
            raise CorruptRecord(f"batch at offset {base}: its CRC does not match its bytes")


class DecompressionMemory(threading.local):
    """A thread's memory for decompressed batches. ``begin`` frees it, so the caller reads the records before that."""

    def __init__(self) -> None:
        self._memory: Bytes = np.empty(0, np.uint8)
        self._used = 0

    def begin(self) -> None:
        """Frees the memory of all batches."""
        self._used = 0

    def inflate(self, data: Buffer, table: Int64s, room: int, max_bytes: int = DEFAULT_MAX_BYTES) -> tuple[Bytes, int]:
        """Decompresses batches of ``table`` into one buffer, and sets FROM and TO to positions in it.

        It stops after the batch that fills ``room`` bytes. Returns the buffer and its number of batches. The number is
        0 if the memory is full: then the caller must call ``begin`` first. ``max_bytes`` limits the decompressed size
        of one batch. Raises CorruptRecord.
        """
        if not len(self._memory):
            self._memory = np.empty(_UNPACKED, np.uint8)
        view, out, begun = memoryview(data), self._memory.data, self._used
        done = 0
        for start, end, attributes in table[:, (FROM, TO, ATTRIBUTES)].tolist():
            at = self._used
            size = decompress_into(attributes & CODEC_BITS, view[start:end], out[at : at + max_bytes])
            if size < 0:
                part = decompress(attributes & CODEC_BITS, view[start:end], max_bytes)
                size = len(part)
                if size > len(out) - at:
                    if at:
                        break  # the next call starts with this batch
                    table[done, FROM], table[done, TO] = 0, size  # all batches before this one are empty
                    return as_bytes(part), done + 1
                out[at : at + size] = part
            self._used += size
            table[done, FROM], table[done, TO] = at - begun, self._used - begun
            done += 1
            if self._used - begun >= room:
                break
        return as_bytes(out[begun : self._used]), done


_UNPACKED = 8 << 20
unpacked = DecompressionMemory()


def runs_by_compression(table: Int64s) -> Sequence[tuple[int, int, bool]]:
    """Returns (first, end, compressed) of each run of batches that are all compressed or all uncompressed."""
    if not len(table):
        return []
    packed = (table[:, ATTRIBUTES] & CODEC_BITS) != 0
    edges = [0, *(np.flatnonzero(packed[1:] != packed[:-1]) + 1).tolist(), len(table)]
    return [(first, last, bool(packed[first])) for first, last in pairwise(edges)]
