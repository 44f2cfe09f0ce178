"""Middlewares between the router and the handlers, for functions that concern all APIs: request quota and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.broker.handlers.api import Context, Reply, ServedApi
    from odradek.core.deferred import Deferred

Serve = Callable[["ServedApi", "Context", object], "Reply | Deferred[Reply]"]
CountTime = Callable[["Context", float], None]


class Middleware:
    """The base class of middlewares. The router calls only the methods that a subclass overrides."""

    def serve(self, api: ServedApi, context: Context, message: object, following: Serve) -> Reply | Deferred[Reply]:
        """Serves a request. ``following`` is the next middleware or the handler. Raises the errors of the handler."""
        return following(api, context, message)

    def count_time(self, context: Context, seconds: float) -> None:
        """Counts the event loop's time for a request. It is called several times for a long request."""


def chain(middlewares: Iterable[Middleware], handler: Serve) -> Serve:
    """Returns the function that serves requests by the middlewares, in their order, and then by ``handler``."""
    for middleware in reversed([layer for layer in middlewares if type(layer).serve is not Middleware.serve]):
        handler = partial(middleware.serve, following=handler)
    return handler


def time_counter(middlewares: Iterable[Middleware]) -> CountTime | None:
    """Returns the function that calls ``count_time`` of all middlewares, or ``None`` if none overrides it."""
    counters = [layer.count_time for layer in middlewares if type(layer).count_time is not Middleware.count_time]
    if len(counters) < 2:
        return counters[0] if counters else None

    def count(context: Context, seconds: float) -> None:
        for counter in counters:
            counter(context, seconds)

    return count
