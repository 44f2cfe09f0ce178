"""Timers of all shards of the runtime on one ``call_at``. Times are those of the steady clock."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Generator, Hashable
from typing import Protocol

log = logging.getLogger("odradek.broker")

AT_ONCE = 20
"""The number of timers that fire at once. If more are due, the others fire in shares of the loop."""


class Cancellable(Protocol):
    def cancel(self) -> object: ...


class Owner(Protocol):
    """An object with timers. ``timers`` maps each key to the number of its valid timer. A cancel removes the key."""

    timers: dict[Hashable, int]

    def on_timer(self, key: Hashable) -> None:
        """Handles a timer that is due. The owner removes the key when it acts; until then a cancel is possible."""


class Timers:
    """A heap of timers. The old entry of a timer that is set again stays in the heap and is skipped when it is due.

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
        self._is_firing = False  # while this is True, no alarm is set; the end of the firing sets one

    def __len__(self) -> int:
        """Returns the number of entries, with those of timers that were cancelled or set again."""
        return len(self._heap)

    def set(self, owner: Owner, key: Hashable, at_ms: int) -> None:
        self._sequence += 1
        owner.timers[key] = self._sequence
        heapq.heappush(self._heap, (at_ms, self._sequence, owner, key))
        self._arm()

    def run_due(self) -> None:
        """Fires all due timers in order of time, also those that become due meanwhile.

        The first ``AT_ONCE`` fire at once, the others in shares of the loop. Called when the alarm
        rings and when the clock was moved.
        """
        self._disarm()  # first, because ``_arm`` would keep the alarm that has rung
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
        """Fires the first timer if it is due, and returns whether it was."""
        if not self._heap or self._heap[0][0] > self._steady():
            return False
        _, sequence, owner, key = heapq.heappop(self._heap)
        if owner.timers.get(key) == sequence:
            try:
                owner.on_timer(key)
            except Exception:  # a failure of one timer must not stop the others
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
