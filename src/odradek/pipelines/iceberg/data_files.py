"""The data files of an Iceberg table: what its manifests say of the files that the workers have written."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from odradek.pipelines.files.file_names import last_part
from odradek.pipelines.files.staging import StagedFile

if TYPE_CHECKING:
    import pyarrow.dataset as ds
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table.snapshots import Snapshot

FOLDER = "data"
"""The folder of data files in the table's location."""


def manifest_entries(table: IcebergMetadata, schema: Schema, files: Sequence[StagedFile]) -> Iterator[DataFile]:
    """Yields what manifests say of the files: counts, sizes and bounds by field id, and the values of the partition.
    ``schema``: that of the table after the files are added."""
    from pyiceberg.io.pyarrow import (
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metadata = table.metadata
    plan, ids = compute_statistics_plan(schema, metadata.properties), parquet_path_to_id_mapping(schema)
    for file in files:
        assert file.footer is not None
        found = data_file_statistics_from_parquet_metadata(file.footer, plan, ids)
        yield DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path_of(table, file.name),
            file_format=FileFormat.PARQUET,
            partition=Record(*file.partition),
            file_size_in_bytes=file.size,
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **found.to_serialized_dict(),
        )


def path_of(table: IcebergMetadata, name: str) -> str:
    """Returns the path of one of our data files. ``name``: relative to the folder of data files."""
    return f"{table.location().rstrip('/')}/{FOLDER}/{name}"


def current_files(table: IcebergMetadata) -> list[str]:
    """Returns the paths of the data files of the current snapshot."""
    snapshot = table.metadata.current_snapshot()
    return [] if snapshot is None else list(_files_of(table, [snapshot]))


def all_names(table: IcebergMetadata) -> set[str]:
    """Returns the names of the data files of all snapshots, of all branches and tags, without folders."""
    return {last_part(path) for path in _files_of(table, table.metadata.snapshots)}


def _files_of(table: IcebergMetadata, snapshots: Collection[Snapshot]) -> Iterator[str]:
    from pyiceberg.manifest import ManifestContent

    read: set[str] = set()
    for snapshot in snapshots:
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path not in read and manifest.content == ManifestContent.DATA:
                read.add(manifest.manifest_path)
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                    yield entry.data_file.file_path


def dataset_of(table: IcebergMetadata) -> ds.FileSystemDataset | None:
    """Returns the rows in the files of the current snapshot, also those that delete files hide; None if it has no
    files. A row that was deleted must not come again."""
    import pyarrow.dataset as ds
    from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow

    paths = [PyArrowFileIO.parse_location(path) for path in current_files(table)]
    if not paths:
        return None
    io = table.io if isinstance(table.io, PyArrowFileIO) else PyArrowFileIO(table.io.properties)
    scheme, host, _ = paths[0]
    columns = schema_to_pyarrow(table.schema(), include_field_ids=False)
    found: ds.FileSystemDataset = ds.dataset(
        [path for _, _, path in paths], schema=columns, format="parquet", filesystem=io.fs_by_scheme(scheme, host)
    )
    return found
