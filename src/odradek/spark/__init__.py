"""Spark on consumer-group offsets: ``register(spark)`` adds ``format("odradek")`` to a session, ``watch(spark)`` tells
how far its streaming queries are behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odradek.spark.source import register
    from odradek.spark.watching import watch

__all__ = ["register", "watch"]


def __getattr__(name: str) -> Any:
    # PySpark takes a second to import, and Spark's workers import this package without needing it.
    if name == "register":
        from odradek.spark.source import register

        return register
    if name == "watch":
        from odradek.spark.watching import watch

        return watch
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
