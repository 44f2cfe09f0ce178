"""What the tests of pipelines run on."""

from __future__ import annotations

from support.spark_session import admin, spark

__all__ = ["admin", "spark"]
