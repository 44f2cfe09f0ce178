"""Changes of the columns of an Iceberg table: new columns and wider types, in the commit that adds the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odradek.pipelines.commit.columns import changes, struct_of

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table import Transaction
    from pyiceberg.types import IcebergType

_NAMES = {"int": "integer", "timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
"""Spark's names of types that have other ones in Iceberg."""


def plain_columns(schema: Schema) -> dict[str, object]:
    """Returns the columns of a schema, in the form of ``commit/columns``."""
    return {field.name: _plain(field.field_type) for field in schema.fields}


def _plain(kind: IcebergType) -> Any:
    from pyiceberg.types import ListType, MapType, StructType

    match kind:
        case StructType():
            return struct_of({field.name: _plain(field.field_type) for field in kind.fields})
        case ListType():
            return {"type": "array", "elementType": _plain(kind.element_type)}
        case MapType():
            return {"type": "map", "keyType": _plain(kind.key_type), "valueType": _plain(kind.value_type)}
        case _:
            name = str(kind).replace(" ", "")
            return _NAMES.get(name, name)


def schema_after(table: IcebergMetadata, wanted: Schema) -> Schema:
    """Returns the schema of a table after rows with these columns, with the field ids that the commit gives them."""
    transaction = table.transaction()
    add_columns(transaction, wanted)
    return transaction.table_metadata.schema()


def add_columns(transaction: Transaction, wanted: Schema) -> None:
    """Adds the columns that the table lacks, and makes types wider. ``check_columns`` has accepted the changes."""
    held = transaction.table_metadata.schema()
    found = [one for one in changes(plain_columns(held), plain_columns(wanted)) if one.new is not None]
    if not found:
        return
    update = transaction.update_schema()
    for change in found:
        kind = _type_at(wanted, change.path)
        if change.old is None:
            update.add_column(change.path, kind)
        else:
            update.update_column(change.path, kind)
    update.commit()


def _type_at(schema: Schema, path: tuple[str, ...]) -> IcebergType:
    """Returns the type of a field. A name may have dots, so each one is looked up in its struct."""
    kind: Any = schema.as_struct()
    for name in path:
        kind = next(field.field_type for field in kind.fields if field.name == name)
    found: IcebergType = kind
    return found
