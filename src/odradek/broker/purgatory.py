"""Fetches that wait for bytes: nothing polls, an idle one costs a timer and an entry per partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


class Queue(Protocol):
    """What is needed of broker/scheduler."""

    def add(self, runnable: ParkedFetch) -> None: ...


class Waitable(Protocol):
    """A partition as the purgatory sees it: it notifies its ``waiters`` of bytes that became readable."""

    @property
    def waiters(self) -> set[ParkedFetch]: ...


class Client(Protocol):
    """A connection as the purgatory sees it."""

    parked: set[Any]
    parked_partitions: int


MAX_PARTITIONS = 200_000


class Purgatory:
    """All fetches that wait. Beyond ``max_partitions`` in all of them, the one that waits longest is answered."""

    def __init__(self, loop: Loop, queue: Queue, max_partitions: int = MAX_PARTITIONS) -> None:
        self.loop = loop
        self.queue = queue
        self.partitions = 0
        self._max_partitions = max_partitions
        self._fetches: dict[ParkedFetch, None] = {}

    def __len__(self) -> int:
        return len(self._fetches)

    def park(
        self,
        client: Client,
        partitions: Iterable[Waitable],
        missing_bytes: int,
        max_wait_ms: int,
        complete: Callable[[bool], None],
    ) -> ParkedFetch:
        """Calls ``complete(changed)`` in a later turn: when ``missing_bytes`` more can be read, or the time is up.

        ``changed`` says whether a partition has changed meanwhile. It is not called after ``client`` is gone.
        """
        fetch = ParkedFetch(self, client, tuple(partitions), missing_bytes, complete)
        fetch.wait(max_wait_ms)
        self._fetches[fetch] = None
        self.partitions += fetch.size
        while self.partitions > self._max_partitions:
            next(iter(self._fetches)).wake()
        return fetch

    def left(self, fetch: ParkedFetch) -> None:
        """The fetch waits no more."""
        del self._fetches[fetch]
        self.partitions -= fetch.size


class ParkedFetch:
    """One fetch that waits. It completes once, in a share of the loop of its own, so that appends of one turn share
    one reply, and so that one append that wakes a thousand fetches does not read for all of them in one turn.
    """

    __slots__ = ("_changed", "_client", "_complete", "_done", "_missing", "_partitions", "_purgatory", "_timer", "size")

    def __init__(
        self,
        purgatory: Purgatory,
        client: Client,
        partitions: tuple[Waitable, ...],
        missing_bytes: int,
        complete: Callable[[bool], None],
    ) -> None:
        self._purgatory = purgatory
        self._client = client
        self._partitions = partitions
        self._missing = missing_bytes
        self._complete = complete
        self._done = self._changed = False
        self.size = len(self._partitions)
        client.parked.add(self)
        client.parked_partitions += self.size
        for partition in partitions:
            partition.waiters.add(self)

    def wait(self, max_wait_ms: int) -> None:
        """Sets the time at which it completes at the latest."""
        self._timer = self._purgatory.loop.call_later(max_wait_ms / 1000, self._end)

    def arrived(self, size: int) -> None:
        """``size`` more bytes can be read from one of its partitions."""
        self._missing -= size
        self._changed = True
        if self._missing <= 0:
            self._end()

    def wake(self) -> None:
        """Completes it with what is there: a partition changed hands, is gone, or memory runs low."""
        self._changed = True
        self._end()

    def run_share(self, until_s: float) -> bool:
        """Reads and replies, unless the client has gone meanwhile."""
        if self in self._client.parked:
            self._forget()
            self._complete(self._changed)
        return False

    def abandon(self) -> None:
        """The connection has gone: forgets the fetch."""
        if not self._done:
            self._leave()
        self._forget()

    def _end(self) -> None:
        """Enough has come, or the time is up."""
        if not self._done:
            self._leave()
            self._purgatory.queue.add(self)

    def _leave(self) -> None:
        self._done = True
        self._timer.cancel()
        self._purgatory.left(self)

    def _forget(self) -> None:
        self._client.parked.discard(self)
        self._client.parked_partitions -= self.size
        for partition in self._partitions:
            partition.waiters.discard(self)
