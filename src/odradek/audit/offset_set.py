"""A set of offsets in little memory, which notices the offsets that it has already.

It keeps 65,536 neighbouring offsets in one block: nothing but a mark if all are there, a sorted array of two bytes each
for a few, and 8 KiB of bits otherwise. So a hundred million offsets, in any order, take at most about 13 MB if the log
has few holes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]
Block = npt.NDArray[np.unsignedinteger[Any]]

BLOCK_BITS = 16
BLOCK: Final = 1 << BLOCK_BITS
FEW = 4096
"""Up to so many offsets a block is an array: beyond, the bits take less memory."""
_FULL: Final = np.empty(0, np.uint8)
"""The block of which all offsets are there."""


class OffsetSet:
    """A set of offsets (not negative). ``len`` counts them."""

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, offsets: Offsets) -> Offsets:
        """Adds offsets in any order. Returns those that were there already, once for each time, sorted."""
        if not len(offsets):
            return offsets
        is_sorted = bool((offsets[1:] >= offsets[:-1]).all())
        values = offsets if is_sorted else np.sort(offsets)
        is_first = np.empty(len(values), bool)
        is_first[0] = True
        np.not_equal(values[1:], values[:-1], out=is_first[1:])
        repeated = [values[~is_first]]
        unique = values if is_first.all() else values[is_first]
        numbers = unique >> BLOCK_BITS
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        repeated += [self._add_to_block(int(part[0]) >> BLOCK_BITS, part) for part in np.split(unique, cuts)]
        return np.sort(np.concatenate(repeated))

    def _add_to_block(self, number: int, part: Offsets) -> Offsets:
        """Adds sorted, different offsets of one block. Returns those that were there already."""
        low = (part & (BLOCK - 1)).astype(np.uint16)
        block = self._blocks.get(number)
        if block is None:
            self._count += len(low)
            self._blocks[number] = _packed(low)
            return part[:0]
        if block is _FULL:
            return part
        present = _mask(block)
        known = present[low]
        present[low] = True
        self._count += len(low) - int(known.sum())
        self._blocks[number] = _packed(np.flatnonzero(present).astype(np.uint16))
        return part[known]

    def lacking(self, offsets: Offsets) -> Offsets:
        """Returns those of these ascending offsets that are not in the set."""
        if not len(offsets):
            return offsets
        numbers = offsets >> BLOCK_BITS
        cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
        parts = []
        for part in np.split(offsets, cuts):
            block = self._blocks.get(int(part[0]) >> BLOCK_BITS)
            parts.append(part if block is None else part[~_mask(block)[part & (BLOCK - 1)]])
        return np.concatenate(parts)

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yields the ranges of neighbouring offsets, ascending: first offset, and the offset after the last one."""
        start = end = -1
        for number in sorted(self._blocks):
            base = number << BLOCK_BITS
            for low, high in _runs(self._blocks[number]):
                if base + low == end:
                    end = base + high
                    continue
                if end >= 0:
                    yield start, end
                start, end = base + low, base + high
        if end >= 0:
            yield start, end

    def gaps(self) -> Iterator[tuple[int, int]]:
        """Yields the ranges between the lowest and the highest offset that are not there, ascending."""
        before = -1
        for start, end in self.ranges():
            if before >= 0:
                yield before, start
            before = end

    @property
    def nbytes(self) -> int:
        """The memory of the blocks in bytes, without Python's dict of them."""
        return sum(block.nbytes for block in self._blocks.values())


def _packed(low: npt.NDArray[np.uint16]) -> Block:
    """The smallest form of a block with these sorted numbers."""
    if len(low) == BLOCK:
        return _FULL
    if len(low) <= FEW:
        return low.copy()
    mask = np.zeros(BLOCK, bool)
    mask[low] = True
    return np.packbits(mask)


def _mask(block: Block) -> npt.NDArray[np.bool_]:
    if block is _FULL:
        return np.ones(BLOCK, bool)
    if block.dtype == np.uint8:
        return np.unpackbits(block.view(np.uint8)).view(np.bool_)
    mask = np.zeros(BLOCK, bool)
    mask[block] = True
    return mask


def _runs(block: Block) -> Iterator[tuple[int, int]]:
    """The runs of a block: first number, and the number after the last one."""
    if block is _FULL:
        yield 0, BLOCK
        return
    low = block.astype(np.int64) if block.dtype == np.uint16 else np.flatnonzero(_mask(block))
    cuts = np.flatnonzero(np.diff(low) != 1) + 1
    firsts, lasts = low[np.r_[0, cuts]], low[np.r_[cuts - 1, len(low) - 1]]
    yield from zip(firsts.tolist(), (lasts + 1).tolist(), strict=True)
