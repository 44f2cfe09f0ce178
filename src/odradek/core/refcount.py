"""A check of references to an object by its reference count. Memory without other references can be reused."""

from __future__ import annotations

import sys


def _count(thing: object) -> int:
    return sys.getrefcount(thing)


def _alone() -> int:
    """Returns the reference count that ``_count`` reports for an object with one reference besides those of the call.

    The number depends on the version of Python. Returns -1 if reference counts are not reliable, e.g. without a GIL.
    """
    thing = bytearray(1)
    alone = _count(thing)
    view = memoryview(thing)
    seen = _count(thing)
    del view
    is_reliable = seen == alone + 1 and _count(thing) == alone
    return alone if is_reliable and getattr(sys, "_is_gil_enabled", lambda: True)() else -1


ALONE = _alone()


def has_only_references(thing: object, references: int) -> bool:
    """Returns whether ``thing`` has exactly ``references`` references: names and containers of the caller.

    Returns False if reference counts are not reliable.
    """
    return ALONE >= 0 and sys.getrefcount(thing) == ALONE + references - 1
