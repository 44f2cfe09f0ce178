"""The decoder of ``__consumer_offsets`` records into Arrow columns (``columns.SCHEMA``).

Nearly all records are commits. One kernel decodes them without an object per record. Python decodes the other records
one by one. Every record becomes a row. A record that cannot be decoded keeps its bytes in ``key`` and ``value``, and
``reason`` says why. Its row has the group that the key names.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from odradek.batches.columns.arrow_columns import validity
from odradek.batches.kernels.kernel_arrays import Array
from odradek.codecs.offsets_topic import UnknownRecord, decode, group_of_key
from odradek.codecs.schemas import RECORD_TYPES
from odradek.history.records.columns import KINDS, OFFSET_COMMIT, RARE_COLUMNS, SCHEMA, TIME, UNKNOWN
from odradek.history.records.decode_kernel import COMMIT, RARE, ParsedRecords, gather
from odradek.history.records.group_records import Row, rare_row, unknown_row

NEEDED = ("key", "value", "partition", "offset", "timestamp")
"""The input columns that ``decode_batch`` uses."""

_UNKNOWN, _COMMIT_CODE = KINDS.index(UNKNOWN), KINDS.index(OFFSET_COMMIT)
_SHARED_NULLS = 1 << 16
_null_arrays: dict[pa.DataType, pa.Array] = {}
_KIND_NAMES = pa.array(KINDS, pa.string())


def _kind_codes() -> Array:
    """Returns the index in ``KINDS`` by key type 0 … 127; the last entry is for all other key types."""
    codes = np.full(129, _UNKNOWN, np.int8)
    for number, kind in RECORD_TYPES.items():
        codes[number] = KINDS.index(OFFSET_COMMIT if number in (0, 1) else kind.name)
    return codes


_CODES = _kind_codes()
_HIGH_BITS = np.uint64(0x8080808080808080)


def decode_batch(batch: pa.RecordBatch, topic_names: Mapping[bytes, str] | None = None) -> pa.RecordBatch:
    """Decodes a RecordBatch with the columns of ``client.reader`` (at least ``NEEDED``): one row per record, in order.

    ``topic_names`` maps topic ids (16 bytes) to names; KIP-848 assignments hold ids only. No content of a record raises
    an exception.
    """
    pairs = batch.column("key"), batch.column("value")
    (keys, key_ends, has_key), (values, value_ends, has_value) = (_flat(column) for column in pairs)
    parsed = ParsedRecords(keys, key_ends, has_key, values, value_ends, has_value)
    late = batch.column("timestamp").is_null()
    if batch.column("timestamp").null_count:
        parsed.status[late.to_numpy(zero_copy_only=False)], parsed.is_mixed = RARE, True
    rare = _rare_rows(parsed, pairs, topic_names or {}, late)
    texts = _texts(parsed, keys, values)
    if not _all_valid(texts):
        for row in parsed.rows_not_ascii(keys, values).tolist():
            if isinstance(decode(pairs[0][row].as_py(), pairs[1][row].as_py()), UnknownRecord):
                parsed.status[row], parsed.is_mixed = RARE, True
        rare = _rare_rows(parsed, pairs, topic_names or {}, late)
        texts = _texts(parsed, keys, values)
    columns = _commit_columns(parsed, texts, values, has_value) | _rare_columns(parsed.rows, *rare)
    columns["record_partition"] = batch.column("partition")
    columns["record_offset"] = batch.column("offset")
    columns["record_timestamp"] = batch.column("timestamp")
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def empty() -> pa.Table:
    """Returns a table without rows."""
    return SCHEMA.empty_table()


def _flat(column: pa.Array) -> tuple[Array, Array, Array]:
    """Returns the bytes, the offsets into the bytes, and one byte per row: 0 for null, else 1."""
    if column.type != pa.binary():
        column = column.cast(pa.binary())
    rows = len(column)
    validity, ends, data = column.buffers()
    offsets = np.frombuffer(ends, np.int32)[column.offset : column.offset + rows + 1] if rows else np.zeros(1, np.int32)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.empty(0, np.uint8)
    content.flags.writeable = False
    if column.null_count and validity is not None:
        present = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
        present = present[column.offset : column.offset + rows]
    else:
        present = np.ones(rows, np.uint8)
    present = np.ascontiguousarray(present)
    present.flags.writeable = False
    return content, np.require(offsets, requirements=["C", "W"]), present


def _rare_rows(
    parsed: ParsedRecords, pairs: tuple[pa.Array, pa.Array], topic_names: Mapping[bytes, str], late: pa.Array
) -> tuple[Array, list[Row]]:
    """Decodes the rows with status RARE one by one. Returns their indexes and their decoded columns. ``late``: whether
    the time of a record is beyond the column ``record_timestamp``.

    The row of a record that cannot be decoded has a group only if its whole key can be read: the kernel may have found
    a name in damaged bytes.
    """
    if not parsed.is_mixed:
        return np.empty(0, np.int64), []
    chosen = np.flatnonzero(parsed.status == RARE)
    rows = []
    for row in chosen.tolist():
        key, value = pairs[0][row].as_py(), pairs[1][row].as_py()
        decoded = (
            unknown_row(key, value, "a column of times does not hold the record's timestamp")
            if late[row].as_py()
            else rare_row(key, value, topic_names)
        )
        rows.append(decoded)
        if not decoded["known"]:
            parsed.is_unknown[row] = True
            if group_of_key(key) is None:
                parsed.group_at[row], parsed.group_sizes[row] = -1, 0
        if value is not None and len(value) >= 2:
            parsed.versions[row] = int.from_bytes(value[:2], "big", signed=True)
    parsed.topic_at[chosen] = parsed.metadata_at[chosen] = parsed.topic_id_at[chosen] = -1
    parsed.topic_sizes[chosen] = parsed.metadata_sizes[chosen] = 0
    return chosen, rows


def _texts(parsed: ParsedRecords, keys: Array, values: Array) -> dict[str, pa.Array]:
    return {
        "group": _gather_texts(pa.string(), keys, parsed.group_at, parsed.group_sizes),
        "topic": _gather_texts(pa.string(), keys, parsed.topic_at, parsed.topic_sizes),
        "metadata": _gather_texts(pa.string(), values, parsed.metadata_at, parsed.metadata_sizes),
    }


def _all_valid(texts: Mapping[str, pa.Array]) -> bool:
    """Returns whether all texts are UTF-8. Bytes below 0x80 need no further check."""
    for column in texts.values():
        data = column.buffers()[2]
        if not data.size:
            continue
        content = np.frombuffer(data, np.uint8)
        words = content[: len(content) & ~7].view(np.uint64)
        high = np.bitwise_or.reduce(words) & _HIGH_BITS if len(words) else 0
        if high or (content[len(words) * 8 :] & 0x80).any():
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                return False
    return True


def _gather_texts(kind: pa.DataType, buffer: Array, at: Array, sizes: Array) -> pa.Array:
    ends, content = gather(buffer, at, sizes)
    bitmap, nulls = validity(at >= 0)
    return pa.Array.from_buffers(kind, len(at), [bitmap, pa.py_buffer(ends), pa.py_buffer(content)], nulls)


def _nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Returns an array of nulls. Columns that are null throughout share one array of each type."""
    if rows > _SHARED_NULLS:
        return pa.nulls(rows, kind)
    if kind not in _null_arrays:
        _null_arrays[kind] = pa.nulls(_SHARED_NULLS, kind)
    return _null_arrays[kind].slice(0, rows)


def _numbers(kind: pa.DataType, data: Array, is_valid: Array | None) -> pa.Array:
    bitmap, nulls = (None, 0) if is_valid is None else validity(is_valid)
    return pa.Array.from_buffers(kind, len(data), [bitmap, pa.py_buffer(data)], nulls)


def _commit_columns(
    parsed: ParsedRecords, texts: dict[str, pa.Array], values: Array, has_value: Array
) -> dict[str, pa.Array]:
    rows, mixed = parsed.rows, parsed.is_mixed
    is_commit = parsed.status == COMMIT if mixed else None
    is_keyed = parsed.status != RARE if mixed else None
    return texts | {
        "kind": _kinds(parsed),
        "partition": _numbers(pa.int32(), parsed.partitions, is_keyed),
        "committed_offset": _numbers(pa.int64(), parsed.offsets, is_commit),
        "leader_epoch": _optional_numbers(pa.int32(), parsed.epochs, is_commit),
        "commit_timestamp": _numbers(TIME, parsed.commit_us, is_commit),
        "expire_timestamp": _optional_numbers(TIME, parsed.expire_us, is_commit),
        "topic_id": _topic_ids(parsed, values),
        "is_tombstone": pa.Array.from_buffers(
            pa.bool_(), rows, [None, pa.py_buffer(np.packbits(has_value == 0, bitorder="little"))]
        ),
        "key_type": _numbers(pa.int16(), parsed.key_types, parsed.has_type if mixed else None),
        "value_version": _numbers(pa.int16(), parsed.versions, parsed.versions >= 0 if mixed else None),
    }


def _kinds(parsed: ParsedRecords) -> pa.Array:
    codes = np.full(parsed.rows, _COMMIT_CODE, np.int8)
    if parsed.is_mixed:
        codes = _CODES[np.where((parsed.key_types >= 0) & (parsed.key_types < 128), parsed.key_types, 128)]
        codes[parsed.is_unknown | (parsed.group_at < 0)] = _UNKNOWN
    return pa.DictionaryArray.from_arrays(
        pa.Array.from_buffers(pa.int8(), parsed.rows, [None, pa.py_buffer(codes)]), _KIND_NAMES
    )


def _optional_numbers(kind: pa.DataType, data: Array, is_commit: Array | None) -> pa.Array:
    """Returns numbers of commits, with null for -1 and for rows that are not commits."""
    is_present = data != -1
    if is_commit is not None:
        is_present &= is_commit
    return _numbers(kind, data, is_present) if is_present.any() else _nulls(len(data), kind)


def _topic_ids(parsed: ParsedRecords, values: Array) -> pa.Array:
    has_id = parsed.topic_id_at >= 0
    if not has_id.any():
        return _nulls(parsed.rows, pa.binary())
    return _gather_texts(pa.binary(), values, parsed.topic_id_at, np.where(has_id, 16, 0).astype(np.int32))


def _rare_columns(rows: int, chosen: Array, decoded: list[Row]) -> dict[str, pa.Array]:
    """Returns ``RARE_COLUMNS``, null except in the chosen rows."""
    if not len(chosen):
        return {field.name: _nulls(rows, field.type) for field in RARE_COLUMNS}
    batch = pa.RecordBatch.from_pylist([_only_columns(row) for row in decoded], schema=RARE_COLUMNS)
    if len(chosen) == rows:
        return {name: batch.column(name) for name in RARE_COLUMNS.names}
    position = np.zeros(rows, np.int32)
    position[chosen] = np.arange(len(chosen), dtype=np.int32)
    is_rare = np.zeros(rows, bool)
    is_rare[chosen] = True
    indices = _numbers(pa.int32(), position, is_rare)
    return {
        name: batch.column(name).take(indices)
        if batch.column(name).null_count < len(chosen)
        else _nulls(rows, RARE_COLUMNS.field(name).type)
        for name in RARE_COLUMNS.names
    }


def _only_columns(row: Row) -> Row:
    return {name: row.get(name) for name in RARE_COLUMNS.names}
