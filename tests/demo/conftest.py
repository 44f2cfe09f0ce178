"""Fixtures of the demo's tests."""

from __future__ import annotations

from support.spark_session import spark

__all__ = ["spark"]
