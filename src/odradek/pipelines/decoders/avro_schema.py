"""Translates an Avro schema into the table of nodes that the kernel in ``avro_columns.py`` reads."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from odradek.pipelines.decoders import avro_columns, json_columns
from odradek.pipelines.decoders.value_columns import KernelSchema
from odradek.pipelines.values.avro_shape import logical_type

_PRIMITIVES = {
    "int": (avro_columns.INT, -(1 << 31), (1 << 31) - 1),
    "long": (avro_columns.LONG, 0, 1),
    "boolean": (avro_columns.BOOL, 0, 0),
    "float": (avro_columns.FLOAT, 0, 0),
    "double": (avro_columns.DOUBLE, 0, 0),
    "bytes": (avro_columns.BYTES, 0, 0),
    "string": (avro_columns.STRING, 0, 0),
}


def kernel_schema(schema: object, kind: pa.DataType, header: int) -> KernelSchema | None:
    """Returns the kernel's plan for values of this schema, or None if the kernel cannot read such values.

    ``kind``: the Arrow type of the values. ``header``: the number of bytes before each value.
    """
    plan = KernelSchema(avro_columns.read_columns, has_doubles=False, scratch=header)
    try:
        _add(plan, schema, kind, {}, 0)
    except _Unusual:
        return None
    plan.finish()
    return plan


class _Unusual(Exception):
    """The kernel cannot read values of this schema, for example of a union other than null and one type."""


def _add(plan: KernelSchema, schema: Any, kind: pa.DataType, named: dict[str, object], domain: int) -> int:
    nullable = avro_columns.NOT_NULL
    if isinstance(schema, list):
        if len(schema) != 2 or schema.count("null") != 1:
            raise _Unusual
        nullable = avro_columns.NULL_FIRST if schema[0] == "null" else avro_columns.NULL_SECOND
        schema = schema[1 - schema.index("null")]
    while not isinstance(schema, dict) or isinstance(schema["type"], dict | list) or schema["type"] in named:
        if isinstance(schema, list):
            raise _Unusual
        if isinstance(schema, str):
            schema = named.get(schema, {"type": schema})
        elif isinstance(schema["type"], str):
            schema = named[schema["type"]]
        else:
            schema = schema["type"]
    if "name" in schema:
        named[schema["name"]] = schema
    node = plan.add(kind, _leaf(schema, kind), domain)
    if schema["type"] in ("record", "error"):
        parts = [(field["type"], kind.field(at).type) for at, field in enumerate(schema["fields"])]
        children = [_add(plan, part, inner, named, domain) for part, inner in parts]
    elif schema["type"] == "array":
        children = [_add(plan, schema["items"], kind.value_type, named, plan.open_domain(node))]
    elif schema["type"] == "map":
        domain = plan.open_domain(node)
        key = plan.add(pa.string(), _PRIMITIVES["string"], domain)
        children = [key, _add(plan, schema["values"], kind.item_type, named, domain)]
    else:
        children = []
        if schema["type"] == "enum":
            plan.symbols[node] = pa.array(schema["symbols"], pa.string())
    plan.set_children(node, children)
    plan.mark(node, avro_columns.NULLABLE, nullable)
    return node


def _leaf(schema: dict[str, Any], kind: pa.DataType) -> tuple[int, int, int]:
    """Returns the fields KIND, LOW and HIGH of a node; ``avro_columns`` explains those of leaves."""
    match schema["type"]:
        case "record" | "error":
            return json_columns.STRUCT, 0, 0
        case "array":
            return json_columns.LIST, 0, 0
        case "map":
            return json_columns.MAP, 0, 0
        case "enum":
            return avro_columns.ENUM, 0, len(schema["symbols"]) - 1
        case _ if pa.types.is_decimal(kind):
            return avro_columns.DECIMAL, kind.precision, int(schema["size"]) if schema["type"] == "fixed" else -1
        case "fixed":
            return avro_columns.FIXED, 0, int(schema["size"])
        case "long" if logical_type(schema).endswith("timestamp-millis"):
            return avro_columns.LONG, 0, 1000
        case "int" if pa.types.is_timestamp(kind):
            raise _Unusual
        case name:
            return _PRIMITIVES[name]
