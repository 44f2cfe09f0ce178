"""Requests that wait for partitions: fetches for bytes, producers for the high watermark.

Nothing polls: an idle one costs a timer and an entry per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.watermark_waits import Wait, WatermarkWaits


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Loop(Protocol):
    """What is needed of an event loop."""

    def call_later(self, delay: float, callback: Callable[[], None]) -> TimerHandle: ...


class Queue(Protocol):
    """What is needed of broker/scheduler."""

    def add(self, runnable: ParkedFetch | ParkedProduce) -> None: ...


class Waitable(Protocol):
    """A partition as the purgatory sees it: it notifies its ``waiters`` of bytes that became readable."""

    @property
    def waiters(self) -> set[ParkedFetch]: ...


class Replicated(Protocol):
    """A partition as a producer sees it that waits for its replicas."""

    watermark_waits: WatermarkWaits | None

    def wait_for(self, offset: int, end: Callable[[ErrorCode], None]) -> Wait | None:
        """Calls ``end`` when the high watermark has reached ``offset``, or with the error that prevents it.

        ``None``: it has been called already.
        """


class Client(Protocol):
    """A connection as the purgatory sees it."""

    parked: set[Any]
    parked_partitions: int


MAX_PARTITIONS = 200_000


class Purgatory:
    """All requests that wait. Beyond ``max_partitions`` in all fetches, the one that waits longest is answered.

    Producers are bounded by what one connection may have waiting, since what they wait for is in the log already.
    """

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

    def park_produce(
        self,
        client: Client,
        awaited: Sequence[tuple[Replicated, int]],
        timeout_ms: int,
        complete: Callable[[list[ErrorCode]], None],
    ) -> ParkedProduce:
        """Calls ``complete`` in a later turn: when each partition's high watermark has reached its offset, or the time
        is up. It gets an error for each, NONE where all went well. It is not called after ``client`` is gone.
        """
        return ParkedProduce(self, client, awaited, timeout_ms, complete)

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


class ParkedProduce:
    """One request of a producer that waits for replicas. It completes once, in a share of the loop of its own."""

    __slots__ = ("_client", "_complete", "_done", "_errors", "_left", "_purgatory", "_timer", "_waits", "size")

    def __init__(
        self,
        purgatory: Purgatory,
        client: Client,
        awaited: Sequence[tuple[Replicated, int]],
        timeout_ms: int,
        complete: Callable[[list[ErrorCode]], None],
    ) -> None:
        self._purgatory = purgatory
        self._client = client
        self._complete = complete
        self._errors = [ErrorCode.request_timed_out] * len(awaited)
        self._done = False
        self.size = self._left = len(awaited)
        client.parked.add(self)
        client.parked_partitions += self.size
        self._timer = purgatory.loop.call_later(max(timeout_ms, 0) / 1000, self._end)
        self._waits: list[tuple[Replicated, Wait]] = []
        for number, (partition, offset) in enumerate(awaited):
            wait = partition.wait_for(offset, partial(self._take, number))
            if wait is not None:
                self._waits.append((partition, wait))

    def _take(self, number: int, error: ErrorCode) -> None:
        """One partition's replicas have the records, or never will."""
        self._errors[number] = error
        self._left -= 1
        if not self._left:
            self._end()

    def wake(self) -> None:
        """Completes it: the broker stops, and leads nothing then."""
        lost = {ErrorCode.request_timed_out: ErrorCode.not_leader_or_follower}
        self._errors = [lost.get(error, error) for error in self._errors]
        self._end()

    def run_share(self, until_s: float) -> bool:
        """Replies, unless the client has gone meanwhile."""
        if self in self._client.parked:
            self._forget()
            self._complete(self._errors)
        return False

    def abandon(self) -> None:
        """The connection has gone: forgets the request. Its records stay in the log."""
        if not self._done:
            self._leave()
        self._forget()

    def _end(self) -> None:
        if not self._done:
            self._leave()
            self._purgatory.queue.add(self)

    def _leave(self) -> None:
        self._done = True
        self._timer.cancel()
        for partition, wait in self._waits:
            if partition.watermark_waits is not None:
                partition.watermark_waits.discard(wait)
        self._waits = []

    def _forget(self) -> None:
        self._client.parked.discard(self)
        self._client.parked_partitions -= self.size
