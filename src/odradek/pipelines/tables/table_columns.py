"""The columns of a table beside those of a run: compared by structure, before a record is read.

The table's log notes the columns with each micro-batch, and the commit compares once more (``commit/columns``). For a
table of an earlier version, which has no note, the options with which it was begun give them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.pipelines.commit.columns import Columns, columns_of
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_description import layout_of_table
from odradek.pipelines.formats.table_sink import TableSink
from odradek.pipelines.formats.target import Target, values_of_layout
from odradek.pipelines.values.column_types import column_types
from odradek.pipelines.values.record_values import Values

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class TableColumns:
    """The comparison for one run. ``table``: its location. ``writer``: the table's log."""

    def __init__(self, target: Target, table: Location, writer: TableSink) -> None:
        self._target = target
        self._table = table
        self._writer = writer

    def check(self) -> None:
        """Compares as far as that needs no Spark. Raises ConfigError, StorageError."""
        types = column_types(self._target.values)
        if types is not None:
            self._target.row_columns(types).check(self._held(column_types), self._table.uri)

    def begin(self, schema: StructType, schema_of: Callable[[Values], StructType]) -> None:
        """Compares the columns of the rows, and gives them to the table. ``schema_of``: returns the columns of a table
        with other values. Raises ConfigError, StorageError."""
        rows = self._target.row_columns(_plain(schema))
        rows.check(self._held(lambda values: column_types(values) or _plain(schema_of(values))), self._table.uri)
        self._writer.row_columns = rows

    def _held(self, known: Callable[[Values], Columns | None]) -> Columns | None:
        """Returns the columns of the table's rows; None if there are none, or if they are not known. ``known``: those
        of a table with these values."""
        noted = self._writer.columns()
        if noted is not None:
            return noted
        layout = layout_of_table(self._table)
        if layout is None or layout.schema == self._target.values.schema or not self._writer.has_records():
            return None
        return known(values_of_layout(layout))


def _plain(schema: StructType) -> dict[str, Any]:
    return columns_of(schema.jsonValue())
