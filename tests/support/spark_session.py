"""Fixtures of the tests that run Spark: one session per process for all tests of a folder, and an Admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from odradek.client.admin import Admin

# Without new records a query asks for offsets every 10 ms, which keeps a processor busy while a test waits.
CONFIG = {"spark.sql.streaming.pollingDelay": "50ms"}


@pytest.fixture(scope="session")
def spark(bootstrap: str) -> Iterator[Any]:
    """Depends on the broker, so that the broker starts before the session and ends after it."""
    from odradek.spark.registration import register
    from odradek.spark.session import session

    running = session("odradek tests", config=CONFIG)
    register(running)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client
