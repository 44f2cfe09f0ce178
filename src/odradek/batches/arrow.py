"""Fetched record batches as Arrow RecordBatches with the columns of Spark's Kafka source."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.batches.aborted_transactions import AbortedTransaction, rolled_back
from odradek.batches.columns import DEFAULT_COLUMNS, NO_MICROS
from odradek.batches.columns import decode as kernels
from odradek.batches.columns.arrow_columns import RECORD_BATCH_BYTES, record_batch
from odradek.batches.columns.decode import (
    ATTRIBUTES,
    BASE,
    EPOCH,
    FROM,
    LAST_DELTA,
    POS,
    PRODUCER,
    TO,
)
from odradek.batches.columns.record_columns import HEADERS, KEYS, TYPES, VALUES, RecordColumns
from odradek.batches.header import CONTROL_BIT, Buffer, read_header
from odradek.batches.kernels.kernel_arrays import Bytes, Int64s
from odradek.batches.row_sets import RowBatch, RowBatches
from odradek.core.errors import CorruptRecord


class BatchSpans(NamedTuple):
    """The offset ranges of batches, from ``begins`` to ``ends`` (exclusive). Compaction may have removed records."""

    begins: Int64s
    ends: Int64s
    is_control: npt.NDArray[np.bool_]
    is_rolled_back: npt.NDArray[np.bool_]


class RecordSet:
    """The complete batches in the bytes of a fetch reply for one partition.

    The constructor reads only the batch headers. ``next_offset`` is the offset after the last batch, ``leader_epoch``
    the epoch of the last batch. Both are -1 if there is no batch. Raises CorruptRecord, and KafkaError
    (UNSUPPORTED_FOR_MESSAGE_FORMAT) for batches of format v0 or v1.

    ``batch_bytes``: a RecordBatch gets no further batch of records when it has this many bytes.
    """

    __slots__ = ("_array", "_attributes", "_batch_bytes", "_bounds", "_data", "_table", "leader_epoch", "next_offset")

    def __init__(self, data: Buffer, batch_bytes: int = RECORD_BATCH_BYTES) -> None:
        self._data = data
        self._batch_bytes = batch_bytes
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
        return RecordSet(bytes(self._data), self._batch_bytes)

    @property
    def is_compressed(self) -> bool:
        """Whether any batch is compressed."""
        return bool(self._attributes & kernels.CODEC_BITS)

    @property
    def first_offset(self) -> int:
        """The base offset of the first batch; -1 for no batch."""
        return self._bounds[0]

    def spans(self, aborted: Sequence[AbortedTransaction] = ()) -> BatchSpans:
        """Returns the offset ranges that the batch headers state. ``aborted`` is as for ``record_batches``."""
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

        The result is usually one RecordBatch, several for many bytes, or none. Records with a timestamp that does not
        fit into microseconds of 64 bits are ``RowBatch``es, if the column timestamp was requested. The iterator raises
        CorruptRecord at its first or a later element.
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
        """Reads batches from number ``at`` on. Returns their records, and the number of the first unread batch.

        The decompressed records stay far below 2 GiB, the limit of an Arrow column.
        """
        if not self._attributes & kernels.CODEC_BITS and len(self._array) <= self._batch_bytes:
            parts = [(self._array, table)]
            at = len(table)
        else:
            parts, at = self._parts(table, at)
        count = size = 0
        for _, run in parts:
            stated = kernels.stated_sizes(run)
            count, size = count + stated[0], size + stated[1]
        columns = RecordColumns(count, size, kept)
        for buffer, run in parts:
            columns.read(buffer, run, start, end)
        columns.finish()
        return columns, at

    def _parts(self, table: Int64s, at: int) -> tuple[list[tuple[Bytes, Int64s]], int]:
        """Returns batches from number ``at`` on with the buffers of their records, decompressed if necessary.

        The second value is the number of the first unread batch.
        """
        parts: list[tuple[Bytes, Int64s]] = []
        room = self._batch_bytes
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


class RecordBatches(Iterator["pa.RecordBatch | RowBatch"]):
    """The result of ``RecordSet.record_batches``, which decodes each element on demand.

    Between two elements it has no data in thread-local memory, so another thread may continue. After CorruptRecord, the
    next call raises it again.
    """

    __slots__ = (
        "_at",
        "_check_crcs",
        "_columns",
        "_has_time",
        "_is_careful",
        "_kept",
        "_offsets",
        "_partition",
        "_parts",
        "_records",
        "_table",
        "_unchecked",
    )  # fmt: skip

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
        self._has_time = "timestamp" in columns
        self._parts: deque[pa.RecordBatch | RowBatch] = deque()
        self._check_crcs = self._unchecked = check_crcs
        self._is_careful = False
        self._at = 0

    @property
    def is_over(self) -> bool:
        """Whether all batches were read. If False, there still may be no further element."""
        return self._at >= len(self._table) and not self._parts

    def __next__(self) -> pa.RecordBatch | RowBatch:
        if self._parts:
            return self._parts.popleft()
        if not self._is_careful:
            try:
                return self._next()
            except CorruptRecord:
                self._is_careful = True  # one batch at a time, because the batches before the corrupt one are good
        return self._next_of_one_batch()

    def _next_of_one_batch(self) -> pa.RecordBatch | RowBatch:
        records, table = self._records, self._table
        while self._at < len(table):
            one = table[self._at : self._at + 1]
            try:
                if self._check_crcs:
                    kernels.check_crcs(records._data, one)
                columns, _ = records._columns(one, 0, *self._offsets, self._kept)
            except CorruptRecord as error:
                error.offset = int(one[0, BASE])
                error.next_offset = error.offset + int(one[0, LAST_DELTA]) + 1
                raise
            self._at += 1
            if columns.rows:
                return self._made(columns, one)
        raise StopIteration

    def _made(self, columns: RecordColumns, table: Int64s) -> pa.RecordBatch | RowBatch:
        if self._has_time and columns.times[: columns.rows].min() == NO_MICROS:
            self._parts.extend(self._parts_by_time(table))
            return self._parts.popleft()
        return record_batch(columns, *self._partition, self._columns)

    def _next(self) -> pa.RecordBatch | RowBatch:
        records, table = self._records, self._table
        if self._unchecked:
            kernels.check_crcs(records._data, table)
            self._unchecked = False
        while self._at < len(table):
            first = self._at
            columns, self._at = records._columns(table, first, *self._offsets, self._kept)
            if columns.rows:
                return self._made(columns, table[first : self._at])
        raise StopIteration

    def _parts_by_time(self, table: Int64s) -> Iterator[pa.RecordBatch | RowBatch]:
        """Reads batches again, row by row: for the exact times that no column holds."""
        from odradek.batches.columns.arrow_rows import parts_by_time

        data = self._records._data
        batches = [(at, read_header(data, at)) for at in table[:, POS].tolist()]
        return parts_by_time(RowBatches(data, batches, self._partition, self._offsets, self._columns, check_crcs=False))


def _marks(table: Int64s) -> tuple[list[int], list[int], list[int]]:
    """Returns the columns for ``rolled_back``."""
    return (table[:, BASE] + table[:, LAST_DELTA]).tolist(), table[:, ATTRIBUTES].tolist(), table[:, PRODUCER].tolist()


@lru_cache(maxsize=64)
def _kept(columns: tuple[str, ...]) -> int:
    kept = {"key": KEYS, "value": VALUES, "headers": HEADERS}
    return sum(flag for name, flag in kept.items() if name in columns)
