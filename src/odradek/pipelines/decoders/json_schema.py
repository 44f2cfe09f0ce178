"""Translates the types of JSON values into the table of nodes that the kernel in ``json_columns.py`` reads."""

from __future__ import annotations

import pyarrow as pa

from odradek.pipelines.decoders import java_times, json_columns
from odradek.pipelines.decoders.value_columns import KernelSchema


def kernel_schema(kind: pa.DataType, time_zone: str) -> KernelSchema:
    """Returns the kernel's plan for a type.

    For a timestamp type with a time zone, ``json_rows.py`` reads the texts without a zone if ``time_zone`` is not UTC.
    """
    plan = KernelSchema(json_columns.read_columns, has_doubles=True, scratch=json_columns.SKIPPED)
    _add(plan, kind, 0, b"", 2 if time_zone in java_times.UTC_NAMES else 1)
    plan.finish()
    return plan


def _add(plan: KernelSchema, kind: pa.DataType, domain: int, name: bytes, zone: int) -> int:
    node = plan.add(kind, _leaf(kind, zone), domain, name)
    inner: list[tuple[bytes, pa.DataType]] = []
    if pa.types.is_struct(kind):
        inner = [(field.name.encode(), field.type) for field in kind]
    elif pa.types.is_map(kind):
        inner = [(b"", kind.key_type), (b"", kind.item_type)]
    elif pa.types.is_list(kind):
        inner = [(b"", kind.value_type)]
    if inner and not pa.types.is_struct(kind):
        domain = plan.open_domain(node)
    plan.set_children(node, [_add(plan, part, domain, name, zone) for name, part in inner])
    return node


def _leaf(kind: pa.DataType, zone: int) -> tuple[int, int, int]:
    """Returns a node's fields KIND, LOW and HIGH (see ``json_columns``)."""
    if pa.types.is_struct(kind):
        return json_columns.STRUCT, 0, 0
    if pa.types.is_map(kind):
        return json_columns.MAP, 0, 0
    if pa.types.is_list(kind):
        return json_columns.LIST, 0, 0
    if pa.types.is_integer(kind):
        most = 1 << (kind.bit_width - 1)
        return json_columns.INT, -most, most - 1
    if pa.types.is_decimal(kind):
        return json_columns.DECIMAL, kind.precision, kind.scale
    if pa.types.is_timestamp(kind):
        return json_columns.TIMESTAMP, 0 if kind.tz is None else zone, 0
    return _LEAVES[kind], 0, 0


_LEAVES = {
    pa.bool_(): json_columns.BOOL,
    pa.float64(): json_columns.DOUBLE,
    pa.float32(): json_columns.FLOAT,
    pa.string(): json_columns.STRING,
    pa.date32(): json_columns.DATE,
    pa.binary(): json_columns.ODD,
}
