"""The page of a broker's metrics: ``http://HOST:PORT/metrics``, for Prometheus."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from odradek.broker.front_end.http_page import HttpPageProtocol, Page
from odradek.broker.metrics.broker_metrics import BrokerMetrics
from odradek.broker.metrics.loop_lag import LoopLag
from odradek.broker.metrics.request_times import RequestStatistics
from odradek.broker.settings.listener import HTTP, Listener
from odradek.text.prometheus import METRICS_TYPE

if TYPE_CHECKING:
    from odradek.broker.server import BrokerServer

LISTENER, PATH = "METRICS", "/metrics"


def add_metrics(server: BrokerServer, address: tuple[str, int], loop: asyncio.AbstractEventLoop) -> BrokerMetrics:
    """Lets a server measure itself, and adds the page, before its start. ``loop``: that of the server."""
    times = RequestStatistics(server, server.fast_path)
    # In place of the server's own functions, so that a server without the page has no cost.
    server.dispatch = times.dispatch  # type: ignore[method-assign,assignment]
    server.fast_path = times.fast_path  # type: ignore[method-assign,assignment]
    lag = LoopLag(loop)
    lag.begin()
    metrics = BrokerMetrics(server, times, lag)
    pages = {PATH: Page(METRICS_TYPE, metrics.page)}
    server.listening.add(Listener(LISTENER, HTTP, *address), lambda _: HttpPageProtocol(server.listening, pages))
    return metrics
