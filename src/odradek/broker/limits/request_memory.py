"""The memory for large requests: a limit for all connections together (``queued.max.request.bytes``).

The received bytes of a request count, and the bytes of a complete request that is served in steps. Above the limit,
connections that receive a large request stop reading. The first one that had to wait continues to read, so one request
may exceed the limit. It stops too while the complete requests alone exceed the limit: they wait for their share of the
elements (broker/limits/request_elements), and need no more bytes to end.

While connections wait, a connection that may read is closed if its request has not grown for ``STALL_S``: a client that
sends half of a request must not block the requests of others.

Requests up to ``SMALL_REQUEST_BYTES`` do not count, so heartbeats and commits are never blocked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from odradek.broker.loop.clock import TimerHandle

log = logging.getLogger("odradek.broker")

SMALL_REQUEST_BYTES = 64 << 10
STALL_S = 10.0


class Receiver(Protocol):
    """The receipt of requests by a connection."""

    client_host: str

    def receive_more(self) -> None:
        """Continues to read."""

    def abort(self) -> None:
        """Closes the connection at once."""


class _HeldRequest:
    __slots__ = ("grew_s", "size")

    def __init__(self, size: int, now_s: float) -> None:
        self.size = size
        self.grew_s = now_s


class RequestMemory:
    """The bytes of the large requests of all connections: about ``limit`` for incomplete ones and for complete ones.

    A ``limit`` of 0 or less means no limit.
    """

    def __init__(
        self,
        limit: int,
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
        clock: Callable[[], float],
        on_freed: Callable[[int], None] = lambda size: None,
    ) -> None:
        """``on_freed`` gets the size of each request that no longer counts."""
        self._on_freed = on_freed
        self._limit = limit
        self._call_later = call_later
        self._clock = clock
        self._held: dict[Receiver, _HeldRequest] = {}
        self._waiting: dict[Receiver, None] = {}  # in the order in which they had to wait
        self._used = 0
        self._complete = 0
        self._timer: TimerHandle | None = None

    @property
    def used(self) -> int:
        """The bytes of all incomplete large requests."""
        return self._used

    @property
    def complete(self) -> int:
        """The bytes of all complete requests that are served in steps."""
        return self._complete

    @property
    def _is_blocked(self) -> bool:
        """Whether no connection may receive a large request."""
        return self._complete > self._limit > 0

    def begin(self, size: int) -> None:
        """Counts a complete request until ``end``."""
        self._complete += size

    def end(self, size: int) -> None:
        """Removes a complete request. Its connection may have closed."""
        was_blocked = self._is_blocked
        self._complete -= size
        self._wake(one=was_blocked and not self._is_blocked)

    def update(self, receiver: Receiver, size: int) -> bool:
        """Sets the received bytes of a connection's incomplete request. Returns whether the connection may read on."""
        if size <= SMALL_REQUEST_BYTES:
            self.release(receiver)
            return True
        held = self._held.get(receiver)
        if held is None:
            held = self._held[receiver] = _HeldRequest(0, 0.0)
        self._used += size - held.size
        held.size, held.grew_s = size, self._clock()
        if self._limit <= 0 or self._used + self._complete <= self._limit:
            return True
        self._waiting.setdefault(receiver)
        self._watch()
        return next(iter(self._waiting)) is receiver and not self._is_blocked

    def release(self, receiver: Receiver) -> None:
        """Removes a complete request or a closed connection."""
        held = self._held.pop(receiver, None)
        if held is None:
            return
        self._used -= held.size
        self._on_freed(held.size)
        was_first = bool(self._waiting) and next(iter(self._waiting)) is receiver
        self._waiting.pop(receiver, None)
        self._wake(one=was_first and not self._is_blocked)

    def _wake(self, *, one: bool) -> None:
        """Lets all connections read if there is room for all, else the first one if ``one``."""
        if not self._waiting:
            return
        if self._used + self._complete <= self._limit:
            waiting, self._waiting = self._waiting, {}
            for other in waiting:
                other.receive_more()
        elif one:
            first = next(iter(self._waiting))
            self._held[first].grew_s = self._clock()
            first.receive_more()

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = self._call_later(STALL_S, self._close_stalled)

    def _close_stalled(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        first = next(iter(self._waiting))
        if self._is_blocked:  # the first one waits for the broker, not for its client
            self._held[first].grew_s = self._clock()
        before_s = self._clock() - STALL_S
        stalled = [
            receiver
            for receiver, held in self._held.items()
            if held.grew_s <= before_s and (receiver is first or receiver not in self._waiting)
        ]
        for receiver in stalled:
            log.info(
                "closing the connection from %s: %d bytes of a request have waited %.0f s for the rest of it, "
                "and the memory for requests is used up (queued.max.request.bytes=%d)",
                receiver.client_host, self._held[receiver].size, STALL_S, self._limit,
            )  # fmt: skip
            self.release(receiver)
            receiver.abort()
        if self._waiting:
            self._watch()
