"""A world with one clock and one source of chance: what happens in it follows from its seed alone.

Nothing in here knows of Kafka. Times are in ms of the world's steady clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

START_MS = 1_700_000_000_000
TRACE_LINES = 4_000
EVENTS_AT_MOST = 60_000
"""Many times what a seed has: more is a loop that does not end."""


class SimulationFailure(AssertionError):
    """Something that must hold did not. ``about`` names what it is about: a group, a member, a partition."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text)
        self.about = about


class Alarm:
    """A callback that is due at some time, until it is cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class World:
    """``at`` and ``after`` make things happen; ``run_until`` lets them. ``rng`` is the only chance there is."""

    def __init__(self, seed: int, events_at_most: int = EVENTS_AT_MOST) -> None:
        self.seed = seed
        self._events_at_most = events_at_most
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.jumped_ms = 0
        """By how much the calendar's time was set off from the steady clock."""
        self.events = 0
        self.checks: list[Callable[[], None]] = []
        """Called after every event."""
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = itertools.count()
        self._trace: deque[tuple[int, str, str, tuple[Any, ...]]] = deque(maxlen=TRACE_LINES)

    # --- time -------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        return self.now_ms + self.jumped_ms

    def steady(self) -> int:
        return self.now_ms

    def at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        alarm = Alarm(callback)
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._numbers), alarm))
        return alarm

    def after(self, by_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.at(self.now_ms + by_ms, callback)

    def run_until(self, end_ms: int) -> None:
        """Lets everything happen that is due until then, in order."""
        heap, checks = self._heap, self.checks
        while heap and heap[0][0] <= end_ms:
            at_ms, _, alarm = heapq.heappop(heap)
            if alarm.callback is None:
                continue
            self.now_ms = at_ms
            self.events += 1
            if self.events > self._events_at_most:
                raise SimulationFailure(f"more than {self._events_at_most} events: somebody goes round in circles")
            alarm.callback()
            for check in checks:
                check()
        self.now_ms = max(self.now_ms, end_ms)

    # --- chance -----------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    # --- what happened ----------------------------------------------------------------------------------------

    def note(self, who: str, what: str, *values: Any) -> None:
        """Remembers a step; ``what`` is formatted with ``values`` when somebody reads it."""
        self._trace.append((self.now_ms, who, what, values))

    def trace(self, about: tuple[str, ...] = (), last: int = 60) -> list[str]:
        """The last steps; with ``about`` only those that mention one of these, and what befell everybody."""
        lines = []
        for at_ms, who, what, values in self._trace:
            line = f"{(at_ms - START_MS) / 1000:10.3f}  {who:<14} {what.format(*values)}"
            if not about or who in ("world", "broker", "log", "topics") or any(name in line for name in about):
                lines.append(line)
        return lines[-last:] if last else lines
