"""Reads JSON values into Arrow columns in a worker: a kernel reads columns, and Python reads what it refuses.

Types and values are those of Spark's ``from_json``, with one exception: if Spark would change a number or a text, the
value is unreadable here (``docs/pipelines.md``).

The kernels are loaded when the first values are read: the driver makes readers, too, but reads no values.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from odradek.core.errors import ConfigError
from odradek.pipelines.decoders import json_rows
from odradek.pipelines.values.reader import ValueReader
from odradek.pipelines.values.record_values import json_fields, not_json_reason

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from odradek.pipelines.decoders.value_columns import KernelSchema, Texts


class JsonReader(ValueReader):
    """Reads JSON values. ``type``: the type of the values. Without a schema, a value is its text."""

    def __init__(self, kind: pa.DataType | None, time_zone: str) -> None:
        self._kind = kind
        self._time_zone = time_zone
        self.type = pa.string() if kind is None else kind
        self._convert = None if kind is None else json_rows.converter(kind, time_zone)
        self.slowly = 0
        """The number of values that were read one by one."""

    @classmethod
    def of(cls, schema: str | None, time_zone: str) -> JsonReader:
        """Returns the reader for a schema's text. A schema needs a running Spark. Raises ConfigError."""
        return cls(None if schema is None else arrow_type(json_fields(schema)), time_zone)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._kind, self._time_zone)

    @functools.cached_property
    def plan(self) -> KernelSchema | None:
        """The kernel's plan; None if there is no schema."""
        from odradek.pipelines.decoders.json_schema import kernel_schema

        return None if self._kind is None else kernel_schema(self._kind, self._time_zone)

    def read(self, values: pa.Array) -> tuple[pa.Array, pa.Array | None]:
        from odradek.pipelines.decoders.value_columns import REFUSED, Texts, put

        texts = Texts.of(values)
        if self.plan is None:
            return self._read_texts(values, texts)
        columns = self.plan.read(texts)
        read = columns.array(0)
        refused = np.flatnonzero(texts.marks == REFUSED)
        if not len(refused):
            return read, None
        found, errors = self._one_by_one(values, refused)
        good = [(at, value) for at, value in zip(refused.tolist(), found, strict=True) if value is not None]
        if good:
            read = put(read, [at for at, _ in good], pa.array([value for _, value in good], self.type))
        return read, _errors(len(values), refused, errors)

    def _read_texts(self, values: pa.Array, texts: Texts) -> tuple[pa.Array, pa.Array | None]:
        from odradek.pipelines.decoders import json_columns
        from odradek.pipelines.decoders.value_columns import REFUSED

        json_columns.check_texts(texts.data, texts.offsets, texts.marks, np.empty(json_columns.SKIPPED, np.uint8))
        refused = np.flatnonzero(texts.marks == REFUSED)
        if not len(refused):
            return values.cast(pa.string()), None
        _, errors = self._one_by_one(values, refused)
        wrong = _errors(len(values), refused, errors)
        if wrong is None:
            return values.cast(pa.string()), None
        return pc.if_else(wrong.is_valid(), None, values).cast(pa.string()), wrong

    def _one_by_one(self, values: pa.Array, rows: npt.NDArray[np.int64]) -> tuple[list[object], list[str | None]]:
        found: list[object] = []
        errors: list[str | None] = []
        for data in values.take(pa.array(rows)).to_pylist():
            value, error = self.read_one(data)
            found.append(value)
            errors.append(error)
        return found, errors

    def read_one(self, data: bytes) -> tuple[object, str | None]:
        """Returns the value and None, or None and the reason why the value is unreadable."""
        self.slowly += 1
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None, json_rows.NO_UTF8
        try:
            tree = json_rows.parse(text)
        except json_rows.Unreadable:
            return None, not_json_reason(is_object=self._convert is not None)
        if self._convert is None:
            return text, None
        if tree is not None and not isinstance(tree, json_rows.Object):
            return None, not_json_reason(is_object=True)
        try:
            value = self._convert(tree)
        except json_rows.Unreadable:
            value = None
        return (None, json_rows.NO_FIT) if value is None else (value, None)


def _errors(size: int, rows: npt.NDArray[np.int64], errors: list[str | None]) -> pa.Array | None:
    if not any(errors):
        return None
    column: list[str | None] = [None] * size
    for row, error in zip(rows.tolist(), errors, strict=True):
        column[row] = error
    return pa.array(column, pa.string())


def arrow_type(kind: DataType) -> pa.DataType:
    """Returns the Arrow type for a Spark type. Every field is nullable, as in the results of ``from_json``. Raises
    ConfigError for types that workers do not read.
    """
    from pyspark.sql import types

    if isinstance(kind, types.StructType):
        if not kind.names or len(set(kind.names)) != len(kind.names):
            raise ConfigError(
                f"the schema has an object without fields, or with a duplicate field: {kind.simpleString()}"
            )
        return pa.struct([pa.field(one.name, arrow_type(one.dataType)) for one in kind.fields])
    if isinstance(kind, types.ArrayType):
        return pa.list_(pa.field("element", arrow_type(kind.elementType)))
    if isinstance(kind, types.MapType) and type(kind.keyType) is types.StringType:
        return pa.map_(pa.string(), arrow_type(kind.valueType))
    if isinstance(kind, types.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    found = {
        types.BooleanType: pa.bool_(),
        types.ByteType: pa.int8(),
        types.ShortType: pa.int16(),
        types.IntegerType: pa.int32(),
        types.LongType: pa.int64(),
        types.FloatType: pa.float32(),
        types.DoubleType: pa.float64(),
        types.StringType: pa.string(),
        types.BinaryType: pa.binary(),
        types.DateType: pa.date32(),
        types.TimestampType: pa.timestamp("us", "UTC"),
        types.TimestampNTZType: pa.timestamp("us"),
    }.get(type(kind))
    if found is None:
        raise ConfigError(f"workers cannot read JSON of type {kind.simpleString()}; try --writer spark")
    return found
