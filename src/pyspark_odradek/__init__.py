"""``format("odradek")`` without ``register``: Spark takes the ``DefaultSource`` of each package named ``pyspark_…``.

Spark does that once for each session that asks for any data source in Python, other people's too. So this imports
nothing of odradek before the source is used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]  # PySpark has no types
    """Hands on to ``odradek.spark.source.OdradekDataSource``."""

    @classmethod
    def name(cls) -> str:
        return "odradek"

    @functools.cached_property
    def _source(self) -> DataSource:
        return self._made()

    def _made(self) -> DataSource:
        from odradek.spark.source import OdradekDataSource

        return OdradekDataSource(self.options)

    def schema(self) -> StructType:
        return self._source.schema()

    def reader(self, schema: StructType) -> Any:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> Any:
        return self._source.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return self._source.streamWriter(schema, overwrite)
