"""How late the event loop runs a timer: what it does takes that long, and every request waits meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque

EVERY_S = 0.5
KEPT = 120
"""The samples of a minute."""


class LoopLag:
    """``begin`` starts the samples. ``seconds`` and ``samples``: of all; ``longest``: of the last minute."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.seconds = 0.0
        self.samples = 0
        self._loop = loop
        self._last: deque[float] = deque(maxlen=KEPT)
        self._timer: asyncio.TimerHandle | None = None

    @property
    def longest(self) -> float:
        return max(self._last, default=0.0)

    def begin(self) -> None:
        self._timer = self._loop.call_later(EVERY_S, self._note, self._loop.time() + EVERY_S)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, due_s: float) -> None:
        late_s = max(self._loop.time() - due_s, 0.0)
        self.samples += 1
        self.seconds += late_s
        self._last.append(late_s)
        self.begin()
