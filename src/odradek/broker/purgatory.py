"""Fetches that wait for bytes: nothing polls, an idle one costs a timer and an entry per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """What is needed of an event loop."""

    def call_soon(self, callback: Callable[[], None]) -> object: ...

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


class Waitable(Protocol):
    """A partition as the purgatory sees it: it tells its ``waiters`` of bytes that became readable."""

    waiters: set[ParkedFetch]


class ParkedFetch:
    """One waiting fetch. Completes once: when enough bytes arrived, or when its time is up.

    ``complete(changed)`` is told whether anything has changed at all: else what was read before still holds.
    """

    __slots__ = ("_changed", "_complete", "_done", "_missing", "_partitions", "_scheduler", "_timer")

    def __init__(
        self,
        scheduler: Scheduler,
        partitions: Iterable[Waitable],
        missing_bytes: int,
        max_wait_ms: int,
        complete: Callable[[bool], None],
    ) -> None:
        self._scheduler = scheduler
        self._partitions = tuple(partitions)
        self._missing = missing_bytes
        self._complete = complete
        self._done = self._changed = False
        for partition in self._partitions:
            partition.waiters.add(self)
        self._timer = scheduler.call_later(max_wait_ms / 1000, self._end)

    def arrived(self, size: int) -> None:
        """``size`` more bytes can be read from one of its partitions."""
        self._missing -= size
        self._changed = True
        if self._missing <= 0:
            self.wake()

    def wake(self) -> None:
        """Completes it whatever is there: a partition changed hands or is gone.

        The reading itself comes in the loop's next round, so that appends of this round share one reply.
        """
        self._changed = True
        self._end()

    def _end(self) -> None:
        """Enough has come, or the time is up."""
        if not self._done:
            self._leave()
            self._scheduler.call_soon(self._tell)

    def _tell(self) -> None:
        self._complete(self._changed)

    def abandon(self) -> None:
        """The connection has gone: forgets the fetch."""
        if not self._done:
            self._leave()

    def _leave(self) -> None:
        self._done = True
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.discard(self)
