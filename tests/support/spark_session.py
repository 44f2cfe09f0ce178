"""Fixtures of the tests that run Spark: one session per process for all tests, and an Admin."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from odradek.client.admin import Admin
from support.fork_server import SPARK, ForkServer

# By default, a query without new records asks for offsets every 10 ms, which keeps a processor busy while a test waits.
CONFIG = {"spark.sql.streaming.pollingDelay": "50ms", "spark.sql.shuffle.partitions": "2"}


@pytest.fixture(scope="session")
def spark_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A program like Python; on Linux its processes are forks of a ``ForkServer``."""
    if sys.platform != "linux":
        return sys.executable
    program = tmp_path_factory.mktemp("forks") / "python"
    ForkServer(SPARK).write_program(program)
    return str(program)


@pytest.fixture(scope="session")
def spark(bootstrap: str, spark_python: str) -> Iterator[Any]:
    """Depends on the broker, so that the broker starts before the session and ends after it."""
    from odradek.spark.registration import register
    from odradek.spark.session import session

    with _forks(spark_python):
        running = session("odradek tests", config=CONFIG)
    register(running)
    yield running
    running.stop()


@contextlib.contextmanager
def _forks(python: str) -> Iterator[None]:
    """A session that starts within the block has this program for its Python processes, also after the block.

    Processes that tests start are no forks."""
    before = {name: os.environ.get(name, sys.executable) for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", python)
        yield
    os.environ.update(before)


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client
