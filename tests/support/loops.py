"""An event loop for tests whose time a test moves."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any


class Loop:
    """An event loop whose time in seconds passes only in ``run``."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[list[Any]] = []
        self._order = itertools.count()

    def call_soon(self, callback: Callable[[], object]) -> Any:
        return self.call_later(0, callback)

    def call_later(self, delay: float, callback: Callable[[], object]) -> Any:
        entry = [self.now + delay, next(self._order), callback]
        heapq.heappush(self._due, entry)

        class Handle:
            def cancel(self) -> None:
                entry[2] = None

        return Handle()

    def run(self, seconds: float = 0.0) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            at, _, callback = heapq.heappop(self._due)
            self.now = max(self.now, at)
            if callback is not None:
                callback()
        self.now = end

    @property
    def waiting(self) -> int:
        return sum(1 for entry in self._due if entry[2] is not None)
