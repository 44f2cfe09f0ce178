"""Offset sets against Python's sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from odradek.audit.offset_set import BLOCK, FEW, OffsetSet


def ranges_of(offsets: set[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for offset in sorted(offsets):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return found


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))])
def test_a_set_agrees_with_python_s_sets(seed: int) -> None:
    """Batches of neighbours, of scattered offsets and of repeats, across the bounds of blocks."""
    chance = np.random.default_rng(seed)
    top = int(chance.choice([300, BLOCK + 50, 4 * BLOCK, 1 << 40]))
    plain: set[int] = set()
    known = OffsetSet()
    for _ in range(12):
        first = int(chance.integers(0, top))
        if chance.random() < 0.5:
            batch = np.arange(first, first + int(chance.integers(1, 2 * BLOCK)))
        else:
            batch = chance.integers(
                first, first + int(chance.choice([50, 3 * BLOCK])), size=chance.integers(1, 2 * FEW)
            )
        chance.shuffle(batch)
        again = known.add(batch.astype(np.int64)).tolist()
        expected = []
        for offset in batch.tolist():
            if offset in plain:
                expected.append(offset)
            plain.add(offset)
        assert again == sorted(expected)
        assert len(known) == len(plain)
    expected_ranges = ranges_of(plain)
    assert list(known.ranges()) == expected_ranges
    assert list(known.gaps()) == [(a[1], b[0]) for a, b in itertools.pairwise(expected_ranges)]


def test_full_blocks_take_no_memory_and_scattered_ones_two_bytes_an_offset() -> None:
    known = OffsetSet()
    known.add(np.arange(100 * BLOCK))
    assert known.nbytes == 0
    assert list(known.ranges()) == [(0, 100 * BLOCK)]
    known.add(np.arange(200 * BLOCK, 300 * BLOCK, 1000))
    assert known.nbytes == 2 * (len(known) - 100 * BLOCK)


def test_no_order_of_files_needs_more_than_the_bits_of_the_offsets() -> None:
    """Rows that a hash distributes over files: each file has every seventh offset of the whole log."""
    known = OffsetSet()
    most = 0
    for start in range(7):
        known.add(np.arange(start, 40 * BLOCK, 7))
        most = max(most, known.nbytes)
    assert most <= 40 * BLOCK / 8
    assert known.nbytes == 0


def test_an_empty_set_has_no_ranges() -> None:
    known = OffsetSet()
    assert known.add(np.empty(0, np.int64)).tolist() == []
    assert (len(known), list(known.ranges()), list(known.gaps())) == (0, [], [])
