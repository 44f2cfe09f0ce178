"""Whether anybody else holds an object, told by its count of references. Memory that nobody sees can be used again."""

from __future__ import annotations

import sys


def _alone() -> int:
    """The count of what one local name holds, which differs between versions of Python. -1: it does not tell."""
    thing = bytearray(1)
    alone = sys.getrefcount(thing)
    view = memoryview(thing)
    seen = sys.getrefcount(thing)
    del view
    told = seen == alone + 1 and sys.getrefcount(thing) == alone
    return alone if told and getattr(sys, "_is_gil_enabled", lambda: True)() else -1


ALONE = _alone()


def held_by(thing: object, holders: int) -> bool:
    """Whether nothing but ``holders`` names and containers of the caller's hold it, this function's own left out.

    Never, where Python's count does not tell.
    """
    return ALONE >= 0 and sys.getrefcount(thing) == ALONE + _PASSED + holders - 1


def _passed() -> int:
    """How many references a call adds while it is under way."""

    def inside(thing: object) -> int:
        return sys.getrefcount(thing)

    thing = bytearray(1)
    return inside(thing) - sys.getrefcount(thing)


_PASSED = _passed()
