"""The Arrow columns of decoded records, made from buffers. This module needs pyarrow and numpy, but no kernels.

It does not use pyarrow's own conversion of Python values. If pandas is installed, that conversion imports pandas, which
takes half a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from odradek.batches.columns import DEFAULT_COLUMNS, check_columns
from odradek.batches.kernels.kernel_arrays import Array
from odradek.batches.rows import java_text

RECORD_BATCH_BYTES = 2 << 20
"""The approximate limit for the bytes of records in one RecordBatch."""
# The names and the nullability are Spark's, so that Spark does not have to cast the Arrow batches.
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


class FlatBlobs(Protocol):
    """The keys or the values of records, as Arrow stores them.

    ``data``: their bytes. ``ends``: Arrow's offsets. ``is_there``: 0 for null, else 1. ``nulls``: the number of nulls.
    """

    data: npt.NDArray[np.uint8]
    ends: npt.NDArray[np.int32]
    is_there: npt.NDArray[np.uint8]
    nulls: int


class FlatColumns(Protocol):
    """The records of some batches as flat arrays. ``rows``: the number of filled rows. ``times``: in microseconds.

    ``time_types`` is empty if all are 0 (CreateTime). Columns that were not requested are empty.
    """

    rows: int
    offsets: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    time_types: npt.NDArray[np.int32]
    headers_ends: npt.NDArray[np.int32]

    @property
    def keys(self) -> FlatBlobs: ...

    @property
    def values(self) -> FlatBlobs: ...

    def gather_headers(self) -> tuple[Array, Array, Array, Array, Array]:
        """Returns name offsets, names, value offsets, values, and for each header 1 if its value is null, else 0."""


def validity(is_valid: Array) -> tuple[pa.Buffer | None, int]:
    """Returns Arrow's bitmap of a column, None if all values are there, and the number of nulls."""
    nulls = len(is_valid) - int(np.count_nonzero(is_valid))
    return (pa.py_buffer(np.packbits(is_valid, bitorder="little")) if nulls else None), nulls


_MOST_SHARED_ROWS = 1 << 15
_MOST_CACHED_ROWS = 16


def _repeated(value: str | int, rows: int) -> pa.Array:
    """Returns a column with one value."""
    if isinstance(value, int):
        return _fixed("partition", np.full(rows, value, np.int32), rows)
    text = np.frombuffer(value.encode(), np.uint8)
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.tile(text, rows))]
    return pa.Array.from_buffers(ARROW_TYPES["topic"], rows, buffers, 0)


@lru_cache(maxsize=8)
def _topics(topic: str) -> pa.Array:
    """Returns a long column of one topic. RecordBatches share slices of it."""
    return _repeated(topic, _MOST_SHARED_ROWS)


@lru_cache(maxsize=64)
def _numbers(number: int) -> pa.Array:
    return _repeated(number, _MOST_SHARED_ROWS)


@lru_cache(maxsize=4096)
def _few_equal_values(value: str | int, rows: int) -> pa.Array:
    return _repeated(value, rows)


def _equal_values(value: str | int, rows: int) -> pa.Array:
    if rows <= _MOST_CACHED_ROWS:
        return _few_equal_values(value, rows)
    if rows > _MOST_SHARED_ROWS:
        return _repeated(value, rows)
    return (_topics(value) if isinstance(value, str) else _numbers(value)).slice(0, rows)


# Arrays are cut to their rows: a pickle would include the uninitialized rest.


def _cut(numbers: Any, rows: int) -> object:
    return numbers if len(numbers) == rows else numbers[:rows]


def _binary(blobs: FlatBlobs, rows: int) -> pa.Array:
    bitmap = None
    if blobs.nulls:
        bitmap = pa.py_buffer(np.packbits(blobs.is_there[:rows], bitorder="little"))
    buffers = [bitmap, pa.py_buffer(_cut(blobs.ends, rows + 1)), pa.py_buffer(blobs.data)]
    return pa.Array.from_buffers(ARROW_TYPES["value"], rows, buffers, blobs.nulls)


def _fixed(name: str, numbers: object, rows: int) -> pa.Array:
    return pa.Array.from_buffers(ARROW_TYPES[name], rows, [None, pa.py_buffer(_cut(numbers, rows))], 0)


def _headers(flat: FlatColumns) -> pa.Array:
    """Returns a list of headers for each record; null, as in Spark, for a record without headers."""
    name_ends, names, value_ends, values, is_null = flat.gather_headers()
    count = len(is_null)
    keys = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)], 0)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        # Kafka's client delivers such a key with U+FFFD.
        whole = names.tobytes()
        texts = [java_text(whole[start:end]).encode() for start, end in pairwise(name_ends.tolist())]
        name_ends = np.array([0, *accumulate(map(len, texts))], np.int32)
        names = np.frombuffer(b"".join(texts), np.uint8)
        keys = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(name_ends), pa.py_buffer(names)], 0)
    bitmap, nulls = validity(is_null == 0)
    content = pa.Array.from_buffers(pa.binary(), count, [bitmap, pa.py_buffer(value_ends), pa.py_buffer(values)], nulls)
    pairs = pa.StructArray.from_arrays([keys, content], fields=list(_HEADERS.value_type))
    ends = flat.headers_ends[: flat.rows + 1]
    bitmap, nulls = validity(ends[1:] > ends[:-1])
    return pa.Array.from_buffers(_HEADERS, flat.rows, [bitmap, pa.py_buffer(ends)], nulls, children=[pairs])


def record_batch(flat: FlatColumns, topic: str, partition: int, columns: tuple[str, ...]) -> pa.RecordBatch:
    """Returns the columns as a RecordBatch. Invalid UTF-8 in a header's key becomes U+FFFD."""
    rows = flat.rows
    wanted = schema(columns)
    arrays = []
    for name in columns:
        if name == "key":
            arrays.append(_binary(flat.keys, rows))
        elif name == "value":
            arrays.append(_binary(flat.values, rows))
        elif name == "topic":
            arrays.append(_equal_values(topic, rows))
        elif name == "partition":
            arrays.append(_equal_values(partition, rows))
        elif name == "offset":
            arrays.append(_fixed(name, flat.offsets, rows))
        elif name == "timestamp":
            arrays.append(_fixed(name, flat.times, rows))
        elif name == "timestampType":
            arrays.append(_fixed(name, flat.time_types, rows) if len(flat.time_types) else _equal_values(0, rows))
        else:
            arrays.append(_headers(flat))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


# --- columns of Python values -----------------------------------------------------------------------------------------


def blob_column(values: Sequence[bytes | None]) -> pa.Array:
    """Returns a column of bytes."""
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    lengths = np.fromiter((len(value or b"") for value in values), np.int64, len(values))
    ends = np.zeros(len(values) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the values have more than 2 GiB")
    bitmap, nulls = validity(is_there)
    buffers = [bitmap, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(value or b"" for value in values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers, nulls)


def number_column(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    """Returns a column of whole numbers. Raises ValueError for a number that the type cannot hold."""
    limits = np.iinfo(kind.to_pandas_dtype())
    for value in values:
        if value is not None and not limits.min <= value <= limits.max:
            raise ValueError(f"{value} does not fit into {limits.bits} bits")
    is_there = np.fromiter((value is not None for value in values), np.bool_, len(values))
    numbers = np.array([value or 0 for value in values], kind.to_pandas_dtype())
    bitmap, nulls = validity(is_there)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(numbers)], nulls)


def headers_column(values: Sequence[Sequence[Mapping[str, Any]] | None]) -> pa.Array:
    """Returns a column of headers: for each record pairs with ``key``, a text, and ``value``, bytes or None."""
    pairs = [pair for headers in values for pair in headers or ()]
    names = blob_column([pair["key"].encode() for pair in pairs])
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(headers or ()) for headers in values], out=ends[1:])
    bitmap, nulls = validity(np.fromiter((headers is not None for headers in values), np.bool_, len(values)))
    kind = _HEADERS.value_type
    texts = pa.Array.from_buffers(pa.string(), len(pairs), names.buffers())
    parts = [texts, blob_column([pair["value"] for pair in pairs])]
    inner = pa.Array.from_buffers(kind, len(pairs), [None], 0, children=parts)
    return pa.Array.from_buffers(_HEADERS, len(values), [bitmap, pa.py_buffer(ends)], nulls, children=[inner])
