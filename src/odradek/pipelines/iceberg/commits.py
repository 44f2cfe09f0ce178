"""SnapshotCommits to an Iceberg table: a snapshot, the notes and the tag in one change of the catalogue.

The catalogue makes the change only if ``main`` and the tag are where this run has seen them, and if the columns are
those of the files. pyiceberg's own transactions repeat a commit on newer metadata without a look at the notes, so they
are not used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.commit.notes import STATE_PROPERTY
from odradek.pipelines.commit.operations import TableChange
from odradek.pipelines.commit.state import TableState
from odradek.pipelines.files.staging import StagedFile
from odradek.pipelines.iceberg.catalogs import TableName, catalog_errors, load
from odradek.pipelines.iceberg.column_changes import add_columns
from odradek.pipelines.iceberg.data_files import manifest_entries
from odradek.pipelines.iceberg.notes import TAG, Note, SnapshotNote, TableView

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergMetadata
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

_TRIES = 8
PROPERTIES = {
    "format-version": "2",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.parquet.compression-codec": "zstd",
}
"""The properties of a new table. Without the second one, each micro-batch would add a manifest for ever; without the
third, a metadata file."""


@dataclass(frozen=True)
class Seen:
    """A table as a run has read it, with its note."""

    table: IcebergMetadata
    note: Note


def view_of(metadata: TableMetadata) -> TableView:
    """Returns what the metadata of a table say of our notes."""
    refs = metadata.refs
    main = metadata.current_snapshot_id
    tag = refs[TAG].snapshot_id if TAG in refs else None
    snapshots = {one.id: one for one in _notes_of(metadata)}
    return TableView(
        getattr(metadata, "last_sequence_number", 0), main, tag, snapshots, metadata.properties.get(STATE_PROPERTY)
    )


def _notes_of(metadata: TableMetadata) -> Iterator[SnapshotNote]:
    for one in metadata.snapshots:
        summary = {} if one.summary is None else dict(one.summary.additional_properties)
        yield SnapshotNote(one.snapshot_id, one.parent_snapshot_id, summary)


def older_snapshots(table: IcebergMetadata) -> Iterator[list[SnapshotNote]]:
    """Yields the snapshots of each earlier metadata file, newest first, up to the first one that is not there."""
    from pyiceberg.serializers import FromInputFile

    for entry in reversed(table.metadata.metadata_log):
        try:
            earlier = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (OSError, ValueError):  # removed, as the table's properties say
            return
        yield list(_notes_of(earlier))


def create(catalog: Catalog, name: TableName, location: str, schema: Schema, spec: PartitionSpec) -> IcebergMetadata:
    """Returns the table, which is created if it does not exist. Raises StorageError."""
    from pyiceberg.exceptions import TableAlreadyExistsError

    failed = f"the Iceberg table {name.table} cannot be created"
    with catalog_errors(failed), contextlib.suppress(TableAlreadyExistsError):
        return catalog.create_table(
            name.identifier, schema, location=location, partition_spec=spec, properties=PROPERTIES
        )
    found = load(catalog, name)
    if found is None:
        raise StorageError(f"the Iceberg table {name.table} was removed while it was created: run the command again")
    return found


class SnapshotCommits:
    """The commits of one run to a table."""

    def __init__(self, catalog: Catalog, name: TableName) -> None:
        self._catalog = catalog
        self._name = name

    def commit(
        self,
        seen: Seen,
        base: TableState,
        change: TableChange,
        files: Sequence[StagedFile],
        columns: Schema | None = None,
    ) -> bool:
        """Adds a snapshot with these files, the notes and the tag. ``columns``: those of the rows, which the table gets
        with the same commit if it lacks them. Returns whether it was added; False: another writer
        was faster. Raises StorageError if that is not known, or if the table cannot be written."""
        from pyiceberg.table.update import SetPropertiesUpdate, SetSnapshotRefUpdate

        table = seen.table
        with catalog_errors(f"the Iceberg table {self._name.table} cannot be written"):
            transaction = table.transaction()
            if columns is not None:
                add_columns(transaction, columns)
            producer = transaction._append_snapshot_producer({})
            note, summary = seen.note.after(change, base, producer.snapshot_id)
            producer.snapshot_properties = summary
            for file in manifest_entries(table, transaction.table_metadata.schema(), files):
                producer.append_data_file(file)
            producer.commit()  # into the transaction, which is not sent
        updates = (
            *transaction._updates,
            SetPropertiesUpdate(updates={STATE_PROPERTY: note.text}),
            SetSnapshotRefUpdate.model_validate({"ref-name": TAG, "type": "tag", "snapshot-id": producer.snapshot_id}),
        )
        requirements = tuple(_requirements(table))
        for _ in range(_TRIES):
            now = self._sent(table, requirements, updates)
            if now is None or now.snapshot_by_id(producer.snapshot_id) is not None:
                return True  # in the second case, a client has repeated a request whose reply was lost
            before, after = view_of(table.metadata), view_of(now)
            if before.tag != after.tag:  # this commit can never be made any more
                producer._clean_all_uncommitted()
            self._check_unchanged(table.metadata, now)
            if (before.sequence, before.main, before.tag) != (after.sequence, after.main, after.tag):
                return False
        raise StorageError(f"other writers change the Iceberg table {self._name.table} all the time")

    def _sent(
        self, table: IcebergMetadata, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> TableMetadata | None:
        """Sends a commit. Returns None if the catalogue has made it, and the present metadata if it has refused it.
        Raises StorageError if that is not known."""
        from pyiceberg.exceptions import CommitFailedException

        with catalog_errors(f"the commit to the Iceberg table {self._name.table} has no answer"):
            try:
                self._catalog.commit_table(table, requirements, updates)
            except (CommitFailedException, ValueError):
                pass
            else:
                return None
        now = load(self._catalog, self._name)
        if now is None or now.metadata.table_uuid != table.metadata.table_uuid:
            raise StorageError(f"the Iceberg table {self._name.table} was dropped or replaced while a run wrote it")
        return now.metadata

    def _check_unchanged(self, before: TableMetadata, now: TableMetadata) -> None:
        """Raises ConfigError if another writer has changed what the files depend on."""
        if (before.current_schema_id, before.default_spec_id) != (now.current_schema_id, now.default_spec_id):
            raise changed_meanwhile(self._name.table)


def changed_meanwhile(name: str) -> ConfigError:
    """Returns the error about files that do not fit the table any more."""
    return ConfigError(
        f"another writer has changed the columns or the partitions of the Iceberg table {name} while a micro-batch was "
        "written. Nothing was added: run the command again"
    )


def _requirements(table: IcebergMetadata) -> Iterator[TableRequirement]:
    from pyiceberg.table.update import (
        AssertCurrentSchemaId,
        AssertDefaultSpecId,
        AssertRefSnapshotId,
        AssertTableUUID,
    )

    metadata = table.metadata
    yield AssertTableUUID(uuid=metadata.table_uuid)
    yield AssertCurrentSchemaId.model_validate({"current-schema-id": metadata.current_schema_id})
    yield AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": metadata.current_snapshot_id})
    yield AssertDefaultSpecId.model_validate({"default-spec-id": metadata.default_spec_id})
    if metadata.snapshots:  # without a snapshot, only the branch main may be demanded
        tag = metadata.refs.get(TAG)
        yield AssertRefSnapshotId.model_validate({"ref": TAG, "snapshot-id": None if tag is None else tag.snapshot_id})
