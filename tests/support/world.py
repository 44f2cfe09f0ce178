"""A simulated world: one clock, its alarms, one random generator. All events follow from the seed.

The harnesses of the unit tests and the simulator run the real runtime of the coordinators in this world
(``Process.environment``), on real logs in memory (``support.world_log``). Times are in ms of the world's steady clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from odradek.coordinator_runtime.loader import LOAD_STEPS, LoadSteps
from odradek.coordinator_runtime.runtime import Environment

START_MS = 1_700_000_000_000
TRACE_LINES = 4_000


class SimulationFailure(AssertionError):
    """An invariant is violated. ``about`` has the names of the affected group, members and partitions."""

    def __init__(self, text: str, *about: str) -> None:
        super().__init__(text)
        self.about = about


class Alarm:
    """A callback at a given time, until it is cancelled or its process is killed."""

    __slots__ = ("_process", "callback")

    def __init__(self, callback: Callable[[], None], process: Process | None = None) -> None:
        self.callback: Callable[[], None] | None = callback
        self._process = process

    def cancel(self) -> None:
        self.callback = None

    def holds(self) -> bool:
        """Whether the callback waits, because its process is halted."""
        process = self._process
        if process is None or not process.is_halted:
            return False
        process.held.append(self)
        return True

    @property
    def is_set(self) -> bool:
        return self.callback is not None and (self._process is None or self._process.is_alive)


class World:
    """``at`` and ``after`` schedule callbacks; ``run_until`` and ``advance`` let time pass; ``settle`` and ``step`` run
    due callbacks without letting time pass. ``rng`` is the only source of randomness."""

    def __init__(self, seed: int = 0, events_at_most: int = sys.maxsize) -> None:
        self.seed = seed
        self._events_at_most = events_at_most
        self.rng = random.Random(seed)
        self.now_ms = START_MS
        self.jumped_ms = 0
        """The difference of the system time from the steady clock."""
        self.events = 0
        self.checks: list[Callable[[], None]] = []
        """Called after every event."""
        self.remains: list[object] = []
        """What killed processes leave: it must not be freed, because that would run their code."""
        self._heap: list[tuple[int, int, Alarm]] = []
        self._numbers = itertools.count()
        self._trace: deque[tuple[int, str, str, tuple[Any, ...]]] = deque(maxlen=TRACE_LINES)

    # --- time -------------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """The system time."""
        return self.now_ms + self.jumped_ms

    def steady(self) -> int:
        return self.now_ms

    def at(self, at_ms: int, callback: Callable[[], None], process: Process | None = None) -> Alarm:
        alarm = Alarm(callback, process)
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), next(self._numbers), alarm))
        return alarm

    def again(self, alarm: Alarm) -> None:
        """Calls an alarm that has become due at the present time."""
        heapq.heappush(self._heap, (self.now_ms, next(self._numbers), alarm))

    def after(self, by_ms: int, callback: Callable[[], None]) -> Alarm:
        return self.at(self.now_ms + by_ms, callback)

    def run_until(self, end_ms: int) -> None:
        """Runs all callbacks that become due until this time, in order."""
        heap = self._heap
        while heap and heap[0][0] <= end_ms:
            self._run(*heapq.heappop(heap))
        self.now_ms = max(self.now_ms, end_ms)

    def advance(self, by_ms: int) -> None:
        self.run_until(self.now_ms + by_ms)

    def settle(self) -> None:
        """Runs all callbacks that are due now."""
        self.run_until(self.now_ms)

    def due(self) -> list[Callable[[], None]]:
        """The callbacks that are due now, in order."""
        return [
            alarm.callback
            for at_ms, _, alarm in sorted(self._heap)
            if at_ms <= self.now_ms and alarm.callback is not None and alarm.is_set
        ]

    @property
    def is_due(self) -> bool:
        """Whether a callback is due now."""
        heap = self._heap
        while heap and not heap[0][2].is_set:
            heapq.heappop(heap)
        return bool(heap) and heap[0][0] <= self.now_ms

    def step(self) -> bool:
        """Runs the next callback that is due now. Returns whether there was one."""
        if not self.is_due:
            return False
        self._run(*heapq.heappop(self._heap))
        return True

    def _run(self, at_ms: int, number: int, alarm: Alarm) -> None:
        if alarm.callback is None or not alarm.is_set:
            return
        if alarm.holds():
            return
        self.now_ms = max(self.now_ms, at_ms)
        self.events += 1
        if self.events > self._events_at_most:
            raise SimulationFailure(f"more than {self._events_at_most} events: probably an endless loop")
        alarm.callback()
        for check in self.checks:
            check()

    # --- chance -----------------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def between(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    # --- the trace --------------------------------------------------------------------------------------------

    def note(self, who: str, what: str, *values: Any) -> None:
        """Records an event; ``what`` is formatted with ``values`` when the trace is read."""
        self._trace.append((self.now_ms, who, what, values))

    def trace(self, about: tuple[str, ...] = (), last: int = 60) -> list[str]:
        """Returns the last events. With ``about``: only events that mention one of these names, or that concern all."""
        lines = []
        for at_ms, who, what, values in self._trace:
            line = f"{(at_ms - START_MS) / 1000:10.3f}  {who:<14} {what.format(*values)}"
            if not about or who in ("world", "broker", "log", "topics") or any(name in line for name in about):
                lines.append(line)
        return lines[-last:] if last else lines


class Process:
    """Code that runs in the world until it is killed: then none of its callbacks is called any more."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_alive = True
        self.is_halted = False
        self.held: list[Alarm] = []

    def kill(self) -> None:
        self.is_alive = False

    def halt(self) -> None:
        """Halts the process, as SIGSTOP does: what becomes due waits, in order, until ``resume``."""
        self.is_halted = True

    def resume(self) -> None:
        self.is_halted = False
        held, self.held = self.held, []
        for alarm in held:
            self.world.again(alarm)

    def call_soon(self, callback: Callable[[], None]) -> Alarm:
        return self.world.at(self.world.now_ms, callback, self)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> Alarm:
        """``at_ms`` is a system time."""
        return self.world.at(at_ms - self.world.jumped_ms, callback, self)

    def environment(self, load_steps: LoadSteps = LOAD_STEPS) -> Environment:
        """The environment for a runtime of coordinators.

        Its ``share_clock`` stands still: one share has no end, so a load ends in the call that starts it, unless it has
        to wait. With ``LoadSteps(0)`` each share is one step.
        """
        return Environment(
            self.call_soon,
            self.call_at,
            self.world.clock,
            self.world.steady,
            share_clock=lambda: 0.0,
            load_steps=load_steps,
        )
