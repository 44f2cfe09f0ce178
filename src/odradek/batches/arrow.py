"""Fetched record batches as Arrow RecordBatches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.batches import decode as kernels
from odradek.batches.aborted_transactions import AbortedTransaction, rolled_back
from odradek.batches.columns import DEFAULT_COLUMNS, check_columns
from odradek.batches.decode import (
    ATTRIBUTES,
    BASE,
    EPOCH,
    FROM,
    LAST_DELTA,
    PRODUCER,
    TO,
    Bytes,
    Int64s,
)
from odradek.batches.header import CONTROL_BIT, Buffer
from odradek.batches.record_columns import HEADERS, KEYS, TYPES, VALUES, Blobs, RecordColumns
from odradek.core.errors import CorruptRecord

RECORD_BATCH_BYTES = 2 << 20
"""The approximate limit for the bytes of records in one RecordBatch."""
# Spark's own names and nullability, so that its Arrow batches need no cast.
_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}


@lru_cache(maxsize=64)
def schema(columns: tuple[str, ...] = DEFAULT_COLUMNS) -> pa.Schema:
    """Returns the Arrow schema of these columns. Raises ValueError for an unknown column."""
    check_columns(columns)
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


class BatchSpans(NamedTuple):
    """The offset ranges of batches, from ``begins`` to ``ends`` (exclusive). Compaction may have removed records."""

    begins: Int64s
    ends: Int64s
    is_control: npt.NDArray[np.bool_]
    is_rolled_back: npt.NDArray[np.bool_]


class RecordSet:
    """The whole batches in the bytes of a fetch reply for one partition.

    The constructor reads only the batch headers. ``next_offset`` is the offset after the last batch, ``leader_epoch``
    the epoch of the last batch (-1 for no batch). Raises CorruptRecord.
    """

    __slots__ = ("_array", "_attributes", "_bounds", "_data", "_table", "leader_epoch", "next_offset")

    def __init__(self, data: Buffer) -> None:
        self._data = data
        self._array = kernels.as_bytes(data)
        self._table, in_order, self._attributes = kernels.survey(self._array)
        if not in_order:
            raise CorruptRecord("the offsets of the record batches do not ascend")
        self.next_offset = self.leader_epoch = -1
        self._bounds = (-1, -1, -1)
        """The base offset and the last offset of the first batch, and the base offset of the last batch."""
        if len(self._table):
            first = self._table[0].tolist()
            last = self._table[-1].tolist() if len(self._table) > 1 else first
            self.next_offset = last[BASE] + last[LAST_DELTA] + 1
            self.leader_epoch = last[EPOCH]
            self._bounds = (first[BASE], first[BASE] + first[LAST_DELTA], last[BASE])

    @property
    def memory_bytes(self) -> int:
        """Returns the size of the whole buffer that these batches keep in memory, even if they are a small part of
        it."""
        return memoryview(memoryview(self._data).obj).nbytes

    @property
    def is_small_part(self) -> bool:
        """Whether the buffer is more than twice as large as these batches."""
        return 2 * len(self._array) < self.memory_bytes

    def copy(self) -> RecordSet:
        """Returns a copy with its own memory."""
        return RecordSet(bytes(self._data))

    @property
    def batch_count(self) -> int:
        return len(self._table)

    @property
    def is_compressed(self) -> bool:
        """Whether any batch is compressed."""
        return bool(self._attributes & kernels.CODEC_BITS)

    @property
    def first_offset(self) -> int:
        """The base offset of the first batch; -1 for no batch."""
        return self._bounds[0]

    def spans(self, aborted: Sequence[AbortedTransaction] = ()) -> BatchSpans:
        """Returns the offset ranges of the batch headers. ``aborted`` is as for ``record_batches``."""
        table = self._table
        ends = table[:, BASE] + table[:, LAST_DELTA] + 1
        hidden = np.zeros(len(table), bool)
        if aborted:
            hidden[:] = rolled_back(zip(*_marks(table), strict=True), aborted)
        return BatchSpans(table[:, BASE].copy(), ends, table[:, ATTRIBUTES] & CONTROL_BIT != 0, hidden)

    def record_batches(
        self,
        topic: str,
        partition: int,
        *,
        start: int = 0,
        end: int = 1 << 62,
        columns: tuple[str, ...] = DEFAULT_COLUMNS,
        check_crcs: bool = True,
        aborted: Sequence[AbortedTransaction] = (),
    ) -> RecordBatches:
        """Returns records with ``start <= offset < end``, except control records and ``aborted`` transactions.

        The result is usually one RecordBatch, several for many bytes, or none. Timestamps that do not fit into
        microseconds of 64 bits are clamped. The iterator raises CorruptRecord at its first or a later element.
        """
        table = self._chosen(start, end, aborted)
        return RecordBatches(self, table, (topic, partition), (start, end), columns, check_crcs=check_crcs)

    def _chosen(self, start: int, end: int, aborted: Sequence[AbortedTransaction]) -> Int64s:
        """Returns the batches that can have records in this range outside the aborted transactions."""
        table = self._table
        if not len(table):
            return table
        _, first_end, last_begin = self._bounds
        if not aborted and not self._attributes & CONTROL_BIT and first_end >= start and last_begin < end:
            return table
        last_offsets = table[:, BASE] + table[:, LAST_DELTA]
        chosen = (last_offsets >= start) & (table[:, BASE] < end) & (table[:, ATTRIBUTES] & CONTROL_BIT == 0)
        if aborted:
            chosen &= ~np.array(rolled_back(zip(*_marks(table), strict=True), aborted), dtype=bool)
        return table if chosen.all() else table[chosen]

    def _columns(self, table: Int64s, at: int, start: int, end: int, kept: int) -> tuple[RecordColumns, int]:
        """Returns the records of the batches from number ``at`` on, and the number of the first unread batch.

        The decompressed records stay far below 2 GiB, the limit of an Arrow column.
        """
        if not self._attributes & kernels.CODEC_BITS and len(self._array) <= RECORD_BATCH_BYTES:
            parts = [(self._array, table)]
            at = len(table)
        else:
            parts, at = self._parts(table, at)
        count = size = 0
        for _, run in parts:
            claimed = kernels.claims(run)
            count, size = count + claimed[0], size + claimed[1]
        found = RecordColumns(count, size, kept)
        for buffer, run in parts:
            found.read(buffer, run, start, end)
        found.finish()
        return found, at

    def _parts(self, table: Int64s, at: int) -> tuple[list[tuple[Bytes, Int64s]], int]:
        """Returns batches from number ``at`` on with the buffers of their records, decompressed if necessary.

        The second value is the number of the first unread batch.
        """
        parts: list[tuple[Bytes, Int64s]] = []
        room = RECORD_BATCH_BYTES
        kernels.unpacked.begin()
        for first, last, compressed in kernels.runs_by_compression(table[at:]):
            run = table[at + first : at + last].copy()
            if compressed:
                buffer, count = kernels.unpacked.inflate(self._data, run, room)
                if not count:
                    break
                taken = len(buffer)
            else:
                sizes = np.cumsum(run[:, TO] - run[:, FROM])
                count = max(1, int(np.searchsorted(sizes, room, side="right")))
                buffer, taken = self._array, int(sizes[min(count, len(run)) - 1])
            run = run[:count]
            parts.append((buffer, run))
            room -= taken
            if room <= 0 or count < last - first:
                break
        return parts, at + sum(len(run) for _, run in parts)


class RecordBatches(Iterator["pa.RecordBatch"]):
    """The result of ``RecordSet.record_batches``, which decodes each element on demand.

    Between two elements it has no data in thread-local memory, so another thread may continue. After CorruptRecord, the
    next call raises it again.
    """

    __slots__ = ("_at", "_columns", "_kept", "_offsets", "_partition", "_records", "_table", "_unchecked")

    def __init__(
        self,
        records: RecordSet,
        table: Int64s,
        tp: tuple[str, int],
        offsets: tuple[int, int],
        columns: tuple[str, ...],
        *,
        check_crcs: bool,
    ) -> None:
        self._records, self._table, self._partition, self._offsets, self._columns = records, table, tp, offsets, columns
        self._kept = _kept(columns) | (records._attributes >> 3 & 1 and TYPES)
        self._unchecked = check_crcs
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches were read. If False, there still may be no further element."""
        return self._at >= len(self._table)

    def __next__(self) -> pa.RecordBatch:
        records, table = self._records, self._table
        if self._unchecked:
            kernels.check_crcs(records._data, table)
            self._unchecked = False
        while self._at < len(table):
            found, self._at = records._columns(table, self._at, *self._offsets, self._kept)
            if found.rows:
                return _record_batch(found, *self._partition, self._columns)
        raise StopIteration


def _marks(table: Int64s) -> tuple[list[int], list[int], list[int]]:
    """Returns the columns for ``rolled_back``."""
    return (table[:, BASE] + table[:, LAST_DELTA]).tolist(), table[:, ATTRIBUTES].tolist(), table[:, PRODUCER].tolist()


@lru_cache(maxsize=64)
def _kept(columns: tuple[str, ...]) -> int:
    kept = {"key": KEYS, "value": VALUES, "headers": HEADERS}
    return sum(flag for name, flag in kept.items() if name in columns)


def _validity(is_valid: Any) -> tuple[Any, int]:
    nulls = len(is_valid) - int(np.count_nonzero(is_valid))
    return (pa.py_buffer(np.packbits(is_valid, bitorder="little")) if nulls else None), nulls


# Arrays are cut to their rows: a pickle would include the uninitialized rest.


def _cut(numbers: Any, rows: int) -> Any:
    return numbers if len(numbers) == rows else numbers[:rows]


def _binary(blobs: Blobs, rows: int) -> pa.Array:
    bitmap = None
    if blobs.nulls:
        bitmap = pa.py_buffer(np.packbits(blobs.is_there[:rows], bitorder="little"))
    buffers = [bitmap, pa.py_buffer(_cut(blobs.ends, rows + 1)), pa.py_buffer(blobs.data)]
    return pa.Array.from_buffers(_BINARY, rows, buffers, blobs.nulls)


def _fixed(name: str, numbers: Any, rows: int) -> pa.Array:
    return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(_cut(numbers, rows))], 0)


def _headers(found: RecordColumns) -> pa.Array:
    """Returns a list of headers for each record; null, as in Spark, for a record without headers."""
    name_ends, names, value_ends, values, is_null = found.gather_headers()
    count = len(is_null)
    keys = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)], 0)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptRecord(f"a header's name is not UTF-8: {error}") from error
    bitmap, nulls = _validity(is_null == 0)
    content = pa.Array.from_buffers(pa.binary(), count, [bitmap, pa.py_buffer(value_ends), pa.py_buffer(values)], nulls)
    pairs = pa.StructArray.from_arrays([keys, content], fields=list(_HEADERS.value_type))
    ends = found.headers_ends[: found.rows + 1]
    bitmap, nulls = _validity(ends[1:] > ends[:-1])
    return pa.Array.from_buffers(_HEADERS, found.rows, [bitmap, pa.py_buffer(ends)], nulls, children=[pairs])


_BINARY = ARROW_TYPES["value"]
_ALIKE = 1 << 15
_FEW = 16


def _repeated(value: str | int, rows: int) -> pa.Array:
    """Returns a column with one value, made from buffers.

    pyarrow's own conversion imports pandas if it is installed, which takes half a second.
    """
    if isinstance(value, int):
        return _fixed("partition", np.full(rows, value, np.int32), rows)
    text = np.frombuffer(value.encode(), np.uint8)
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.tile(text, rows))]
    return pa.Array.from_buffers(ARROW_TYPES["topic"], rows, buffers, 0)


@lru_cache(maxsize=8)
def _topics(topic: str) -> pa.Array:
    """Returns a long column of one topic. RecordBatches share slices of it."""
    return _repeated(topic, _ALIKE)


@lru_cache(maxsize=64)
def _numbers(number: int) -> pa.Array:
    return _repeated(number, _ALIKE)


@lru_cache(maxsize=4096)
def _few_alike(value: str | int, rows: int) -> pa.Array:
    return _repeated(value, rows)


def _alike(value: str | int, rows: int) -> pa.Array:
    if rows <= _FEW:
        return _few_alike(value, rows)
    if rows > _ALIKE:
        return _repeated(value, rows)
    return (_topics(value) if isinstance(value, str) else _numbers(value)).slice(0, rows)


def _record_batch(found: RecordColumns, topic: str, partition: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    rows = found.rows
    wanted = schema(columns)
    arrays = []
    for name in columns:
        if name == "key":
            arrays.append(_binary(found.keys, rows))
        elif name == "value":
            arrays.append(_binary(found.values, rows))
        elif name == "topic":
            arrays.append(_alike(topic, rows))
        elif name == "partition":
            arrays.append(_alike(partition, rows))
        elif name == "offset":
            arrays.append(_fixed(name, found.offsets, rows))
        elif name == "timestamp":
            arrays.append(_fixed(name, found.times, rows))
        elif name == "timestampType":
            arrays.append(_fixed(name, found.time_types, rows) if len(found.time_types) else _alike(0, rows))
        else:
            arrays.append(_headers(found))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)
