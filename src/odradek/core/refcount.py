"""Whether other code holds an object, by its reference count. Memory that no code holds can be used again."""

from __future__ import annotations

import sys


def _count(thing: object) -> int:
    return sys.getrefcount(thing)


def _alone() -> int:
    """The count, taken in a call as ``held_by`` does, of what one local name holds: versions of Python differ.

    -1 where it does not tell.
    """
    thing = bytearray(1)
    alone = _count(thing)
    view = memoryview(thing)
    seen = _count(thing)
    del view
    told = seen == alone + 1 and _count(thing) == alone
    return alone if told and getattr(sys, "_is_gil_enabled", lambda: True)() else -1


ALONE = _alone()


def held_by(thing: object, holders: int) -> bool:
    """Whether nothing but ``holders`` names and containers of the caller's hold it.

    Never, where Python's count does not tell.
    """
    return ALONE >= 0 and sys.getrefcount(thing) == ALONE + holders - 1
