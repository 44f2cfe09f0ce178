"""``mapInArrow`` and ``applyInArrow`` without pandas: Spark's own methods require pandas, but do not use it.

They also warn about each pandas from 3.0 on. So only a Spark Connect session, which has no Java objects here, uses
Spark's own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], schema: StructType | str
) -> DataFrame:
    """Returns ``frame.mapInArrow(function, schema)``."""
    if not hasattr(frame, "_jdf"):
        return frame.mapInArrow(function, schema)
    from pyspark.sql import DataFrame
    from pyspark.util import PythonEvalType

    column = _column(frame, function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)
    return DataFrame(frame._jdf.mapInArrow(column, False, None), frame.sparkSession)


def apply_in_arrow(
    frame: DataFrame, key: str, function: Callable[[Table], Table], schema: StructType | str
) -> DataFrame:
    """Returns ``frame.groupBy(key).applyInArrow(function, schema)``."""
    grouped = frame.groupBy(key)
    if not hasattr(grouped, "_jgd"):
        return grouped.applyInArrow(function, schema)
    from pyspark.sql import DataFrame
    from pyspark.util import PythonEvalType

    column = _column(frame, function, schema, PythonEvalType.SQL_GROUPED_MAP_ARROW_UDF)
    return DataFrame(grouped._jgd.flatMapGroupsInArrow(column), frame.sparkSession)


def _column(frame: DataFrame, function: Callable[..., object], schema: StructType | str, eval_type: int) -> Column:
    """Returns Java's ``Column`` that applies ``function`` to all columns of ``frame``."""
    from pyspark.sql.udf import _create_udf

    applied: Column = _create_udf(function, schema, eval_type)
    return applied(*[frame[name] for name in frame.columns])._jc
