"""The requests that wait until a partition's high watermark reaches an offset."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from odradek.core.errors import ErrorCode


class Wait(NamedTuple):
    """A waiting request. ``end`` is called once: with NONE when the offset is reached, or before that with an error."""

    offset: int
    number: int
    end: Callable[[ErrorCode], None]


class WatermarkWaits:
    """The waits for one partition by offset. Waits for the same offset are in the order of ``add``."""

    __slots__ = ("_numbers", "_waits")

    def __init__(self) -> None:
        self._waits: list[Wait] = []
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, offset: int, end: Callable[[ErrorCode], None]) -> Wait:
        wait = Wait(offset, next(self._numbers), end)
        insort(self._waits, wait)  # at the end, except for a batch that a producer sends again
        return wait

    def discard(self, wait: Wait) -> None:
        """Removes a wait, unless it has ended."""
        at = bisect_left(self._waits, wait)
        if at < len(self._waits) and self._waits[at] is wait:
            del self._waits[at]

    def pass_offset(self, high_watermark: int, result: ErrorCode = ErrorCode.none) -> None:
        """Ends the waits for this offset and earlier ones with ``result``."""
        reached = bisect_left(self._waits, (high_watermark + 1,))
        ended, self._waits = self._waits[:reached], self._waits[reached:]
        for wait in ended:
            wait.end(result)

    def end_all(self, error: ErrorCode) -> None:
        ended, self._waits = self._waits, []
        for wait in ended:
            wait.end(error)
