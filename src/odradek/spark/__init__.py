"""Spark source and sink with consumer-group offsets.

``register(spark)`` adds ``format("odradek")`` to a session. ``watch(spark)`` reports the lag of a session's streams.
``transactional_writer(…)`` makes each micro-batch one Kafka transaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.core.lazy_import import loader

if TYPE_CHECKING:
    from odradek.spark.driver.lag_metrics import watch
    from odradek.spark.driver.micro_batch_transactions import transactional_writer
    from odradek.spark.registration import register

__all__ = ["register", "transactional_writer", "watch"]

# The import of PySpark takes a second. Spark's workers import this package and need none of these names.
_HOMES = {
    "register": "odradek.spark.registration",
    "transactional_writer": "odradek.spark.driver.micro_batch_transactions",
    "watch": "odradek.spark.driver.lag_metrics",
}
__getattr__ = loader(__name__, _HOMES, extra="spark")
