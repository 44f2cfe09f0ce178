"""A broker in the test's loop with a page of metrics, and the text of that page."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from odradek.broker.metrics.page import add_metrics
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig


@asynccontextmanager
async def serving(directory: Path, offsets_partitions: int = 1) -> AsyncIterator[BrokerServer]:
    config = BrokerConfig({"offsets.topic.num.partitions": str(offsets_partitions)})
    broker = BrokerServer(config, directory, ("127.0.0.1", 0))
    add_metrics(broker, ("127.0.0.1", 0), asyncio.get_running_loop())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def page_text(broker: BrokerServer) -> str:
    (page,) = broker.listening.pages

    def read() -> str:
        with urllib.request.urlopen(f"http://{page.address}/metrics", timeout=20) as reply:
            assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            text: str = reply.read().decode()
            return text

    return await asyncio.to_thread(read)
