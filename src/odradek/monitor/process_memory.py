"""The memory of the monitor's process: what it does not load, and what it gives back to the system.

All of it is best effort: on another system than Linux with glibc, the functions
``give_back_…`` do nothing.
"""

from __future__ import annotations

import ctypes
import gc
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_COMPILER = "libllvmlite.so"
_SMAPS = Path("/proc/self/smaps")
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+\s*(.*)")
_MADV_DONTNEED = 4
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""Parameters of glibc's ``mallopt``."""
_LARGEST_KEPT = 1 << 20
"""Freed blocks of this size go back to the system. The arrays of one judgement are smaller: they are used again."""


class _Refusal:
    """A finder of modules that refuses pandas."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'", name=name)


def load_arrow() -> None:
    """Imports pyarrow, which then does without pandas in this process. Other modules may import pandas afterwards.

    pyarrow loads pandas, if it is installed, at the first array that it makes of a list. The monitor has no use for it,
    and it takes 35 MB.
    """
    refusal = _Refusal()
    sys.meta_path.insert(0, refusal)
    try:
        import pyarrow as pa

        pa.array([0])  # here pyarrow looks for pandas, once
    finally:
        sys.meta_path.remove(refusal)
    pa.set_memory_pool(pa.system_memory_pool())


def give_back_freed_memory() -> None:
    """Lets glibc give freed memory back to the system, and all threads share one heap.

    To be called before there are other threads. By default each thread gets a heap of its own, and glibc keeps up to 64
    MB of what a read of the whole topic has used.
    """
    with suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  another C library has other parameters
        for parameter, value in (
            (_ARENA_MAX, 1), (_MMAP_THRESHOLD, _LARGEST_KEPT), (_TRIM_THRESHOLD, 4 * _LARGEST_KEPT),
        ):  # fmt: skip
            library.mallopt(parameter, value)


def give_back_free_pages() -> None:
    """Gives the free pages inside the heap back, such as those that the read of the whole topic has used."""
    with suppress(OSError, AttributeError, ValueError):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)


def give_back_compiler_code() -> None:
    """Gives the pages of LLVM's program code back, which only the load of kernels needs: 70 MB.

    If a kernel is loaded later, the system reads the pages again.
    """
    with suppress(OSError, AttributeError, ValueError):
        library = ctypes.CDLL(None, use_errno=True)
        for begin, size in _unchanged_mappings(_SMAPS.read_text(), _COMPILER):
            library.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), _MADV_DONTNEED)


def _unchanged_mappings(smaps: str, name: str) -> Iterator[tuple[int, int]]:
    """Yields begin and size of the mappings of a file that have its bytes: no page of them was written since.

    A page that was written, such as one with relocated addresses, would be lost.
    """
    mapping = None
    for line in smaps.splitlines():
        if match := _MAPPING.fullmatch(line):
            begin, end = int(match[1], 16), int(match[2], 16)
            is_wanted = Path(match[4]).name == name and "w" not in match[3]
            mapping = (begin, end - begin) if is_wanted else None
        elif mapping is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0:
                yield mapping
            mapping = None
