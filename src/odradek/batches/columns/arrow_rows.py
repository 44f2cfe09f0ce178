"""Fetched record batches as Arrow RecordBatches, decoded in pure Python: for the first records of a process.

The kernels of ``batches.arrow`` are many times faster, but need a second to load and several to compile. A property
test compares the records and errors of both decoders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import accumulate, groupby
from typing import Any

import numpy as np
import pyarrow as pa

from odradek.batches.columns.arrow_columns import RECORD_BATCH_BYTES, record_batch
from odradek.batches.kernels import kernel_loader
from odradek.batches.kernels.kernel_arrays import Array, Bytes, Int32s
from odradek.batches.row_sets import RowBatch, RowBatches, RowSet, fits_a_column
from odradek.batches.rows import Row


class PlainRecordSet(RowSet):
    """A ``RowSet`` whose batches are Arrow RecordBatches, as those of ``batches.arrow.RecordSet`` are.

    When the process has decoded enough bytes to make kernels worthwhile, it loads them in the background.
    """

    __slots__ = ()

    def copy(self) -> PlainRecordSet:
        """Returns a copy with its own memory."""
        return PlainRecordSet(bytes(self._data))

    def record_batches(self, *args: Any, **options: Any) -> Any:
        """Does the same as ``RecordSet.record_batches``, with kernels if they are loaded by now."""
        kind = kernel_loader.kernel_record_set()
        if kind is not None:
            return kind(self._data).record_batches(*args, **options)
        return PlainRecordBatches(super().record_batches(*args, **options))


class PlainRecordBatches(Iterator["pa.RecordBatch | RowBatch"]):
    """The result of ``PlainRecordSet.record_batches``, which decodes each element on demand.

    After CorruptRecord, the next call raises it again.
    """

    __slots__ = ("_parts", "_rows")

    def __init__(self, rows: RowBatches) -> None:
        self._rows = rows
        self._parts: deque[pa.RecordBatch | RowBatch] = deque()

    @property
    def is_over(self) -> bool:
        """Whether all batches were read. If False, there still may be no further element."""
        return not self._parts and self._rows.is_over

    def __next__(self) -> pa.RecordBatch | RowBatch:
        if self._parts:
            return self._parts.popleft()
        row_batches = self._rows.next_batches(RECORD_BATCH_BYTES)
        if has_rare_times(row_batches):
            self._parts.extend(parts_by_time(row_batches))
            return self._parts.popleft()
        batch = record_batch(_RowColumns(row_batches), *row_batches[0].partition, row_batches[0].columns)
        kernel_loader.note_decoded_bytes(batch.nbytes)
        return batch


def has_rare_times(batches: list[RowBatch]) -> bool:
    """Returns whether a time was requested that no column holds."""
    return "timestamp" in batches[0].columns and not all(fits_a_column(row) for one in batches for row in one.rows)


def parts_by_time(batches: Iterable[RowBatch]) -> Iterator[pa.RecordBatch | RowBatch]:
    """Yields the records in their order: columns, and a ``RowBatch`` for records whose times no column holds."""
    for batch in batches:
        for fits, run in groupby(batch.rows, fits_a_column):
            part = RowBatch(list(run), batch.partition, batch.timestamp_type, batch.columns)
            yield record_batch(_RowColumns([part]), *part.partition, part.columns) if fits else part


def without_times(batch: RowBatch) -> pa.RecordBatch:
    """Returns records whose times no column holds, as columns in which the timestamp is null."""
    record_columns = record_batch(_RowColumns([batch]), *batch.partition, batch.columns)
    at = record_columns.schema.get_field_index("timestamp")
    if at < 0:
        return record_columns
    return record_columns.set_column(
        at, record_columns.schema.field(at), pa.nulls(batch.num_rows, record_columns.schema.field(at).type)
    )


class _RowBlobs:
    __slots__ = ("data", "ends", "is_there", "nulls")

    def __init__(self, content: list[bytes | None]) -> None:
        self.nulls = content.count(None)
        self.is_there = _NO_BYTES
        if self.nulls:
            self.is_there = np.array([one is not None for one in content], np.uint8)
            content = [one or b"" for one in content]
        present: Any = content
        self.data = _bytes(present)
        self.ends = _ends(present)


class _RowColumns:
    """Rows as ``arrow_columns.FlatColumns``."""

    __slots__ = ("_headers", "headers_ends", "keys", "offsets", "rows", "time_types", "times", "values")

    def __init__(self, batches: list[RowBatch]) -> None:
        rows: list[Row] = batches[0].rows if len(batches) == 1 else [row for batch in batches for row in batch.rows]
        columns = batches[0].columns
        self.rows = len(rows)
        self.offsets = _numbers([row.offset for row in rows], np.int64)
        # Numpy's product wraps around for a time that does not fit. Such a time was not requested.
        self.times = _numbers([row.timestamp for row in rows], np.int64) * 1000
        self.time_types = _NO_TYPES
        if any(batch.timestamp_type for batch in batches):
            types = np.array([batch.timestamp_type for batch in batches], np.int32)
            self.time_types = np.repeat(types, [batch.num_rows for batch in batches])
        self.keys = _RowBlobs([row.key for row in rows]) if "key" in columns else _NO_BLOBS
        self.values = _RowBlobs([row.value for row in rows]) if "value" in columns else _NO_BLOBS
        self._headers = [pair for row in rows for pair in row.headers] if "headers" in columns else []
        self.headers_ends = _ends([row.headers for row in rows]) if "headers" in columns else _NO_TYPES

    def gather_headers(self) -> tuple[Array, Array, Array, Array, Array]:
        names = [name.encode() for name, _ in self._headers]
        values = [value or b"" for _, value in self._headers]
        is_null = np.array([value is None for _, value in self._headers], np.uint8)
        return _ends(names), _bytes(names), _ends(values), _bytes(values), is_null


def _numbers(values: list[int], kind: type) -> Array:
    return np.array(values, kind)


def _bytes(parts: list[bytes]) -> Array:
    return np.frombuffer(b"".join(parts), np.uint8)


def _ends(parts: Sequence[Sized]) -> Array:
    """Returns Arrow's offsets of these elements."""
    return np.array(list(accumulate(map(len, parts), initial=0)), np.int32)


_NO_BYTES: Bytes = np.empty(0, np.uint8)
_NO_TYPES: Int32s = np.empty(0, np.int32)
_NO_BLOBS = _RowBlobs([])
