"""The columns of a Parquet table for readers of its files.

A folder of files has no schema of its own: pyarrow takes that of the first file, so it would not see the columns that
later files have more. Delta tables and Iceberg tables have a schema, and need no help.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.columns import shown
from odradek.pipelines.commit.notes import BATCHES, STATE
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.formats.table_description import staging_of, stored_layout
from odradek.pipelines.formats.table_format import format_of
from odradek.pipelines.formats.target import values_of_layout
from odradek.pipelines.parquet.table import ParquetTable
from odradek.pipelines.values.column_types import column_types
from odradek.text.table_paths import check_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARROW = {
    "boolean": pa.bool_(), "byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64(),
    "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(), "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")


def table_schema(output: str | Path, spark: SparkSession | None = None) -> pa.Schema:
    """Returns the columns of a Parquet table that ``ingest`` or ``replay`` has written, for ``pyarrow.dataset``.

    ``spark``: the session that sees the table, if it is at a URI. Raises ConfigError if there is no such table, or if
    an earlier version of odradek has not noted the columns; StorageError.
    """
    check_uri("the output", str(output), workers=False)
    table = location_of(str(output), spark)
    layout = stored_layout(table)
    if layout.table_format != "parquet":
        title = format_of(layout.table_format).title
        raise ConfigError(f"{table.uri} is a table of the format {title}, which has a schema: open it as such a table")
    log = ParquetTable(table, table.child(STATE).child(BATCHES), staging_of(table), layout.partition_by)
    columns = log.columns() or column_types(values_of_layout(layout))
    if columns is None:
        raise ConfigError(f"the notes of {table.uri} do not have its columns yet: the next micro-batch notes them")
    return pa.schema([pa.field(name, _arrow_type(kind)) for name, kind in columns.items()])


def _arrow_type(kind: object) -> pa.DataType:
    if isinstance(kind, dict) and kind.get("type") == "struct":
        return pa.struct([pa.field(field["name"], _arrow_type(field["type"])) for field in kind["fields"]])
    if isinstance(kind, dict) and kind.get("type") == "array":
        return pa.list_(pa.field("element", _arrow_type(kind["elementType"])))
    if isinstance(kind, dict) and kind.get("type") == "map":
        return pa.map_(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"]))
    if (decimal := _DECIMAL.fullmatch(str(kind))) is not None:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if kind not in _ARROW:
        raise ConfigError(f"pyarrow has no type {shown(kind)}: read the table with Spark")
    return _ARROW[kind]
