"""Arrow columns to packed records, for any alignment of their memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from odradek.client.producer.columns import PackedColumns, pack_columns

ROWS = 50


def packed(batch: pa.RecordBatch) -> list[tuple[int, bytes, list[int], int, int]]:
    def plain(one: PackedColumns) -> tuple[int, bytes, list[int], int, int]:
        return one.partition, bytes(one.body), one.rows.tolist(), one.base_timestamp, one.max_timestamp

    return [plain(one) for one in pack_columns(batch, 3, lambda size: 0, 1 << 16, 1_700_000_000_000)]


def moved(array: pa.Array, by: int) -> pa.Array:
    """The same values, in memory that begins ``by`` bytes after an aligned address, as in buffers of other
    libraries."""
    buffers = [
        None if one is None else pa.py_buffer(b"\0" * by + one.to_pybytes()).slice(by) for one in array.buffers()
    ]
    return pa.Array.from_buffers(array.type, len(array), buffers, array.null_count)


@pytest.mark.parametrize("by", [1, 3, 4])
def test_columns_need_not_be_aligned(by: int) -> None:
    columns = {
        "key": pa.array([None if n % 7 == 0 else b"%d" % n for n in range(ROWS)], pa.large_binary()),
        "value": pa.array([None if n % 5 == 0 else b"v" * n for n in range(ROWS)], pa.large_binary()),
        "partition": pa.array([None if n % 3 else n % 2 for n in range(ROWS)], pa.int64()),
        "timestamp": pa.array([1_700_000_000_000 + n for n in range(ROWS)], pa.int64()),
    }
    there = pa.RecordBatch.from_pydict(columns)
    here = pa.RecordBatch.from_pydict({name: moved(column, by) for name, column in columns.items()})
    assert packed(here) == packed(there)
    assert sorted(row for one in packed(here) for row in one[2]) == list(range(ROWS))
