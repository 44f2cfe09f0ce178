"""Blocks of memory that decoded columns share: a block with a live column is never overwritten."""

from __future__ import annotations

import gc
import mmap
import random
import threading

import numpy as np
import pyarrow as pa
import pytest

from odradek.batches.arrow import RecordSet
from odradek.batches.columns import column_memory as blocks
from odradek.batches.encode import encode_batch
from odradek.core.effects import SimpleRecord


@pytest.fixture(autouse=True)
def _no_spare_blocks() -> None:
    blocks.spare_blocks.clear()


def decoded(number: int, rows: int) -> pa.RecordBatch:
    records = [SimpleRecord(b"%d/%d" % (number, row), b"%d:%d" % (number, row) * 20) for row in range(rows)]
    (batch,) = RecordSet(encode_batch(records, now_ms=number)).record_batches("t", number)
    return batch


def count_blocks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets a 1 for each block that is created from here on."""
    made: list[int] = []
    make = blocks.large_pages

    def counted() -> tuple[blocks.Bytes, int]:
        made.append(1)
        return make()

    monkeypatch.setattr(blocks, "large_pages", counted)
    return made


def test_columns_that_are_kept_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some columns are kept until the end and some for a while. Most are dropped at once, so blocks become free."""
    chance = random.Random(5)
    kept: list[tuple[int, int, pa.Array]] = []
    made = count_blocks(monkeypatch)
    for number in range(120):
        rows = chance.randrange(1000, 3000)
        batch = decoded(number, rows)
        if chance.random() < 0.4:
            kept.append((number, rows, batch.slice(rows // 2)))
        if len(kept) > 12:
            del kept[chance.randrange(len(kept))]
        del batch
    assert len(kept) >= 5
    assert len(made) < 12, "blocks were not reused"
    for number, rows, batch in kept:
        assert batch.column("key").to_pylist() == [b"%d/%d" % (number, row) for row in range(rows // 2, rows)]
        assert batch.column("value").to_pylist() == [b"%d:%d" % (number, row) * 20 for row in range(rows // 2, rows)]
        assert batch.column("offset").to_pylist() == list(range(rows // 2, rows))
        assert set(batch.column("partition").to_pylist()) == {number}


def test_blocks_without_live_columns_are_reused() -> None:
    space = blocks.ColumnMemory()
    places = {space.take(1 << 20, np.uint8).__array_interface__["data"][0] for _ in range(40)}
    assert len(places) == 8, "eight columns share one block"
    held = [space.take(1 << 20, np.uint8) for _ in range(40)]
    starts = {array.__array_interface__["data"][0] for array in held}
    assert len(starts) == 40, "forty held columns are at forty addresses"
    assert min(b - a for a, b in zip(sorted(starts), sorted(starts)[1:], strict=False)) >= 1 << 20


def test_many_blocks_held_at_once_are_reused_when_they_are_free() -> None:
    """A caller that polls for much data holds many blocks. The next poll uses the same blocks, also in another
    thread."""
    space = blocks.ColumnMemory()
    held = [space.take(1 << 20, np.uint8) for _ in range(100)]
    starts = {array.__array_interface__["data"][0] for array in held}
    del held
    again: set[int] = set()

    def take() -> None:
        own = blocks.ColumnMemory()
        kept = [own.take(1 << 20, np.uint8) for _ in range(50)]
        again.update(array.__array_interface__["data"][0] for array in kept)

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert len(again) == 50
    assert again <= starts


def test_the_number_of_spare_blocks_is_limited() -> None:
    space = blocks.ColumnMemory()
    held = [space.take(1 << 20, np.uint8) for _ in range(8 * (blocks.MOST_SPARE_BLOCKS + 5))]
    assert len(blocks.spare_blocks) == blocks.MOST_SPARE_BLOCKS
    starts = {array.__array_interface__["data"][0] for array in held}
    assert len(starts) == len(held), "a block that is no longer in the list of spare blocks is not overwritten"


@pytest.mark.parametrize("size", [1, blocks.SMALL - 1, blocks.BLOCK])
def test_small_and_very_large_columns_have_separate_memory(size: int) -> None:
    space = blocks.ColumnMemory()
    space.take(1 << 20, np.uint8)
    used = space.used
    array = space.take(size, np.uint8)
    gc.collect()
    assert (space.used, array.base, len(array)) == (used, None, size)


def test_arrays_are_aligned() -> None:
    space = blocks.ColumnMemory()
    for count in (20_001, 30_003, 50_007):
        for kind in (np.uint8, np.int32, np.int64):
            assert space.take(count, kind).__array_interface__["data"][0] % 8 == 0


def test_without_large_pages_a_block_has_ordinary_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(blocks.mmap, "mmap", Plain)
    array = blocks.ColumnMemory().take(1 << 20, np.uint8)
    array[:] = 7
    assert int(array.sum()) == 7 << 20


def test_without_exact_reference_counts_no_block_is_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odradek.core.refcount.ALONE", -1)
    made = count_blocks(monkeypatch)
    space = blocks.ColumnMemory()
    for _ in range(20):
        space.take(2 << 20, np.uint8)
    assert len(made) == 5, "twenty columns of two megabytes fill five blocks"
    assert not blocks.spare_blocks, "a block was kept as a spare"
