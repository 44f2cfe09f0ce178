"""Finds numbers that no timestamp holds in JSON values that Spark reads.

Spark's ``from_json`` takes a number in a column of timestamps for seconds, and multiplies it by a million without a
check: 9223372036855 becomes a time before 1970. So the fields of timestamps are read a second time, as texts.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

_MOST_SECONDS = str(((1 << 63) - 1) // 1_000_000)
_OF_THIS_LENGTH = rf"^-?[0-9]{{{len(_MOST_SECONDS)}}}$"
_LONGER = rf"^-?[0-9]{{{len(_MOST_SECONDS) + 1},}}$"


def times_as_text(kind: DataType) -> DataType | None:
    """Returns the parts of a type that have timestamps, with texts in their place; None if there are none."""
    from pyspark.sql.types import ArrayType, MapType, StringType, StructField, StructType, TimestampType

    if isinstance(kind, TimestampType):
        return StringType()
    if isinstance(kind, StructType):
        parts = [(field.name, times_as_text(field.dataType)) for field in kind.fields]
        fields = [StructField(name, part) for name, part in parts if part is not None]
        return StructType(fields) if fields else None
    inner = None
    if isinstance(kind, ArrayType):
        inner = times_as_text(kind.elementType)
        return None if inner is None else ArrayType(inner)
    if isinstance(kind, MapType):
        inner = times_as_text(kind.valueType)
        return None if inner is None else MapType(kind.keyType, inner)
    return None


def has_overflow(value: Column, kind: DataType) -> Column:
    """Returns whether a text in ``value`` is a number of seconds that no timestamp holds. ``kind``: its type, from
    ``times_as_text``. Never null."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, StructType):
        parts = [has_overflow(value[field.name], field.dataType) for field in kind.fields]
        return functools.reduce(operator.or_, parts)
    if isinstance(kind, ArrayType):
        found = f.exists(value, lambda item: has_overflow(item, kind.elementType))
    elif isinstance(kind, MapType):
        found = f.exists(f.map_values(value), lambda item: has_overflow(item, kind.valueType))
    else:  # JSON's numbers have no leading zeros, so texts of the same length are in the order of the numbers
        is_larger = value.rlike(_OF_THIS_LENGTH) & (f.ltrim(value, f.lit("-")) > _MOST_SECONDS)
        found = value.rlike(_LONGER) | is_larger
    return f.coalesce(found, f.lit(False))
