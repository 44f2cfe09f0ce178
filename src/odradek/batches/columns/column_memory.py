"""Memory for decoded columns with a long life."""

from __future__ import annotations

import mmap
import sys
import threading
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from odradek.batches.kernels.kernel_arrays import Array, Bytes
from odradek.core import refcount

spare_blocks: deque[tuple[Bytes, int]] = deque()
"""Full blocks of all threads, each with the position of its first large page. The thread that pops a block owns it, so
no lock is necessary. A lock could stay locked after a fork."""


class ColumnMemory(threading.local):
    """A thread's memory for arrays with a long life.

    For memory in pages of the usual size, the allocation takes longer than the writes. With large pages, it takes a
    third of this time. So arrays share blocks of large pages. A block is freed with its last array. Some full blocks
    are kept, and reused when their arrays are gone.
    """

    def __init__(self) -> None:
        self.block: Bytes = np.empty(0, np.uint8)
        self._start = 0
        self.used = 0

    def take(self, count: int, kind: npt.DTypeLike) -> Array:
        """Returns an uninitialized array of ``count`` numbers.

        A small array gets memory of its own, because it would keep a whole block in memory. So does an array that is
        larger than half a block."""
        size = count * np.dtype(kind).itemsize
        if size < SMALL or size > BLOCK // 2:
            return np.empty(count, kind)
        at = -(-self.used // 64) * 64
        if at + size > BLOCK or not len(self.block):
            self._next_block()
            at = 0
        self.used = at + size
        at += self._start
        return self.block[at : at + size].view(kind)

    def give_back(self, array: Array, used: int) -> None:
        """Frees all but ``used`` bytes of the last array of the block. Does nothing for an array outside the block."""
        if array.base is self.block:
            self.used -= len(array) - used

    def _next_block(self) -> None:
        if len(self.block) and refcount.ALONE >= 0:  # below 0, a free block cannot be recognized
            spare_blocks.append((self.block, self._start))
        self.block = np.empty(0, np.uint8)
        self.block, self._start = _free_block() or large_pages()


def _free_block() -> tuple[Bytes, int] | None:
    """Returns a spare block whose arrays are gone; None if there is none.

    It prefers the block that was filled last, because CPU caches may still hold it."""
    free = None
    held = []
    while free is None:
        try:
            block, start = spare_blocks.pop()
        except IndexError:
            break
        if refcount.has_only_references(block, 1):  # every array in the block refers to it
            free = block, start
        else:
            held.append((block, start))
    spare_blocks.extend(reversed(held))
    while len(spare_blocks) > MOST_SPARE_BLOCKS:
        with suppress(IndexError):  # another thread has emptied ``spare_blocks``
            spare_blocks.popleft()
    return free


MOST_SPARE_BLOCKS = 16
"""The largest number of spare blocks in a process: a large poll's result is still in use during the next decode."""
BLOCK = 8 << 20
_PAGE = 2 << 20
SMALL = 16 << 10


def large_pages() -> tuple[Bytes, int]:
    """Returns a new block and the position of its first whole large page.

    Without ``MADV_HUGEPAGE``, the block has pages of the usual size, and the position is 0."""
    if sys.platform == "win32" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(BLOCK, np.uint8), 0
    memory = mmap.mmap(-1, BLOCK + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)
    return block, -block.ctypes.data % _PAGE


space = ColumnMemory()
