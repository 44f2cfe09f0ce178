"""The columns of an Iceberg table: from those of a pipeline, and the field ids in the Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odradek.core.errors import ConfigError
from odradek.pipelines.commit.columns import RowColumns
from odradek.pipelines.commit.state import ANOTHER_TABLE, NEVER_NULL
from odradek.pipelines.files.file_layouts import LaidOutRows
from odradek.pipelines.iceberg.column_changes import plain_columns
from odradek.pipelines.iceberg.partitions import PartitionTransform, parts_of
from odradek.text.printable import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.types import IcebergType, NestedField

_ID = b"PARQUET:field_id"
VERSIONS = (2,)
"""The format versions of tables to which pipelines write. Version 1 has no sequence numbers."""


def nullable(columns: pa.Schema) -> pa.Schema:
    """Returns the columns, all of which may be null, with all their parts except the keys of maps."""
    return pa.schema([pa.field(field.name, _nullable(field.type)) for field in columns])


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_nullable(kind.key_type), _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _nullable(kind.value_type)))
    return kind


def schema_of(columns: pa.Schema) -> Schema:
    """Returns the schema of a new table with these columns. Raises ConfigError for a type that Iceberg lacks."""
    from pyiceberg.io.pyarrow import _ConvertToIcebergWithoutIDs, visit_pyarrow
    from pyiceberg.schema import assign_fresh_schema_ids

    try:
        return assign_fresh_schema_ids(visit_pyarrow(columns, _ConvertToIcebergWithoutIDs()))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ConfigError(f"an Iceberg table cannot have these columns: {one_line(error)}") from error


def spec_of(schema: Schema, transforms: Sequence[PartitionTransform]) -> PartitionSpec:
    """Returns the partition spec of a new table."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields = [
        PartitionField(
            schema.find_field(one.column).field_id,
            PARTITION_FIELD_ID_START + at,
            parse_transform(one.iceberg),
            one.name,
        )
        for at, one in enumerate(transforms)
    ]
    return PartitionSpec(*fields)


def check_columns(
    table: IcebergMetadata,
    wanted: Schema,
    transforms: Sequence[PartitionTransform],
    name: str,
    rows: RowColumns | None = None,
) -> None:
    """Raises ConfigError if micro-batches with these columns and partitions cannot be added to a table. ``name``: its
    name for messages. ``rows``: how the columns may change; None: they may not."""
    version = table.metadata.format_version
    if version not in VERSIONS:
        raise ConfigError(
            f"the Iceberg table {name} has format version {version}, and pipelines write version {VERSIONS[-1]}: "
            + ("set its property format-version to 2" if version < VERSIONS[-1] else ANOTHER_TABLE)
        )
    columns = replace(rows or RowColumns({}), types=plain_columns(wanted))
    columns.check(plain_columns(table.schema()), name, may_lack=True)
    for field in table.schema().fields:
        if (path := _required(field)) is not None and path not in NEVER_NULL:
            raise ConfigError(
                f"the Iceberg table {name} has the required column {path}, which pipelines may leave null: make it "
                f"optional (ALTER TABLE … ALTER COLUMN {path} DROP NOT NULL), or {ANOTHER_TABLE}"
            )
    partitions = partitions_of(table)
    if partitions != [(one.column, one.iceberg) for one in transforms]:
        shown = ", ".join(column if kind == "identity" else f"{kind} of {column}" for column, kind in partitions)
        raise ConfigError(f"the Iceberg table {name} is partitioned by {shown or 'nothing'}")


def partitions_of(table: IcebergMetadata) -> list[tuple[str, str]]:
    """Returns the column and the transform of each field of the present partition spec."""
    schema = table.schema()
    return [
        (schema.find_column_name(field.source_id) or "?", str(field.transform))
        for field in table.spec().fields
        if str(field.transform) != "void"
    ]


def _required(field: NestedField) -> str | None:
    """Returns the path of a required field; None if there is none. Keys of maps are always required."""
    from pyiceberg.types import ListType, MapType, StructType

    name: str = field.name
    if field.required:
        return name
    kind: IcebergType = field.field_type
    parts: list[NestedField] = []
    if isinstance(kind, StructType):
        parts = list(kind.fields)
    elif isinstance(kind, ListType):
        parts = [kind.element_field]
    elif isinstance(kind, MapType):
        parts = [kind.value_field]
    inner = next((path for part in parts if (path := _required(part)) is not None), None)
    return None if inner is None else f"{name}.{inner}"


def columns_in_files(columns: pa.Schema, schema: Schema) -> pa.Schema:
    """Returns the columns with the field ids of a table's schema, and with the types that Iceberg has."""
    return pa.schema([_field(field, schema.find_field(field.name)) for field in columns])


def _field(field: pa.Field, held: NestedField) -> pa.Field:
    return pa.field(field.name, _type(field.type, held.field_type), metadata={_ID: str(held.field_id)})


def _type(kind: pa.DataType, held: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        by_name = {field.name: field for field in held.fields}
        return pa.struct([_field(field, by_name[field.name]) for field in kind])
    if pa.types.is_map(kind):
        key, item = _field(kind.key_field, held.key_field), _field(kind.item_field, held.value_field)
        return pa.map_(key.with_nullable(False), item)
    if pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field, held.element_field))
    if pa.types.is_integer(kind) and kind.bit_width < pa.int32().bit_width:
        return pa.int32()
    return kind


@dataclass(frozen=True)
class IcebergLayout:
    """How the workers lay out rows in files. ``columns``: those of the files, with field ids."""

    columns: pa.Schema
    transforms: tuple[PartitionTransform, ...] = ()

    def schema(self, columns: pa.Schema) -> pa.Schema:
        return self.columns

    def usable(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows as they are: every value can be that of a partition."""
        return rows

    def parts(self, rows: pa.RecordBatch) -> Iterator[LaidOutRows]:
        arrays = [
            column if column.type.equals(field.type) else column.cast(field.type)
            for column, field in zip(rows.columns, self.columns, strict=True)
        ]
        conformed = pa.RecordBatch.from_arrays(arrays, schema=self.columns)
        if not self.transforms:
            if rows.num_rows:
                yield LaidOutRows("", (), conformed)
            return
        yield from parts_of(conformed, self.transforms)
