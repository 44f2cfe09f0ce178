"""Memory for decoded columns that are kept."""

from __future__ import annotations

import mmap
import threading
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from odradek.core import refcount

Bytes = npt.NDArray[np.uint8]


_spare: deque[tuple[Bytes, int]] = deque()
"""Blocks that are full, of all threads, each with where in it the first large page begins. Who takes one out has it, so
no lock is needed, which a fork might leave locked."""


class Space(threading.local):
    """Memory for what is kept, a thread's own. Fresh pages cost more time than what is written to them, large ones a
    third of it: so arrays share blocks of these, each freed with the last array in it. Full blocks stay, some of them,
    and are written again once nobody holds an array in them."""

    def __init__(self) -> None:
        self.block: Bytes = np.empty(0, np.uint8)
        self._start = 0
        self.used = 0

    def take(self, count: int, kind: Any) -> Any:
        """An array of ``count`` numbers, not filled. Small ones are not worth a block that lives as long as they."""
        size = count * np.dtype(kind).itemsize
        if size < _SMALL or size > _BLOCK // 2:
            return np.empty(count, kind)
        at = -(-self.used // 64) * 64
        if at + size > _BLOCK or not len(self.block):
            self._next_block()
            at = 0
        self.used = at + size
        at += self._start
        return self.block[at : at + size].view(kind)

    def give_back(self, array: Any, used: int) -> None:
        """Of the bytes that were taken last only ``used`` are needed."""
        if array.base is self.block:
            self.used -= len(array) - used

    def _next_block(self) -> None:
        if len(self.block) and refcount.ALONE >= 0:  # else nobody could tell when it comes free
            _spare.append((self.block, self._start))
        self.block = np.empty(0, np.uint8)
        self.block, self._start = _free_block() or _large_pages()


def _free_block() -> tuple[Bytes, int] | None:
    """A spare one that nobody holds an array in: of those the one that was full last, which caches may still hold."""
    found = None
    held = []
    while found is None:
        try:
            block, start = _spare.pop()
        except IndexError:
            break
        if refcount.held_by(block, 1):  # every array in it holds it
            found = block, start
        else:
            held.append((block, start))
    _spare.extend(reversed(held))
    while len(_spare) > _SPARE:
        with suppress(IndexError):  # another thread was faster
            _spare.popleft()
    return found


_SPARE = 16
"""So many are kept at most, in a process: who polls for much holds what a poll returned while the next is decoded."""
_BLOCK = 8 << 20
_PAGE = 2 << 20
_SMALL = 16 << 10


def _large_pages() -> tuple[Bytes, int]:
    """A block, and where in it the first whole large page begins. Where the system has none it is memory as any."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(_BLOCK, np.uint8), 0
    memory = mmap.mmap(-1, _BLOCK + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a system without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    block = np.frombuffer(memory, np.uint8)
    return block, -block.ctypes.data % _PAGE


space = Space()
