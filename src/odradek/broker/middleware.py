"""What stands between the router and the handlers: quotas, faults, and whatever else concerns requests of all APIs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.broker.api import Context, Reply, ServedApi
    from odradek.core.deferred import Deferred

Serve = Callable[["ServedApi", "Context", Any], "Reply | Deferred[Reply]"]
CountTime = Callable[["Context", float], None]


class Middleware:
    """One of them, which redefines what it needs: what it leaves as it is here is not called."""

    def serve(self, api: ServedApi, context: Context, message: Any, following: Serve) -> Reply | Deferred[Reply]:
        """Serves a request; ``following`` passes it on towards its handler. Raises what the handler raises."""
        return following(api, context, message)

    def count_time(self, context: Context, seconds: float) -> None:
        """The loop has worked on a request for so long; on a long one several times."""


def chain(middlewares: Iterable[Middleware], handler: Serve) -> Serve:
    """Serves by way of those that serve, the first one first."""
    for middleware in reversed([one for one in middlewares if type(one).serve is not Middleware.serve]):
        handler = partial(middleware.serve, following=handler)
    return handler


def time_counter(middlewares: Iterable[Middleware]) -> CountTime | None:
    """Calls all that count time; ``None`` where there are none."""
    counters = [one.count_time for one in middlewares if type(one).count_time is not Middleware.count_time]
    if len(counters) < 2:
        return counters[0] if counters else None

    def count(context: Context, seconds: float) -> None:
        for counter in counters:
            counter(context, seconds)

    return count
