"""Fixtures of the pipeline tests."""

from __future__ import annotations

from support.python_starts import fork_server, python_starts
from support.spark_session import admin, spark

__all__ = ["admin", "fork_server", "python_starts", "spark"]
