"""The broker's time: the system's, moved by as much as a test or its user likes.

Two readings of it. ``now_ms`` is the calendar's: what records, commits and retention go by. It jumps when the system's
time is set, and when the machine wakes up. ``steady_ms`` only counts what passes while the machine is awake: what
alarms go by, so that no session ends because somebody corrected the time. Both begin equal, and ``advance`` moves both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_LONGEST_WAIT_S = 86_400.0


class LoopTimer(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    def call_later(self, delay: float, callback: Callable[[], None]) -> LoopTimer: ...


class Clock:
    """Milliseconds since 1970, plus an offset that only grows."""

    def __init__(self) -> None:
        self._offset_ms = 0
        self._begun_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self.on_moved: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def steady_ms(self) -> int:
        """As ``now_ms`` if the system's time had not been set, nor the machine been asleep, since this was made."""
        return time.monotonic_ns() // 1_000_000 + self._begun_ms + self._offset_ms

    @property
    def skew_ms(self) -> int:
        """How far ``now_ms`` is ahead of ``steady_ms``."""
        return self.now_ms() - self.steady_ms()

    def advance(self, by_ms: int) -> None:
        """Moves the clock forward and tells those who set it alarms. Raises ValueError for going back."""
        if by_ms < 0:
            raise ValueError(f"a clock that goes back by {-by_ms} ms breaks what was promised")
        self._offset_ms += by_ms
        for told in self.on_moved:
            told()


class Alarm:
    """A callback due at a time of the clock, in its ``steady_ms``; ``cancel`` forgets it."""

    __slots__ = ("_callback", "_is_cancelled", "_timer", "_timers", "at_ms")

    def __init__(self, timers: Alarms, at_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.at_ms = at_ms
        self._callback = callback
        self._timer: LoopTimer | None = None
        self._is_cancelled = False
        self.arm()

    def arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        left_s = (self.at_ms - self._timers.clock.steady_ms()) / 1000
        self._timer = self._timers.loop.call_later(min(max(left_s, 0.0), _LONGEST_WAIT_S), self._fire)

    def _fire(self) -> None:
        if self._timers.clock.steady_ms() < self.at_ms:
            self.arm()
            return
        self._timers.pending.discard(self)
        self._timers.run(self.ring)

    def ring(self) -> None:
        """Calls back, unless it was cancelled since it went off."""
        if not self._is_cancelled:
            self._callback()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._timers.pending.discard(self)
        if self._timer is not None:
            self._timer.cancel()


class Alarms:
    """Callbacks at times of a clock that can be moved, on an event loop that knows only its own."""

    def __init__(
        self, loop: Loop, clock: Clock, run: Callable[[Callable[[], None]], None] = lambda callback: callback()
    ) -> None:
        """``run`` gets what is due: it may run it at once or later."""
        self.loop = loop
        self.clock = clock
        self.run = run
        self.pending: set[Alarm] = set()
        clock.on_moved.append(self._rearm)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Calls back when as much time has passed as there is now from ``now_ms`` to ``at_ms``."""
        alarm = Alarm(self, at_ms - self.clock.skew_ms, callback)
        self.pending.add(alarm)
        return alarm

    @property
    def due(self) -> bool:
        """Whether an alarm's time has come that has not gone off yet."""
        steady_ms = self.clock.steady_ms()
        return any(alarm.at_ms <= steady_ms for alarm in self.pending)

    def _rearm(self) -> None:
        for alarm in tuple(self.pending):
            alarm.arm()

    def cancel_all(self) -> None:
        for alarm in tuple(self.pending):
            alarm.cancel()
