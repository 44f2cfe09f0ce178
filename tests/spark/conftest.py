"""One Spark session for all Spark tests of a process, and fresh queries over it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brokers import unique
from spark_runs import StreamingRun

from odradek.client.admin import Admin


@pytest.fixture(scope="session")
def spark(bootstrap: str) -> Iterator[Any]:
    """Depends on the broker, so that the broker, started first, outlives it."""
    from odradek.spark.session import session
    from odradek.spark.source import register

    running = session("odradek tests")
    register(running)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def admin(bootstrap: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def topic() -> str:
    return unique("spark")


@pytest.fixture
def group() -> str:
    return unique("spark-group")


@pytest.fixture
def stream(spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path) -> StreamingRun:
    return StreamingRun(spark, admin, bootstrap, topic, group, tmp_path / "checkpoint")
