"""Avro values of records as columns, decoded by fastavro in Spark's Python workers.

Spark's own ``from_avro`` is in a jar (spark-avro) that PySpark does not include. This decoder works without the jar. It
also reports more: the reason why a value is unreadable, and extra bytes after a value, which ``from_avro`` ignores. The
types are those of spark-avro: enums and UUIDs are strings, fixed is binary, ``time-*`` stays a number, a union with
null is a nullable column. A union of int and long is a column of longs; a union of float and double is a column of
doubles. All other unions of several types are refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odradek.core.errors import ConfigError
from odradek.core.extras import command_of
from odradek.pipelines.values.arguments import wrong
from odradek.pipelines.values.avro_bounds import AvroTypes
from odradek.pipelines.values.avro_defaults import with_values
from odradek.pipelines.values.avro_names import name_problem, parsed_with_symbols
from odradek.pipelines.values.avro_shape import logical_type, problem_of
from odradek.pipelines.values.foreign_schemas import check_kind
from odradek.pipelines.values.reader import ERROR
from odradek.spark.arrow_map import map_in_arrow
from odradek.text.json_depth import NestedTooDeep, parse_json
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from fastavro.schema import UnknownType
    from pyspark.sql import DataFrame

_MAGIC, HEADER = 0, 5

_PLAIN = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
# fastavro returns these as numbers, because their logical type is removed; Arrow reads numbers in the type's unit.
_TIMES = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_MOST_DIGITS = 38
"""Spark's largest precision."""
# Unions of numeric types that one column can represent.
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


class AvroDecoder:
    """Reads values as columns of one schema. The values may have been written with other schemas.

    ``writer_schemas``: the schemas of the values by id.

    The pickle has the schemas as text, which Spark's workers parse.

    Raises ConfigError for an invalid schema, and for a type that a column cannot represent.
    """

    def __init__(self, schema: str, framing: str = "none", writer_schemas: Mapping[int, str] | None = None) -> None:
        self.schema = schema
        self.framing = framing
        self.writer_schemas = dict(writer_schemas or {})
        self._parsed = _parse(schema)
        AvroTypes(self._parsed)  # checks the limits before other code walks through the schema
        self._reader = _with_defaults(self._parsed)
        self._writers = {number: _writer_types(number, text) for number, text in self.writer_schemas.items()}
        self.timed = _parse(schema, times=True)
        self.decoded = _arrow_type(self.timed, {}, ())

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.schema, self.framing, self.writer_schemas)

    def same_writers(self) -> list[int] | None:
        """Returns the ids of the writer schemas that equal the reader schema.

        None means that the values have no writer schemas of their own: all have the reader schema.
        """
        if self.framing != "confluent" or not self._writers:
            return None
        return [number for number, shape in self._writers.items() if shape.schema == self._parsed]

    def read(self, records: DataFrame) -> DataFrame:
        """Returns all columns except ``value``, then the decoded ``value``, its bytes as ``raw``, and the error."""
        from pyspark.sql.pandas.types import from_arrow_type
        from pyspark.sql.types import BinaryType, StringType, StructField, StructType

        kept = records.drop("value").schema.fields
        value = from_arrow_type(in_micros(self.decoded))
        last = [StructField("value", value), StructField("raw", BinaryType()), StructField(ERROR, StringType())]
        return map_in_arrow(records, self._decode_batches, StructType([*kept, *last]))

    def _decode_batches(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raw = batch.column("value")
            values, errors = self.decode(raw)
            kept = [(name, batch.column(name)) for name in batch.schema.names if name != "value"]
            columns = dict([*kept, ("value", values), ("raw", raw.cast(pa.binary())), (ERROR, errors)])
            yield pa.RecordBatch.from_pydict(columns)

    def decode(self, raw: pa.Array) -> tuple[pa.Array, pa.Array]:
        """Returns the values and errors of a column of bytes. An unreadable value is null and has an error."""
        values: list[object] = []
        errors: list[str | None] = []
        for data in raw.to_pylist():
            value, error = (None, None) if data is None else self._decode_one(data)
            values.append(value)
            errors.append(error)
        try:
            return self._column(values), pa.array(errors, pa.string())
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            return self._column_with_care(values, errors)

    def _decode_one(self, data: bytes) -> tuple[object, str | None]:
        import fastavro

        start, writer = 0, self._parsed
        if self.framing == "confluent":
            if len(data) < HEADER or data[0] != _MAGIC:
                return None, "it does not begin with Confluent's five bytes"
            start, number = HEADER, int.from_bytes(data[1:HEADER], "big")
            if self._writers:
                if number not in self._writers:
                    return None, f"its writer schema, id {number}, is unknown"
                shape = self._writers[number]
                writer = shape.schema
                try:
                    if shape.is_recursive:
                        shape.check_value(data, start)
                except NestedTooDeep as error:
                    return None, f"it is {error}"
        stream = io.BytesIO(data)
        stream.seek(start)
        try:
            value = fastavro.schemaless_reader(stream, writer, self._reader)
        except EOFError:
            return None, "it ends too early for the schema"
        # Arbitrary bytes can make fastavro raise any exception: such bytes do not fit the schema.
        except Exception as error:
            return None, f"it does not fit the schema: {type(error).__name__}: {one_line(error)}"[:200]
        if stream.tell() != len(data):
            return None, f"{len(data) - stream.tell()} bytes follow the value"
        return value, None

    def _column(self, values: list[object]) -> pa.Array:
        return pa.array(values, self.decoded).cast(in_micros(self.decoded))

    def _column_with_care(self, values: list[object], errors: list[str | None]) -> tuple[pa.Array, pa.Array]:
        """Converts values one by one, because one of them is out of its column's range: a time, or a decimal number."""
        for at, value in enumerate(values):
            try:
                self._column([value])
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                values[at] = None
                errors[at] = f"it holds a value out of range: {one_line(error)}"[:200]
        return self._column(values), pa.array(errors, pa.string())


def _parse(text: str, *, times: bool = False, any_names: bool = False) -> object:
    """Returns the schema with full names. Keeps the logical types of times only if ``times``. Raises ConfigError.

    ``any_names``: names may be such as Java's parser refuses.
    """
    try:
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    except ImportError as error:
        raise wrong("value_format", f" avro needs fastavro: {command_of('lake')}") from error
    check_kind(text, "avro")
    try:
        schema = parse_json(text.removeprefix("\ufeff"))
        if problem := problem_of(schema):
            raise ValueError(problem)
        parsed = parsed_with_symbols(schema if times else _without_times(schema), fastavro.parse_schema)
        if problem := name_problem(parsed, any_names=any_names):
            raise ValueError(problem)
        return parsed
    except (
        ValueError, SchemaParseException, UnknownType, KeyError, TypeError, AttributeError, RecursionError
    ) as error:  # fmt: skip
        reason = _unknown_type(error) if isinstance(error, UnknownType) else one_line(error)
        raise ConfigError(f"the schema is not a valid Avro schema: {reason}: {text[:80]!r}") from error


def _unknown_type(error: UnknownType) -> str:
    """Returns fastavro's error about a type that is neither one of Avro's nor defined before, in words."""
    name = error.name["type"] if isinstance(error.name, dict) and "type" in error.name else error.name
    return f"it has no type named {name}"


def _writer_types(number: int, text: str) -> AvroTypes:
    """Returns the types of a writer schema. Raises ConfigError with its id."""
    try:
        return AvroTypes(_parse(text, any_names=True))
    except ConfigError as error:
        raise wrong("writer_schemas", f" {number}: {error}") from None


def _with_defaults(parsed: object) -> object:
    """Returns the schema with its defaults as values. Raises ConfigError."""
    try:
        return with_values(parsed)
    except ValueError as error:
        raise ConfigError(f"the schema is not a valid Avro schema: {one_line(error)}") from error


def _without_times(schema: object) -> object:
    """Removes logical types other than decimal: fastavro would make an object from each date; Arrow needs a number."""
    if isinstance(schema, list):
        return [_without_times(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_times(item) if name in ("type", "items", "values", "fields") else item
        for name, item in schema.items()
        if name != "logicalType" or item == "decimal"
    }


def _arrow_type(schema: Any, named: dict[str, object], within: tuple[str, ...]) -> pa.DataType:
    """Returns the Arrow type for values of a schema, with times in the schema's unit. Raises ConfigError."""
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if not kinds:
            return _arrow_type("null", named, within)
        names = frozenset(kind if isinstance(kind, str) else str(kind.get("type")) for kind in kinds)
        if len(kinds) > 1 and names in _WIDER:
            return _PLAIN[_WIDER[names]]
        if len(kinds) != 1:
            raise ConfigError(f"the schema has a union of several types, which a column cannot represent: {schema}")
        return _arrow_type(kinds[0], named, within)
    if isinstance(schema, str):
        schema = named.get(schema, {"type": schema})
    kind, name = schema["type"], schema.get("name")
    logical = logical_type(schema)
    if name is not None:
        if name in within:
            raise ConfigError(
                f"the schema's type {name} is recursive (its values can hold values of {name}), which a column of a "
                f"table cannot represent: give a schema without it, or value format raw"
            )
        named[name] = schema
        within = (*within, name)
    match kind:
        case "record" | "error":
            return pa.struct([(item["name"], _arrow_type(item["type"], named, within)) for item in schema["fields"]])
        case "array":
            return pa.list_(_arrow_type(schema["items"], named, within))
        case "map":
            return pa.map_(pa.string(), _arrow_type(schema["values"], named, within))
        case "enum":
            return pa.string()
        case _ if logical == "decimal" and kind in ("bytes", "fixed"):
            return _decimal(schema)
        case "fixed":
            return pa.binary()
        case _ if logical in _TIMES and kind in ("int", "long"):
            return _TIMES[logical]
        case _ if kind in _PLAIN:
            return _PLAIN[kind]
    if kind in named:
        return _arrow_type(named[kind], named, within)
    raise ConfigError(f"the schema's type {kind!r} has no column type")


def _decimal(schema: dict[str, object]) -> pa.DataType:
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    remedy = "or remove its logicalType to get bytes"
    if precision is None:
        raise ConfigError(f"the schema has a decimal without precision: add a precision up to {_MOST_DIGITS}, {remedy}")
    if type(precision) is not int or type(scale) is not int or precision < 1 or not 0 <= scale <= precision:
        raise ConfigError(
            f"the schema has a decimal of precision {precision!r} and scale {scale!r}: the precision is a number from "
            f"1 to {_MOST_DIGITS}, and the scale from 0 to the precision: correct them, {remedy}"
        )
    if precision > _MOST_DIGITS:
        raise ConfigError(
            f"the schema has a decimal of precision {precision}, but a column has at most {_MOST_DIGITS} digits: "
            f"give a smaller precision, {remedy}"
        )
    return pa.decimal128(precision, scale)


def in_micros(kind: pa.DataType) -> pa.DataType:
    """Returns the same type with times in microseconds, Spark's unit."""
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, in_micros(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), in_micros(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(in_micros(kind.value_type))
    return pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else kind
