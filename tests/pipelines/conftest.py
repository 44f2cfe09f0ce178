"""Fixtures of the pipeline tests."""

from __future__ import annotations

from support.spark_session import admin

__all__ = ["admin"]
