"""Requests that wait for partitions: fetches wait for bytes, produce requests for the high watermark.

Partitions notify their waiting requests. A waiting request costs a timer and an entry in each partition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from odradek.core.errors import ErrorCode

if TYPE_CHECKING:
    from odradek.broker.loop.clock import Loop, TimerHandle
    from odradek.broker.partitions.watermark_waits import Wait, WatermarkWaits


class Wake(IntEnum):
    """What ends the wait of a fetch before its time. A fetch awaits one of the first three: new records below the high
    watermark, below the last stable offset, or at the log end, where followers read."""

    HIGH_WATERMARK = 0
    STABLE_OFFSET = 1
    LOG_END = 2
    ROLE_CHANGE = 3
    """This broker does not lead the partition any more, or not as before: it was deleted, or its log has changed."""
    EARLY_END = 4
    """Too many fetches wait, or the broker stops."""


class Queue(Protocol):
    """The method of the scheduler (broker/loop/scheduler) that the purgatory uses."""

    def add(self, runnable: ParkedRequest) -> None: ...


class Waitable(Protocol):
    """A partition, or the metadata log, for waiting fetches. It notifies its ``waiters`` of new readable records, in
    the order in which they began to wait: it calls ``wake`` of each, or ``count_readable``."""

    @property
    def waiters(self) -> dict[ParkedFetch, None]: ...


class Replicated(Protocol):
    """A partition for waiting produce requests."""

    watermark_waits: WatermarkWaits | None

    def wait_for(self, offset: int, end: Callable[[ErrorCode], None]) -> Wait | None:
        """Calls ``end`` with NONE when the high watermark reaches ``offset``, or before that with an error.

        Returns the wait, or None if ``end`` was called already.
        """


class PurgatoryClient(Protocol):
    """A connection with its waiting requests."""

    parked: set[Any]
    parked_partitions: int


MAX_PARTITIONS = 200_000


class Purgatory:
    """All waiting requests. If the fetches have more than ``max_partitions``, the oldest fetch is completed.

    Only the limits of the connections apply to produce requests, because their records are in the log already.
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
        client: PurgatoryClient,
        partitions: Iterable[Waitable],
        missing_bytes: int,
        max_wait_ms: int,
        complete: Callable[[Wake | None], None],
        *,
        awaits: Wake = Wake.HIGH_WATERMARK,
    ) -> ParkedFetch:
        """Calls ``complete(wake)`` in a later tick, when ``missing_bytes`` more are readable or after the timeout.

        ``awaits``: which bytes count. ``wake``: what has happened last; None if nothing has. ``ParkedFetch.wake``
        causes the call earlier. There is no call after ``client`` has disconnected.
        """
        fetch = ParkedFetch(self, client, tuple(partitions), missing_bytes, complete, awaits=awaits)
        fetch.wait(max_wait_ms)
        self._fetches[fetch] = None
        self.partitions += fetch.size
        while self.partitions > self._max_partitions:
            next(iter(self._fetches)).wake()
        return fetch

    def park_produce(
        self,
        client: PurgatoryClient,
        awaited: Sequence[tuple[Replicated, int]],
        timeout_ms: int,
        complete: Callable[[list[ErrorCode]], None],
    ) -> ParkedProduce:
        """Calls ``complete`` in a later tick, when all high watermarks have reached their offsets or after the timeout.

        ``complete`` gets the error code of each partition, NONE for success. There is no call after ``client`` has
        disconnected.
        """
        return ParkedProduce(self, client, awaited, timeout_ms, complete)

    def remove(self, fetch: ParkedFetch) -> None:
        """Removes a fetch that no longer waits."""
        del self._fetches[fetch]
        self.partitions -= fetch.size


class ParkedRequest(ABC):
    """A waiting request of ``size`` partitions. It completes once, in its own share of the event loop."""

    __slots__ = ("_client", "_done", "_purgatory", "_timer", "size")
    _timer: TimerHandle

    def __init__(self, purgatory: Purgatory, client: PurgatoryClient, size: int) -> None:
        self._purgatory = purgatory
        self._client = client
        self._done = False
        self.size = size
        client.parked.add(self)
        client.parked_partitions += size

    @abstractmethod
    def run_share(self, until_s: float) -> bool:
        """Replies, unless the client has disconnected meanwhile."""

    def abandon(self) -> None:
        """Removes the request after its connection has closed. Records that it has appended stay in the log."""
        if not self._done:
            self._leave()
        self._forget()

    def _end(self) -> None:
        """Queues the request for its reply."""
        if not self._done:
            self._leave()
            self._purgatory.queue.add(self)

    def _leave(self) -> None:
        """Ends the wait."""
        self._done = True
        self._timer.cancel()

    def _forget(self) -> None:
        """Removes the request from its client."""
        self._client.parked.discard(self)
        self._client.parked_partitions -= self.size


class ParkedFetch(ParkedRequest):
    """A waiting fetch. All appends of one tick cause one reply.

    If an append completes a thousand fetches, they read in several later ticks, not all in the tick of the append.
    """

    __slots__ = ("_complete", "_last", "_missing", "_partitions", "awaits")

    def __init__(
        self,
        purgatory: Purgatory,
        client: PurgatoryClient,
        partitions: tuple[Waitable, ...],
        missing_bytes: int,
        complete: Callable[[Wake | None], None],
        *,
        awaits: Wake,
    ) -> None:
        super().__init__(purgatory, client, len(partitions))
        self._partitions = partitions
        self._missing = missing_bytes
        self.awaits = awaits
        self._complete = complete
        self._last: Wake | None = None
        for partition in partitions:
            partition.waiters[self] = None

    def wait(self, max_wait_ms: int) -> None:
        """Starts the timer that completes the fetch at the latest."""
        self._timer = self._purgatory.loop.call_later(max_wait_ms / 1000, self._end)

    def count_readable(self, size: int) -> None:
        """Counts ``size`` more bytes of one of the partitions that this fetch may read."""
        self._missing -= size
        self._last = self.awaits
        if self._missing <= 0:
            self._end()

    def wake(self, kind: Wake = Wake.EARLY_END) -> None:
        """Completes the fetch early."""
        self._last = kind
        self._end()

    def run_share(self, until_s: float) -> bool:
        """Reads and replies, unless the client has disconnected meanwhile."""
        if self in self._client.parked:
            self._forget()
            self._complete(self._last)
        return False

    def _leave(self) -> None:
        super()._leave()
        self._purgatory.remove(self)

    def _forget(self) -> None:
        super()._forget()
        for partition in self._partitions:
            partition.waiters.pop(self, None)


class ParkedProduce(ParkedRequest):
    """A produce request that waits for replicas."""

    __slots__ = ("_complete", "_errors", "_open_count", "_waits")

    def __init__(
        self,
        purgatory: Purgatory,
        client: PurgatoryClient,
        awaited: Sequence[tuple[Replicated, int]],
        timeout_ms: int,
        complete: Callable[[list[ErrorCode]], None],
    ) -> None:
        super().__init__(purgatory, client, len(awaited))
        self._complete = complete
        self._errors = [ErrorCode.request_timed_out] * len(awaited)
        self._open_count = len(awaited)
        self._timer = purgatory.loop.call_later(max(timeout_ms, 0) / 1000, self._end)
        self._waits: list[tuple[Replicated, Wait]] = []
        for number, (partition, offset) in enumerate(awaited):
            wait = partition.wait_for(offset, partial(self._take, number))
            if wait is not None:
                self._waits.append((partition, wait))

    def _take(self, number: int, error: ErrorCode) -> None:
        """Stores the result of one partition."""
        self._errors[number] = error
        self._open_count -= 1
        if not self._open_count:
            self._end()

    def wake(self) -> None:
        """Completes the request, because the broker stops. Partitions that still wait get NOT_LEADER_OR_FOLLOWER."""
        lost = {ErrorCode.request_timed_out: ErrorCode.not_leader_or_follower}
        self._errors = [lost.get(error, error) for error in self._errors]
        self._end()

    def run_share(self, until_s: float) -> bool:
        """Replies, unless the client has disconnected meanwhile."""
        if self in self._client.parked:
            self._forget()
            self._complete(self._errors)
        return False

    def _leave(self) -> None:
        super()._leave()
        for partition, wait in self._waits:
            if partition.watermark_waits is not None:
                partition.watermark_waits.discard(wait)
        self._waits = []
