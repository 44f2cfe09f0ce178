"""The broker's clock: the system time plus a lead that tests and users can increase.

The clock has two readings. ``now_ms`` is the calendar time for records, commits and retention. It jumps when the system
time is set and when the machine wakes up. ``steady_ms`` only advances while the machine is awake. Alarms use it, so a
correction of the system time expires no session. Both readings start with the same value, and ``advance`` moves both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

_LONGEST_WAIT_S = 86_400.0


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """The method of an event loop that timers use."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


class Clock:
    """Milliseconds since 1970, plus a lead that only grows."""

    def __init__(self) -> None:
        self._offset_ms = 0
        self._begun_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self.on_moved: list[Callable[[], None]] = []

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self._offset_ms

    def steady_ms(self) -> int:
        """Returns ms that start at ``now_ms`` and ignore changes of the system time and sleep of the machine."""
        return time.monotonic_ns() // 1_000_000 + self._begun_ms + self._offset_ms

    @property
    def skew_ms(self) -> int:
        """The difference ``now_ms`` - ``steady_ms`` in ms."""
        return self.now_ms() - self.steady_ms()

    def advance(self, by_ms: int) -> None:
        """Moves the clock forward and calls ``on_moved``. Raises ValueError if ``by_ms`` is negative."""
        if by_ms < 0:
            raise ValueError(f"the broker's clock cannot go back (by {-by_ms} ms)")
        self._offset_ms += by_ms
        for notify in self.on_moved:
            notify()


class Alarm:
    """A callback at a time of the clock's ``steady_ms``."""

    __slots__ = ("_callback", "_is_cancelled", "_timer", "_timers", "at_ms")

    def __init__(self, timers: Alarms, at_ms: int, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.at_ms = at_ms
        self._callback = callback
        self._timer: TimerHandle | None = None
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
        """Calls the callback, unless the alarm was cancelled after its timer fired."""
        if not self._is_cancelled:
            self._callback()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._timers.pending.discard(self)
        if self._timer is not None:
            self._timer.cancel()


class Alarms:
    """Alarms of a clock that can be moved, on an event loop that has its own clock."""

    def __init__(
        self, loop: Loop, clock: Clock, run: Callable[[Callable[[], None]], None] = lambda callback: callback()
    ) -> None:
        """``run`` gets each due callback and calls it at once or later."""
        self.loop = loop
        self.clock = clock
        self.run = run
        self.pending: set[Alarm] = set()
        clock.on_moved.append(self._rearm)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """Calls ``callback`` after the time that is left now from ``now_ms`` to ``at_ms``.

        Later changes of the system time do not move the alarm.
        """
        alarm = Alarm(self, at_ms - self.clock.skew_ms, callback)
        self.pending.add(alarm)
        return alarm

    @property
    def due(self) -> bool:
        """Whether a pending alarm has reached its time."""
        steady_ms = self.clock.steady_ms()
        return any(alarm.at_ms <= steady_ms for alarm in self.pending)

    def _rearm(self) -> None:
        for alarm in tuple(self.pending):
            alarm.arm()

    def cancel_all(self) -> None:
        for alarm in tuple(self.pending):
            alarm.cancel()
