"""Keys and values of ``__consumer_offsets`` to columns: the numba kernel. ``decode.py`` wraps its output.

It reads offset commits, keys 0 and 1 with values 0 to 4, whole; of other records only where the group's name lies.
Whatever does not fit to the last byte is left to ``core.records``, which knows all kinds and can say what is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from odradek.batches.decode import _I32S, _I64S, _MAX_MS, _RO, _U8S, _compiled, _copy, _int16, _int32, _int64

COMMIT, TOMBSTONE, RARE = 0, 1, 2
"""What a row turned out to be: a commit, a commit's tombstone, a record for the row decoder."""

_I64 = types.int64
_PAIR = types.UniTuple(types.int64, 2)


@_compiled(_PAIR(_RO, _I64, _I64))
def _uvarint(buffer: Any, at: int, end: int) -> Any:
    """An unsigned number and the position behind it; -1 where it is cut off or longer than 5 bytes."""
    result: Any = np.int64(0)
    for i in range(5):
        if at + i >= end:
            return np.int64(0), np.int64(-1)
        byte = np.int64(buffer[at + i])
        result |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return result, np.int64(at + i + 1)
    return np.int64(0), np.int64(-1)


@_compiled(_PAIR(_RO, _I64, _I64))
def _text(buffer: Any, at: int, end: int) -> Any:
    """Length and start of a text behind its int16 length; start -1 where it does not fit."""
    if at + 2 > end:
        return np.int64(0), np.int64(-1)
    size = _int16(buffer, at)
    if size < 0 or size > end - at - 2:
        return np.int64(0), np.int64(-1)
    return size, np.int64(at + 2)


@_compiled(_I64(_RO, _I64, _I64))
def _topic_id(buffer: Any, at: int, end: int) -> Any:
    """Where the topic's id lies among the tagged fields: -1 where there is none, -2 where the bytes do not fit."""
    found: Any = np.int64(-1)
    count, at = _uvarint(buffer, at, end)
    if at < 0:
        return np.int64(-2)
    for _ in range(count):
        tag, at = _uvarint(buffer, at, end)
        if at < 0:
            return np.int64(-2)
        size, at = _uvarint(buffer, at, end)
        if at < 0 or size > end - at:
            return np.int64(-2)
        if tag == 0:
            if size != 16:
                return np.int64(-2)
            found = at
        at += size
    return found if at == end else np.int64(-2)


@_compiled(_I64(_I64))
def _micros(ms: int) -> Any:
    return min(max(ms, -_MAX_MS), _MAX_MS) * 1000


@_compiled(_I64(_RO, _I64, _I64))
def _any_bit(buffer: Any, at: int, size: int) -> Any:
    """All bytes ORed: 0x80 and above tells that not all are ASCII."""
    bits = np.uint8(0)
    start = np.uint64(at)
    for i in range(np.uint64(size)):
        bits |= buffer[start + i]
    return np.int64(bits)


@_compiled(_I64(_RO, _I64, _I64, _I64, _I64, _I64S, _I32S, _I64S, _I32S, _I32S, _I32S, _I64S, _I64S, _I64S))
def _value(  # noqa: PLR0917  kernels take flat arrays
    values: Any, at: int, end: int, key_type: int, row: int,
    offsets: Any, epochs: Any, metadata_at: Any, metadata_sizes: Any, partitions: Any, versions: Any,
    commit_us: Any, expire_us: Any, topic_id_at: Any,
) -> Any:  # fmt: skip
    """Reads one commit's value; returns whether it fits, to the last byte."""
    if end - at < 10:
        return np.int64(0)
    version = _int16(values, at)
    if version < 0 or version > 4 or (key_type == 0 and version != 0):
        return np.int64(0)
    offsets[row] = _int64(values, at + 2)
    epochs[row] = -1
    at += 10
    if version >= 3:
        if end - at < 4:
            return np.int64(0)
        epochs[row] = _int32(values, at)
        at += 4
    if version == 4:
        size, start = _uvarint(values, at, end)
        size -= 1
        if start < 0 or size < 0 or size > end - start:
            return np.int64(0)
    else:
        size, start = _text(values, at, end)
        if start < 0:
            return np.int64(0)
    metadata_at[row], metadata_sizes[row] = start, size
    at = start + size
    if end - at < 8:
        return np.int64(0)
    commit_us[row] = _micros(_int64(values, at))
    at += 8
    expire_us[row] = -1
    topic_id_at[row] = -1
    if version == 1:
        if end - at < 8:
            return np.int64(0)
        expire = _int64(values, at)
        expire_us[row] = -1 if expire == -1 else _micros(expire)
        at += 8
    if version == 4:
        found = _topic_id(values, at, end)
        if found == -2:
            return np.int64(0)
        if found >= 0 and (_int64(values, found) != 0 or _int64(values, found + 8) != 0):
            topic_id_at[row] = found
        at = end
    versions[row] = version
    return np.int64(at == end)


@_compiled(
    types.void(
        _RO, _I32S, _RO, _RO, _I32S, _RO,
        _U8S, _U8S, _I32S, _I32S, _I64S, _I32S, _I64S, _I32S, _I64S, _I32S, _I32S, _I64S, _I32S, _I64S, _I64S, _I64S,
    )
)  # fmt: skip
def _parse(  # noqa: PLR0917
    keys: Any, key_ends: Any, has_key: Any, values: Any, value_ends: Any, has_value: Any,
    status: Any, foreign: Any, key_types: Any, versions: Any,
    group_at: Any, group_sizes: Any, topic_at: Any, topic_sizes: Any, metadata_at: Any, metadata_sizes: Any,
    partitions: Any, offsets: Any, epochs: Any, commit_us: Any, expire_us: Any, topic_id_at: Any,
) -> Any:  # fmt: skip
    for row in range(len(status)):
        status[row] = RARE
        foreign[row] = 0
        key_types[row] = versions[row] = -1
        group_at[row] = topic_at[row] = metadata_at[row] = topic_id_at[row] = -1
        group_sizes[row] = topic_sizes[row] = metadata_sizes[row] = 0
        at, end = np.int64(key_ends[row]), np.int64(key_ends[row + 1])
        if not has_key[row] or end - at < 2:
            continue
        key_type = _int16(keys, at)
        key_types[row] = key_type
        size, start = _text(keys, at + 2, end)
        if start < 0:
            continue
        group_at[row], group_sizes[row] = start, size
        if key_type > 1 or key_type < 0:
            continue
        bits = _any_bit(keys, start, size)
        size, start = _text(keys, start + size, end)
        if start < 0 or start + size + 4 != end:
            continue
        topic_at[row], topic_sizes[row] = start, size
        bits |= _any_bit(keys, start, size)
        partitions[row] = _int32(keys, start + size)
        if not has_value[row]:
            status[row] = TOMBSTONE
        elif _value(
            values, np.int64(value_ends[row]), np.int64(value_ends[row + 1]), key_type, np.int64(row),
            offsets, epochs, metadata_at, metadata_sizes, partitions, versions, commit_us, expire_us, topic_id_at,
        ):  # fmt: skip
            status[row] = COMMIT
            bits |= _any_bit(values, metadata_at[row], metadata_sizes[row])
        foreign[row] = bits >> 7


Array = npt.NDArray[Any]


class Parsed:
    """The rows of some records as flat arrays: ``*_at`` is where a text starts in keys or values (-1: null)."""

    __slots__ = (
        "commit_us", "epochs", "expire_us", "foreign", "group_at", "group_sizes", "has_type", "key_types",
        "metadata_at", "metadata_sizes", "offsets", "partitions", "rows", "status", "topic_at", "topic_id_at",
        "topic_sizes", "versions",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917
        self, keys: Array, key_ends: Array, has_key: Array, values: Array, value_ends: Array, has_value: Array
    ) -> None:
        self.rows = rows = len(has_key)
        self.has_type = np.diff(key_ends) >= 2
        self.status, self.foreign = np.empty(rows, np.uint8), np.empty(rows, np.uint8)
        self.key_types, self.versions, self.group_sizes, self.topic_sizes, self.metadata_sizes, self.partitions = (
            np.empty(rows, np.int32) for _ in range(6)
        )
        self.group_at, self.topic_at, self.metadata_at, self.topic_id_at = (np.empty(rows, np.int64) for _ in range(4))
        self.offsets, self.commit_us, self.expire_us = (np.empty(rows, np.int64) for _ in range(3))
        self.epochs = np.empty(rows, np.int32)
        _parse(
            keys, key_ends, has_key, values, value_ends, has_value,
            self.status, self.foreign, self.key_types, self.versions,
            self.group_at, self.group_sizes, self.topic_at, self.topic_sizes, self.metadata_at, self.metadata_sizes,
            self.partitions, self.offsets, self.epochs, self.commit_us, self.expire_us, self.topic_id_at,
        )  # fmt: skip


def gather(buffer: Array, at: Array, sizes: Array) -> tuple[Array, Array]:
    """Arrow's offsets and the bytes one behind the other; those without bytes have size 0."""
    ends = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:], dtype=np.int32)
    out = np.empty(int(ends[-1]), np.uint8)
    if len(out):
        _copy(buffer, 0, len(sizes), at, ends, out)
    return ends, out
