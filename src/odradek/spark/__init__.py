"""Spark on consumer-group offsets: ``register(spark)`` adds ``format("odradek")`` to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.spark.source import register

__all__ = ["register"]


def __getattr__(name: str) -> Any:
    # PySpark takes a second to import, and Spark's workers import this package without needing it.
    if name == "register":
        from odradek.spark.source import register

        return register
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
