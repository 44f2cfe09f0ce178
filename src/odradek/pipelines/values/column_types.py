"""The types of a table's columns in the form of Spark's JSON, without a running Spark.

So a schema that does not fit a table is refused before Spark starts. ``begin`` of a run compares once more, with the
types that Spark has.
"""

from __future__ import annotations

import re

import pyarrow as pa

from odradek.pipelines.values.formats import ValueFormat
from odradek.pipelines.values.reader import ERROR
from odradek.pipelines.values.record_values import RAW, RECORD_COLUMNS, Values
from odradek.pipelines.values.schema_text import field_types

_HEADERS = {
    "type": "array",
    "elementType": {
        "type": "struct",
        "fields": [{"name": "key", "type": "string"}, {"name": "value", "type": "binary"}],
    },
}
_OF_RECORDS = dict(zip(RECORD_COLUMNS, ("string", "integer", "long", "timestamp", "binary"), strict=True))
_SPARK_NAMES = {
    pa.bool_(): "boolean", pa.int32(): "integer", pa.int64(): "long", pa.float32(): "float", pa.float64(): "double",
    pa.binary(): "binary", pa.string(): "string", pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp", pa.timestamp("us"): "timestamp_ntz",
}  # fmt: skip
"""The types of the columns that Avro values become."""
_LEAF = re.compile(
    r"boolean|byte|short|integer|long|float|double|date|timestamp|timestamp_ntz|string|binary|decimal\(\d+,\d+\)"
)


def column_types(values: Values) -> dict[str, object] | None:
    """Returns the types of the columns of a table with these values; None if only Spark knows them. Raises
    ConfigError for a schema that is wrong."""
    read = _type_of_value(values)
    if read is None or not _is_known(read):
        return None
    record = _OF_RECORDS | ({"headers": _HEADERS} if values.headers else {})
    last = {} if values.format is ValueFormat.RAW else {RAW: "binary", ERROR: "string"}
    if not values.flat:
        return record | {"value": read} | last
    fields = {field["name"]: field["type"] for field in read["fields"]} if isinstance(read, dict) else {}
    return fields | record | last


def _type_of_value(values: Values) -> object:
    match values.format:
        case ValueFormat.RAW:
            return "binary"
        case ValueFormat.AVRO:
            from odradek.pipelines.values.avro import AvroDecoder, in_micros  # slow to import, for Avro alone

            assert values.schema is not None
            return _of_arrow(in_micros(AvroDecoder(values.schema, values.framing, values.writer_schemas).decoded))
    if values.schema is None:
        return "string"
    fields = field_types(values.schema)
    return None if fields is None else _struct(fields)


def _struct(fields: dict[str, object]) -> dict[str, object]:
    return {"type": "struct", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def _of_arrow(kind: pa.DataType) -> object:
    """Returns a type of an Avro schema; None if it is not known."""
    if pa.types.is_struct(kind):
        return _struct({field.name: _of_arrow(field.type) for field in kind})
    if pa.types.is_map(kind):
        return {"type": "map", "keyType": _of_arrow(kind.key_type), "valueType": _of_arrow(kind.item_type)}
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _of_arrow(kind.value_type)}
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _SPARK_NAMES.get(kind)


def _is_known(kind: object) -> bool:
    """Returns whether a type has no part that only Spark can judge."""
    if not isinstance(kind, dict):
        return isinstance(kind, str) and _LEAF.fullmatch(kind) is not None
    if kind.get("type") == "struct":
        fields = kind.get("fields")
        return isinstance(fields, list) and all(
            isinstance(one, dict) and isinstance(one.get("name"), str) and _is_known(one.get("type")) for one in fields
        )
    parts = {"array": ("elementType",), "map": ("keyType", "valueType")}.get(str(kind.get("type")), ("",))
    return all(_is_known(kind.get(part)) for part in parts)
