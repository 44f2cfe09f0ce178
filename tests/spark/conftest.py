"""Fixtures of the Spark tests: new topics, groups and queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from spark_runs import StreamingRun
from support.brokers import unique
from support.spark_session import admin

from odradek.client.admin import Admin

__all__ = ["admin", "group", "stream", "topic"]


@pytest.fixture
def topic() -> str:
    return unique("spark")


@pytest.fixture
def group() -> str:
    return unique("spark-group")


@pytest.fixture
def stream(spark: Any, admin: Admin, bootstrap: str, topic: str, group: str, tmp_path: Path) -> StreamingRun:
    return StreamingRun(spark, admin, bootstrap, topic, group, tmp_path / "checkpoint")
