"""Spark source and sink with consumer-group offsets.

``register(spark)`` adds ``format("odradek")`` to a session; ``watch(spark)`` reports the lag of its streaming queries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.spark.lag_metrics import watch
    from odradek.spark.registration import register

__all__ = ["register", "watch"]

# PySpark takes a second to import, and Spark's workers import this package without using it.
__getattr__ = loader(__name__, {"register": "odradek.spark.registration", "watch": "odradek.spark.lag_metrics"})
