"""Fixtures of the tests that run Spark: one session per process for all tests, and an Admin."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odradek.client.admin import Admin
from support.fork_server import SPARK, ForkServer

# By default, a query without new records asks for offsets every 10 ms, which keeps a processor busy while a test waits.
CONFIG = {"spark.sql.streaming.pollingDelay": "50ms"}


@pytest.fixture(scope="session")
def spark(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Depends on the broker, so that the broker starts before the session and ends after it."""
    from odradek.spark.registration import register
    from odradek.spark.session import session

    with _forks(tmp_path_factory.mktemp("forks")):
        running = session("odradek tests", config=CONFIG)
    register(running)
    yield running
    running.stop()


@contextlib.contextmanager
def _forks(place: Path) -> Iterator[None]:
    """A session that starts within the block has forks of a ``ForkServer`` as Python processes, also after the block.

    Processes that tests start are no forks."""
    if sys.platform != "linux":
        yield
        return
    before = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    with pytest.MonkeyPatch.context() as patch:
        server = ForkServer(SPARK)
        server.write_program(place / "python")
        patch.setattr(sys, "executable", str(place / "python"))
        yield
    os.environ.update(before)


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client
