"""At most one request in flight, of a state machine that asks another node: when to send the next one.

Times in milliseconds of the node's own clock.
"""

from __future__ import annotations

_MOST_DOUBLINGS = 20


class RequestInFlight:
    """``number``: that of the newest request; a reply belongs to it only if it names this number. ``due_ms``: when the
    next request is due. ``failures``: how many requests in a row had no reply that counts."""

    def __init__(self, now_ms: int, timeout_ms: int, first_retry_ms: int, last_retry_ms: int) -> None:
        self.number = 0
        self.due_ms = now_ms
        self.sent_ms: int | None = None
        self.failures = 0
        self._timeout_ms = timeout_ms
        self._first_retry_ms, self._last_retry_ms = first_retry_ms, last_retry_ms

    @property
    def next_ms(self) -> int:
        """When something is to be done, unless a reply comes before: the next request, or the end of this one."""
        return self.due_ms if self.sent_ms is None else self.sent_ms + self._timeout_ms

    def is_over(self, now_ms: int) -> bool:
        """Returns whether the request in flight has waited for its reply for too long."""
        return self.sent_ms is not None and now_ms >= self.sent_ms + self._timeout_ms

    def begin(self, now_ms: int) -> bool:
        """Begins a request if one is due and none is in flight. Returns whether it did."""
        if self.sent_ms is not None or now_ms < self.due_ms:
            return False
        self.sent_ms = now_ms
        self.number += 1
        return True

    def take(self, number: int) -> bool:
        """Ends the request in flight. Returns False for a reply that does not belong to it, which ends nothing."""
        if number != self.number or self.sent_ms is None:
            return False
        self.sent_ms = None
        return True

    def fail(self) -> int:
        """Ends the request in flight without a reply that counts. Returns the pause before the next one, which
        doubles with each failure in a row."""
        self.sent_ms = None
        pause_ms = min(self._first_retry_ms << min(self.failures, _MOST_DOUBLINGS), self._last_retry_ms)
        self.failures += 1
        return pause_ms
