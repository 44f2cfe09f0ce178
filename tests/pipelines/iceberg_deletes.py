"""Delete files of an Iceberg table, as engines with merge-on-read write them. pyiceberg reads them and cannot write
them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.typedef import Record

PATH, POSITION = 2147483546, 2147483545
"""The field ids of the columns of a file of position deletes."""


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def hide_positions(table: Table, file: str, positions: Sequence[int]) -> None:
    """Hides rows of a data file by their positions."""
    columns = pa.schema([_field("file_path", pa.string(), PATH), _field("pos", pa.int64(), POSITION)])
    rows = pa.table([pa.array([file] * len(positions)), pa.array(positions, pa.int64())], schema=columns)
    _hide(table, rows, DataFileContent.POSITION_DELETES, None)


def hide_equal(table: Table, column: str, values: Sequence[int]) -> None:
    """Hides the rows with these values of a column of 64 bits."""
    number = table.schema().find_field(column).field_id
    rows = pa.table([pa.array(values, pa.int64())], schema=pa.schema([_field(column, pa.int64(), number)]))
    _hide(table, rows, DataFileContent.EQUALITY_DELETES, [number])


def _field(name: str, kind: pa.DataType, number: int) -> pa.Field:
    return pa.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})


def _hide(table: Table, rows: pa.Table, content: DataFileContent, columns: list[int] | None) -> None:
    name = uuid.uuid4().hex
    path = f"{table.location()}/data/{name}-deletes.parquet"
    pq.write_table(rows, path)
    transaction = table.transaction()
    producer: Any = transaction._append_snapshot_producer({})
    file = DataFile.from_args(
        content=content, file_path=path, file_format=FileFormat.PARQUET, partition=Record(),
        record_count=rows.num_rows, file_size_in_bytes=Path(path).stat().st_size, equality_ids=columns,
        spec_id=table.metadata.default_spec_id,
    )  # fmt: skip
    entry = ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED, snapshot_id=producer.snapshot_id, sequence_number=None,
        file_sequence_number=None, data_file=file,
    )  # fmt: skip
    output = table.io.new_output(f"{table.location()}/metadata/{name}.avro")
    with _DeleteManifest(table.spec(), table.schema(), output, producer.snapshot_id, producer._compression) as manifest:
        manifest.add_entry(entry)
    added, others = manifest.to_manifest_file(), producer._manifests
    producer._manifests = lambda: [*others(), added]
    producer.commit()
    transaction.commit_transaction()
