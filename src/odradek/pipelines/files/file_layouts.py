"""How the rows of a table are laid out in files: their columns, and the parts that have files of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from odradek.pipelines.files.partition_folders import by_folder, check_partition_columns
from odradek.pipelines.files.partition_values import usable_rows


class LaidOutRows(NamedTuple):
    """Rows that go into the same files. ``folder``: where; empty for the table's own folder. ``values``: those of the
    partition, for formats whose log has them."""

    folder: str
    values: tuple[Any, ...]
    rows: pa.RecordBatch


class FileLayout(Protocol):
    """A layout. The workers get it in a pickle."""

    def schema(self, columns: pa.Schema) -> pa.Schema:
        """Returns the columns in files. ``columns``: those of the table. Raises ConfigError."""
        ...

    def usable(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows, with an error in those that have no place. ``records``: the records of the rows. Raises
        BadRecords."""
        ...

    def parts(self, rows: pa.RecordBatch) -> Iterator[LaidOutRows]:
        """Yields the parts of the rows."""
        ...


@dataclass(frozen=True)
class FolderLayout:
    """Partition folders, whose names have the values of ``columns``. The files do not have these columns."""

    columns: tuple[str, ...] = ()

    def schema(self, columns: pa.Schema) -> pa.Schema:
        check_partition_columns(columns, self.columns)
        return pa.schema([field for field in columns if field.name not in self.columns])

    def usable(self, rows: pa.RecordBatch, records: pa.RecordBatch) -> pa.RecordBatch:
        return usable_rows(rows, records, self.columns)

    def parts(self, rows: pa.RecordBatch) -> Iterator[LaidOutRows]:
        for folder, part in by_folder(rows, self.columns):
            yield LaidOutRows(folder, (), part)
