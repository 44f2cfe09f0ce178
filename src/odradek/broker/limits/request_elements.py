"""The budget of decoded elements: a limit for the requests of all connections together.

A decoded request takes about ten times the memory of its bytes, because each of its elements is an object. So the
broker counts the elements of a long request before it reads them (``wire/long_requests``), and the request waits for
its share of the budget. It gives the share back when its elements are freed.

A request waits before it is decoded and holds nothing meanwhile, so requests cannot block one another for ever. Shares
are granted in the order of the requests. Requests of up to ``SMALL_REQUEST_ELEMENTS`` have a budget of their own, so
that they do not wait for the widest requests. A request that is read at once waits only if this budget is used up.
"""

from __future__ import annotations

from collections import deque

from odradek.core.deferred import Deferred

LARGE_ELEMENTS = 250_000
"""The limit for the elements of all large requests: ``request_limits.MAX_ELEMENTS``, so at least one is in progress."""
SMALL_ELEMENTS = 100_000
"""The limit for the elements of all other requests."""
SMALL_REQUEST_ELEMENTS = 20_000
"""The largest number of elements of a request that takes its share from the budget of small requests."""
FEW_ELEMENTS = 200
"""A request with at most this number of elements does not count."""


class RequestElements:
    """The elements of the requests in progress. A request of up to ``small_request`` elements is a small one."""

    def __init__(
        self, large: int = LARGE_ELEMENTS, small: int = SMALL_ELEMENTS, small_request: int = SMALL_REQUEST_ELEMENTS
    ) -> None:
        self._small_request = small_request
        self._large = _Budget(large)
        self._small = _Budget(small)

    @property
    def used(self) -> int:
        """The elements of all requests in progress that count."""
        return self._large.used + self._small.used

    @property
    def waiting(self) -> int:
        """The number of requests that wait for their share."""
        return len(self._large.waiting) + len(self._small.waiting)

    @property
    def is_full(self) -> bool:
        """Whether a request that could be read at once has to wait."""
        return self._small.used >= self._small.size or bool(self._small.waiting)

    def reserve(self, count: int) -> Share:
        """Returns a share that is granted when there is room for it."""
        share = Share(self._small if count <= self._small_request else self._large, count)
        share.wait()
        return share

    def take(self, count: int) -> Share:
        """Returns a share of the budget of small requests that is granted at once, even if the budget is used up."""
        share = Share(self._small, count)
        share.grant()
        return share


class Share:
    """A request's part of the budget. ``granted`` is resolved when the request may be decoded."""

    __slots__ = ("_budget", "count", "granted")

    def __init__(self, budget: _Budget, count: int) -> None:
        self._budget: _Budget | None = budget
        self.count = count
        self.granted: Deferred[None] = Deferred()

    def wait(self) -> None:
        if self._budget is not None:
            self._budget.waiting.append(self)
            self._budget.grant_waiting()

    def grant(self) -> None:
        if self._budget is not None:
            self._budget.used += self.count
            self.granted.resolve(None)

    def release(self) -> None:
        """Gives the share back, or ends the wait for it. A second call has no effect."""
        budget, self._budget = self._budget, None
        if budget is None:
            return
        if self.granted.resolved:
            budget.used -= self.count
        else:
            budget.waiting.remove(self)
        budget.grant_waiting()


class _Budget:
    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self.waiting: deque[Share] = deque()

    def grant_waiting(self) -> None:
        """Grants the shares for which there is room, in their order. A share of more than the budget is granted alone.

        ``used`` may exceed the size by the shares that ``take`` grants at once."""
        while self.waiting and (not self.used or self.used + self.waiting[0].count <= self.size):
            self.waiting.popleft().grant()
