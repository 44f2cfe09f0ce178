"""``format("odradek")`` without ``register``: Spark loads the ``DefaultSource`` of each package named ``pyspark_…``.

Spark does so once for each session that uses any Python data source. So this package imports nothing of odradek until
its own source is used.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]  # PySpark has no types
    """A proxy of ``odradek.spark.source.OdradekDataSource``."""

    # Subclasses use _made.

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

    def reader(self, schema: StructType) -> object:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> object:
        return self._source.streamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> object:
        return self._source.writer(schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> object:
        return self._source.streamWriter(schema, overwrite)
