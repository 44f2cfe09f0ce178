"""The timers of all shards of the runtime over one ``call_at``; times are those of the steady clock."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Generator, Hashable
from typing import Protocol

log = logging.getLogger("odradek.broker")

AT_ONCE = 20
"""Timers that fire in the turn in which they are due. Further ones take shares of the loop."""


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Owner(Protocol):
    """What sets timers. ``timers`` holds, by key, the number of each that counts; what cancels one removes it."""

    timers: dict[Hashable, int]

    def on_timer(self, key: Hashable) -> None:
        """A timer is due. It is removed by its owner, when that acts on it: until then it can be cancelled."""


class Timers:
    """A timer set again leaves its old place in the heap behind, which is passed over when it comes up.

    ``start`` runs a generator in shares of the loop.
    """

    def __init__(
        self,
        call_at: Callable[[int, Callable[[], None]], Cancellable],
        steady: Callable[[], int],
        start: Callable[[Generator[None, None, None]], object],
    ) -> None:
        self._call_at = call_at
        self._steady = steady
        self._start = start
        self._heap: list[tuple[int, int, Owner, Hashable]] = []
        self._sequence = 0
        self._armed: Cancellable | None = None
        self._armed_at_ms = 0
        self._is_firing = False  # in shares: when they end, the alarm is set

    def set(self, owner: Owner, key: Hashable, at_ms: int) -> None:
        self._sequence += 1
        owner.timers[key] = self._sequence
        heapq.heappush(self._heap, (at_ms, self._sequence, owner, key))
        self._arm()

    def run_due(self) -> None:
        """Fires what is due by now, in order of time, also what firing makes due: a few at once, the others in shares.

        To be called when the alarm rings, and when the clock was moved.
        """
        self._disarm()  # first: an alarm that has rung must not pass for one that will
        if self._is_firing:
            return
        self._is_firing = True
        for _ in range(AT_ONCE):
            if not self._fire_next():
                self._is_firing = False
                self._arm()
                return
        self._start(self._fire_in_steps())

    def _fire_in_steps(self) -> Generator[None, None, None]:
        while self._fire_next():
            yield
        self._is_firing = False
        self._arm()

    def _fire_next(self) -> bool:
        """Fires the first one, if it is due; whether it was."""
        if not self._heap or self._heap[0][0] > self._steady():
            return False
        _, sequence, owner, key = heapq.heappop(self._heap)
        if owner.timers.get(key) == sequence:
            try:
                owner.on_timer(key)
            except Exception:  # the others have to fire all the same
                log.exception("a timer failed")
        return True

    def _disarm(self) -> None:
        if self._armed is not None:
            self._armed.cancel()
            self._armed = None

    def _arm(self) -> None:
        if not self._heap or self._is_firing:
            return
        at_ms = self._heap[0][0]
        if self._armed is not None:
            if self._armed_at_ms <= at_ms:
                return
            self._armed.cancel()
        self._armed_at_ms = at_ms
        self._armed = self._call_at(at_ms, self.run_due)
