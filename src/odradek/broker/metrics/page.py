"""The page of a broker's metrics: ``http://HOST:PORT/metrics``, for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from odradek.broker.front_end.http_page import HttpPageProtocol, Page
from odradek.broker.front_end.request_times import RequestStatistics
from odradek.broker.metrics.broker_metrics import BrokerMetrics, LoopLag
from odradek.broker.settings.listener import HTTP, Listener
from odradek.text.prometheus import METRICS_TYPE

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.front_end.bound_sockets import AcceptedFactory
    from odradek.broker.front_end.http_page import PageGate
    from odradek.broker.metrics.broker_metrics import MeasuredNode

    class PageListeners(PageGate, Protocol):
        """The listeners of a server, which serve pages, too."""

        def add(self, listener: Listener, make: AcceptedFactory) -> None: ...

    class MeasuredServer(MeasuredNode, Protocol):
        """A server before its start."""

        request_times: RequestStatistics | None

        @property
        def listening(self) -> PageListeners: ...


LISTENER, PATH = "METRICS", "/metrics"


def add_metrics(server: MeasuredServer, address: tuple[str, int], loop: asyncio.AbstractEventLoop) -> BrokerMetrics:
    """Lets a server measure itself, and adds the page, before its start. ``loop``: that of the server."""
    server.request_times = times = RequestStatistics()
    lag = LoopLag(loop)
    lag.begin()
    metrics = BrokerMetrics(server, times, lag)
    pages = {PATH: Page(METRICS_TYPE, metrics.page)}
    server.listening.add(Listener(LISTENER, HTTP, *address), lambda _: HttpPageProtocol(server.listening, pages))
    return metrics
