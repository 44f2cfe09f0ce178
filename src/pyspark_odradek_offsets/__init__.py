"""``format("odradek-offsets")`` without ``register``: Spark loads one source of each package named ``pyspark_…``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark_odradek

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]


class DefaultSource(pyspark_odradek.DefaultSource):
    """A proxy of ``odradek.spark.offsets_source.OffsetsDataSource``."""

    @classmethod
    def name(cls) -> str:
        return "odradek-offsets"

    def _made(self) -> DataSource:
        from odradek.spark.offsets_source import OffsetsDataSource

        return OffsetsDataSource(self.options)
