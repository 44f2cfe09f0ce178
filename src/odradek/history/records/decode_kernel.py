"""The numba kernel that parses keys and values of ``__consumer_offsets``. ``decode.py`` makes columns of the result.

The kernel parses offset commits completely: key type 1 with value versions 0 to 4, and key type 0 with value
version 0. In other records it finds only the key type and the group name. If a commit has a byte too few or too
many, the kernel leaves it to ``codecs.offsets_topic``, which decodes all kinds and names the fault of a malformed
record.
"""

from __future__ import annotations

import numpy as np
from numba import types

from odradek.batches.columns import MAX_MS, NO_MICROS
from odradek.batches.columns.decode import int16_at, int32_at, int64_at
from odradek.batches.kernels.kernel_arrays import Array, Bytes, Int16s, Int32s, Int64s, Long, Word
from odradek.batches.kernels.kernel_cache import INT32S, INT64, INT64S, READ_ONLY, UINT8S, kernel
from odradek.batches.kernels.varint_kernels import read_uvarint

COMMIT, TOMBSTONE, RARE = 0, 1, 2
"""The status of a row: a commit, a commit's tombstone, or a record for the row decoder."""

_I16S = types.int16[::1]
_PAIR = types.UniTuple(types.int64, 2)


@kernel(_PAIR(READ_ONLY, INT64, INT64))
def _text(buffer: Bytes, at: int, end: int) -> tuple[Long, Long]:
    """Returns the size and start of a text with an int16 length; start -1 if the text is null or exceeds ``end``."""
    if at + 2 > end:
        return np.int64(0), np.int64(-1)
    size = int16_at(buffer, at)
    if size < 0 or size > end - at - 2:
        return np.int64(0), np.int64(-1)
    return size, np.int64(at + 2)


@kernel(INT64(READ_ONLY, INT64, INT64))
def _topic_id(buffer: Bytes, at: int, end: int) -> Long:
    """Returns the position of the topic id in the tagged fields: -1 without one, -2 for malformed bytes."""
    id_at: Long = np.int64(-1)
    count, at = read_uvarint(buffer, at, end)
    if at < 0:
        return np.int64(-2)
    for _ in range(count):
        tag, at = read_uvarint(buffer, at, end)
        if at < 0:
            return np.int64(-2)
        size, at = read_uvarint(buffer, at, end)
        if at < 0 or size > end - at:
            return np.int64(-2)
        if tag == 0:
            if size != 16:
                return np.int64(-2)
            id_at = at
        at += size
    return id_at if at == end else np.int64(-2)


@kernel(INT64(INT64))
def _micros(ms: int) -> Long:
    """Returns microseconds; NO_MICROS for a time that does not fit."""
    return ms * 1000 if -MAX_MS <= ms <= MAX_MS else NO_MICROS


# --- commits with the layout of the previous one ----------------------------------------------------------------------
# Nearly all commits have the previous commit's layout, because a group commits the same partitions again and again.
# Where the sizes and the length fields are equal, the kernel reads the fields at the same positions as before.
# Positions are unsigned: that avoids the check for negative ones and lets the compiler read eight bytes at once.

_U64 = np.uint64
_ADDRESS = types.uint64


@kernel(types.uint64(READ_ONLY, _ADDRESS))
def _be16(buffer: Bytes, at: Word) -> Word:
    return (_U64(buffer[at]) << _U64(8)) | _U64(buffer[at + _U64(1)])


@kernel(types.uint64(READ_ONLY, _ADDRESS))
def _be32(buffer: Bytes, at: Word) -> Word:
    return (
        (_U64(buffer[at]) << _U64(24))
        | (_U64(buffer[at + _U64(1)]) << _U64(16))
        | (_U64(buffer[at + _U64(2)]) << _U64(8))
        | _U64(buffer[at + _U64(3)])
    )


@kernel(types.uint64(READ_ONLY, _ADDRESS))
def _be64(buffer: Bytes, at: Word) -> Word:
    return (
        (_U64(buffer[at]) << _U64(56))
        | (_U64(buffer[at + _U64(1)]) << _U64(48))
        | (_U64(buffer[at + _U64(2)]) << _U64(40))
        | (_U64(buffer[at + _U64(3)]) << _U64(32))
        | (_U64(buffer[at + _U64(4)]) << _U64(24))
        | (_U64(buffer[at + _U64(5)]) << _U64(16))
        | (_U64(buffer[at + _U64(6)]) << _U64(8))
        | _U64(buffer[at + _U64(7)])
    )


@kernel(types.uint64(READ_ONLY, _ADDRESS, types.int64, types.int64))
def _tags(values: Bytes, at: Word, version: int, size: int) -> Word:
    """Returns the bytes before the topic id as one number: the count of tags, the tag, its size. 0 below version 4."""
    if version != 4:
        return _U64(0)
    if size < 3:
        return _U64(values[at])
    tags: Word = (_be16(values, at) << _U64(8)) | _U64(values[at + _U64(2)])
    return tags


@kernel(
    INT64(READ_ONLY, INT64, INT64, INT64, INT64, INT64S, INT32S, INT64S, INT32S, INT32S, _I16S, INT64S, INT64S, INT64S)
)
def _value(  # noqa: PLR0917  kernels take flat arrays
    values: Bytes, at: int, end: int, key_type: int, row: int,
    offsets: Int64s, epochs: Int32s, metadata_at: Int64s, metadata_sizes: Int32s, partitions: Int32s, versions: Int16s,
    commit_us: Int64s, expire_us: Int64s, topic_id_at: Int64s,
) -> Long:  # fmt: skip
    """Parses one commit's value; returns whether it matches to the last byte and its times fit into columns."""
    if end - at < 10:
        return np.int64(0)
    version = int16_at(values, at)
    if version < 0 or version > 4 or (key_type == 0 and version != 0):
        return np.int64(0)
    offsets[row] = int64_at(values, at + 2)
    epochs[row] = -1
    at += 10
    if version >= 3:
        if end - at < 4:
            return np.int64(0)
        epochs[row] = int32_at(values, at)
        at += 4
    if version == 4:
        size, start = read_uvarint(values, at, end)
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
    commit_us[row] = _micros(int64_at(values, at))
    at += 8
    expire_us[row] = -1
    topic_id_at[row] = -1
    if version == 1:
        if end - at < 8:
            return np.int64(0)
        expire = int64_at(values, at)
        expire_us[row] = -1 if expire == -1 else _micros(expire)
        at += 8
    if version == 4:
        id_at = _topic_id(values, at, end)
        if id_at == -2:
            return np.int64(0)
        if id_at >= 0 and (int64_at(values, id_at) != 0 or int64_at(values, id_at + 8) != 0):
            topic_id_at[row] = id_at
        at = end
    versions[row] = version
    return np.int64(at == end and commit_us[row] != NO_MICROS and expire_us[row] != NO_MICROS)


@kernel(
    types.void(
        READ_ONLY, INT64, INT64, types.uint8, READ_ONLY, INT64, INT64, types.uint8, INT64,
        UINT8S, _I16S, _I16S, INT64S, INT32S, INT64S, INT32S, INT64S, INT32S, INT32S, INT64S, INT32S,
        INT64S, INT64S, INT64S,
    )
)  # fmt: skip
def _row(  # noqa: PLR0917
    keys: Bytes, at: int, end: int, has_key: int, values: Bytes, start: int, stop: int, has_value: int, row: int,
    status: Bytes, key_types: Int16s, versions: Int16s,
    group_at: Int64s, group_sizes: Int32s, topic_at: Int64s, topic_sizes: Int32s,
    metadata_at: Int64s, metadata_sizes: Int32s,
    partitions: Int32s, offsets: Int64s, epochs: Int32s, commit_us: Int64s, expire_us: Int64s, topic_id_at: Int64s,
) -> None:  # fmt: skip
    """Parses one record of any kind."""
    status[row] = RARE
    key_types[row] = versions[row] = -1
    group_at[row] = topic_at[row] = metadata_at[row] = topic_id_at[row] = -1
    group_sizes[row] = topic_sizes[row] = metadata_sizes[row] = 0
    if not has_key or end - at < 2:
        return
    key_type = int16_at(keys, at)
    key_types[row] = key_type
    size, place = _text(keys, at + 2, end)
    if place < 0:
        return
    group_at[row], group_sizes[row] = place, size
    if key_type > 1 or key_type < 0:
        return
    size, place = _text(keys, place + size, end)
    if place < 0 or place + size + 4 != end:
        return
    topic_at[row], topic_sizes[row] = place, size
    partitions[row] = int32_at(keys, place + size)
    if not has_value:
        status[row] = TOMBSTONE
    elif _value(
        values, start, stop, key_type, row,
        offsets, epochs, metadata_at, metadata_sizes, partitions, versions, commit_us, expire_us, topic_id_at,
    ):  # fmt: skip
        status[row] = COMMIT


@kernel(
    INT64(
        READ_ONLY, INT32S, READ_ONLY, READ_ONLY, INT32S, READ_ONLY,
        UINT8S, _I16S, _I16S, INT64S, INT32S, INT64S, INT32S, INT64S, INT32S, INT32S, INT64S, INT32S,
        INT64S, INT64S, INT64S,
    )
)  # fmt: skip
def _parse(  # noqa: PLR0917
    keys: Bytes, key_ends: Int32s, has_key: Bytes, values: Bytes, value_ends: Int32s, has_value: Bytes,
    status: Bytes, key_types: Int16s, versions: Int16s,
    group_at: Int64s, group_sizes: Int32s, topic_at: Int64s, topic_sizes: Int32s,
    metadata_at: Int64s, metadata_sizes: Int32s,
    partitions: Int32s, offsets: Int64s, epochs: Int32s, commit_us: Int64s, expire_us: Int64s, topic_id_at: Int64s,
) -> Long:  # fmt: skip
    """Fills the arrays; returns the number of rows that are not commits."""
    mixed = np.int64(0)
    has_layout = np.int64(0)  # whether the previous commit's layout is known: key type 1, value version 3 or 4
    key_size = value_size = group_size = topic_size = metadata_size = version = id_at = tags_size = np.int64(0)
    tags = _U64(0)
    for row in range(len(status)):
        at, end = np.int64(key_ends[row]), np.int64(key_ends[row + 1])
        start, stop = np.int64(value_ends[row]), np.int64(value_ends[row + 1])
        if has_layout and end - at == key_size and stop - start == value_size and has_key[row] and has_value[row]:
            key, value, length_at = _U64(at), _U64(start), _U64(start + 14)
            length = _be16(values, length_at) if version == 3 else _U64(values[length_at]) - _U64(1)
            metadata_end = length_at + _U64(2 if version == 3 else 1) + _U64(metadata_size)
            if (
                _be32(keys, key) == _U64((1 << 16) | group_size)
                and _be16(keys, key + _U64(4 + group_size)) == _U64(topic_size)
                and _be16(values, value) == _U64(version)
                and length == _U64(metadata_size)
                and _tags(values, metadata_end + _U64(8), version, tags_size) == tags
                and _micros(np.int64(_be64(values, metadata_end))) != NO_MICROS
            ):
                status[row] = COMMIT
                key_types[row], versions[row] = 1, version
                group_at[row], group_sizes[row] = at + 4, group_size
                topic_at[row], topic_sizes[row] = at + 6 + group_size, topic_size
                partitions[row] = np.int32(_be32(keys, key + _U64(6 + group_size + topic_size)))
                offsets[row] = np.int64(_be64(values, value + _U64(2)))
                epochs[row] = np.int32(_be32(values, value + _U64(10)))
                metadata_at[row], metadata_sizes[row] = np.int64(metadata_end) - metadata_size, metadata_size
                commit_us[row] = _micros(np.int64(_be64(values, metadata_end)))
                expire_us[row] = -1
                topic_id_at[row] = -1
                if id_at > 0:
                    id_position = metadata_end + _U64(11)
                    if (_be64(values, id_position) | _be64(values, id_position + _U64(8))) != _U64(0):
                        topic_id_at[row] = np.int64(id_position)
                continue
        mixed += 1
        _row(
            keys, at, end, has_key[row], values, start, stop, has_value[row], np.int64(row),
            status, key_types, versions, group_at, group_sizes, topic_at, topic_sizes, metadata_at, metadata_sizes,
            partitions, offsets, epochs, commit_us, expire_us, topic_id_at,
        )  # fmt: skip
        if status[row] != COMMIT:
            continue
        mixed -= 1
        version = np.int64(versions[row])
        if key_types[row] != 1 or version < 3 or metadata_sizes[row] > 126:
            has_layout = np.int64(0)
            continue
        has_layout = np.int64(1)
        key_size, value_size = end - at, stop - start
        group_size, topic_size = np.int64(group_sizes[row]), np.int64(topic_sizes[row])
        metadata_size = np.int64(metadata_sizes[row])
        metadata_end = _U64(metadata_at[row] + metadata_size)
        tags_size = stop - np.int64(metadata_end) - 8
        tags = _tags(values, metadata_end + _U64(8), version, tags_size)
        id_at = np.int64(tags_size == 19 and tags == _U64(0x010010))
        if version == 4 and not id_at and not (tags_size == 1 and tags == _U64(0)):
            has_layout = np.int64(0)  # unknown tags: the full parser reads them one by one
    return mixed


@kernel(types.void(READ_ONLY, READ_ONLY, UINT8S, UINT8S, INT64S, INT32S, INT64S, INT32S, INT64S, INT32S))
def _find_not_ascii(  # noqa: PLR0917
    keys: Bytes, values: Bytes, status: Bytes, foreign: Bytes,
    group_at: Int64s, group_sizes: Int32s, topic_at: Int64s, topic_sizes: Int32s,
    metadata_at: Int64s, metadata_sizes: Int32s,
) -> None:  # fmt: skip
    for row in range(len(status)):
        bits = np.uint8(0)
        if status[row] != RARE:
            for i in range(group_at[row], group_at[row] + group_sizes[row]):
                bits |= keys[i]
            for i in range(topic_at[row], topic_at[row] + topic_sizes[row]):
                bits |= keys[i]
            for i in range(metadata_at[row], metadata_at[row] + metadata_sizes[row]):
                bits |= values[i]
        foreign[row] = bits >> 7


@kernel(types.int64(INT32S, INT32S))
def _add_up(sizes: Int32s, ends: Int32s) -> Long:
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(sizes)):
        total += sizes[i]
        ends[i + 1] = total
    return total


class ParsedRecords:
    """The parsed rows of some records as flat arrays.

    ``*_at`` is the start of a text in the keys or values (-1: null). ``is_mixed``: not all records are commits.
    ``is_unknown``: records that cannot be decoded, which the row decoder finds.
    """

    __slots__ = (
        "commit_us", "epochs", "expire_us", "group_at", "group_sizes", "has_type", "is_mixed", "is_unknown",
        "key_types", "metadata_at", "metadata_sizes", "offsets", "partitions", "rows", "status", "topic_at",
        "topic_id_at", "topic_sizes", "versions",
    )  # fmt: skip

    def __init__(  # noqa: PLR0917
        self, keys: Array, key_ends: Array, has_key: Array, values: Array, value_ends: Array, has_value: Array
    ) -> None:
        self.rows = rows = len(has_key)
        self.status = np.empty(rows, np.uint8)
        self.is_unknown = np.zeros(rows, np.bool_)
        self.key_types, self.versions = np.empty(rows, np.int16), np.empty(rows, np.int16)
        self.group_sizes, self.topic_sizes, self.metadata_sizes, self.partitions, self.epochs = (
            np.empty(rows, np.int32) for _ in range(5)
        )
        self.group_at, self.topic_at, self.metadata_at, self.topic_id_at = (np.empty(rows, np.int64) for _ in range(4))
        self.offsets, self.commit_us, self.expire_us = (np.empty(rows, np.int64) for _ in range(3))
        self.is_mixed = bool(
            _parse(
                keys, key_ends, has_key, values, value_ends, has_value,
                self.status, self.key_types, self.versions,
                self.group_at, self.group_sizes, self.topic_at, self.topic_sizes, self.metadata_at,
                self.metadata_sizes, self.partitions, self.offsets, self.epochs, self.commit_us, self.expire_us,
                self.topic_id_at,
            )
        )  # fmt: skip

        self.has_type = np.diff(key_ends) >= 2

    def rows_not_ascii(self, keys: Array, values: Array) -> Array:
        """Returns the rows with a text that is not ASCII."""
        is_not_ascii = np.empty(self.rows, np.uint8)
        _find_not_ascii(
            keys, values, self.status, is_not_ascii,
            self.group_at, self.group_sizes, self.topic_at, self.topic_sizes, self.metadata_at, self.metadata_sizes,
        )  # fmt: skip
        return np.flatnonzero(is_not_ascii)


@kernel(types.void(READ_ONLY, INT64S, INT32S, UINT8S))
def _copy(buffer: Bytes, at: Int64s, ends: Int32s, out: Bytes) -> None:
    # Unsigned positions need no check for negative values, so the inner loop is vectorised: 10 times as fast.
    for i in range(len(at)):
        start, target = np.uint64(at[i]), np.uint64(ends[i])
        for j in range(np.uint64(ends[i + 1]) - target):
            out[target + j] = buffer[start + j]


def gather(buffer: Array, at: Array, sizes: Array) -> tuple[Array, Array]:
    """Returns Arrow's offsets and the concatenated bytes of the texts; a null has size 0."""
    ends = np.empty(len(sizes) + 1, np.int32)
    out = np.empty(_add_up(sizes, ends), np.uint8)
    if len(out):
        _copy(buffer, at, ends, out)
    return ends, out
