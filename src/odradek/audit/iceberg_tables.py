"""An Iceberg table for an audit, as its caller has loaded it from a catalogue.

The rows are those that a reader sees: files of the current snapshot, without the rows that position deletes hide, and
with columns by the field ids of the files. So a column that was renamed, or that is in the partition only, is found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from odradek.audit.connect_commits import COMMIT_ID, SnapshotSummary, sinks_of
from odradek.audit.table_notes import noted_ranges, reads_committed
from odradek.audit.tables import AuditedTable, DataFileMissing, FilesMissing, OffsetColumns, TableUnreadable
from odradek.core.counts import counted
from odradek.core.errors import OdradekError, StorageError
from odradek.pipelines.commit.notes import RUN_PROPERTY, STATE_PROPERTY
from odradek.text.printable import one_line

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot


class IcebergRows(AuditedTable):
    """The rows of the current snapshot. ``uri``: the name of the table for messages. Raises TableUnreadable,
    StorageError; FilesMissing if the table has no file, and its notes say that it has read offsets."""

    def __init__(self, uri: str, table: Table) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._table = table
        with _reading(uri):
            self._tasks = _planned(table, uri)
            columns = schema_to_pyarrow(table.schema(), include_field_ids=False)
            committed = reads_committed(self._text_of)
        noted = noted_ranges(table.properties.get(STATE_PROPERTY, ""))
        super().__init__(
            uri,
            columns,
            [task.file.file_path for task in self._tasks],
            kind="iceberg",
            version=table.metadata.current_snapshot_id,
            notes=lambda partitions, topic_ids: noted,
            reads_committed=committed,
        )
        read = sum((one.end or 0) - (one.start or 0) for one in noted.values())
        if not self._tasks and read > 0:
            raise FilesMissing(
                f"{uri} has no data files, and its notes say that it has read {counted(read, 'offset')}: another"
                " writer has deleted the rows or has replaced the table. Set it back to an earlier snapshot, or read"
                " the topics into another table"
            )
        self._snapshots = {one.snapshot_id: one for one in table.metadata.snapshots}
        self.sinks = sinks_of(self._summaries())

    def read(self, number: int, columns: OffsetColumns) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan, _read_all_delete_files

        task, table = self._tasks[number], self._table
        chosen = columns.by_key
        with _reading(self.files[number]):
            scan = ArrowScan(table.metadata, table.io, table.schema().select(*chosen.values()), AlwaysTrue())
            hidden = _read_all_delete_files(table.io, [task])
            for batch in scan._record_batches_from_scan_tasks_and_deletes([task], hidden):
                parts = []
                for name in chosen.values():
                    head, *fields = self._path(name)
                    column = batch.column(head)
                    parts.append(pc.struct_field(column, fields) if fields else column)
                yield pa.RecordBatch.from_arrays(parts, names=list(chosen))

    def added_by(self, files: Collection[str]) -> Mapping[str, str]:
        """Returns which snapshot has added each of these files, and by which commit of Kafka Connect's sink."""
        from pyiceberg.manifest import ManifestContent

        named = zip(self._tasks, self.files, strict=True)
        wanted = {task.file.file_path: name for task, name in named if name in files}
        found: dict[str, list[str]] = {}
        snapshot = self._table.current_snapshot()
        if not wanted or snapshot is None:
            return {}
        with _reading(self.uri):
            for manifest in snapshot.manifests(self._table.io):
                if manifest.content != ManifestContent.DATA:
                    continue
                for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                    if entry.data_file.file_path in wanted:
                        name = wanted[entry.data_file.file_path]
                        found.setdefault(name, []).append(self._described(entry.snapshot_id))
        return {name: ", and by ".join(dict.fromkeys(found[name])) for name in sorted(found)}

    def _described(self, snapshot: int | None) -> str:
        known = None if snapshot is None else self._snapshots.get(snapshot)
        if known is None:
            return f"snapshot {snapshot}, which has expired"
        at = datetime.fromtimestamp(known.timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
        summary = _summary_of(known).summary
        by = ""
        if commit := summary.get(COMMIT_ID):
            by = f", commit {one_line(commit)} of Kafka Connect's sink"
        elif run := summary.get(RUN_PROPERTY):
            by = f", run {one_line(run)} of odradek"
        return f"snapshot {snapshot} of {at.replace('+00:00', 'Z')}{by}"

    def _summaries(self) -> list[SnapshotSummary]:
        """Returns the ancestors of the current snapshot that have not expired, oldest first."""
        at = self._table.current_snapshot()
        found: list[SnapshotSummary] = []
        while at is not None and len(found) < len(self._snapshots):
            found.append(_summary_of(at))
            at = None if at.parent_snapshot_id is None else self._snapshots.get(at.parent_snapshot_id)
        return found[::-1]

    def _text_of(self, name: str) -> str | None:
        """Returns the text of a file in the table's folder; None if there is none."""
        file = self._table.io.new_input(f"{self._table.location().rstrip('/')}/{name}")
        if not file.exists():
            return None
        with file.open() as content:
            text: str = content.read().decode()
        return text


def _planned(table: Table, uri: str) -> list[FileScanTask]:
    try:
        return sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
    except (
        ValueError,
        NotImplementedError,
    ) as error:  # by its version, pyiceberg refuses such deletes with one of them
        if "equality delete" not in one_line(error):
            raise
        raise TableUnreadable(
            f"{uri} has equality deletes, which pyiceberg cannot read: rewrite the data files of the table "
            "(rewrite_data_files removes such deletes), and verify it then"
        ) from error


def _summary_of(snapshot: Snapshot) -> SnapshotSummary:
    summary = {} if snapshot.summary is None else dict(snapshot.summary.additional_properties)
    return SnapshotSummary(snapshot.snapshot_id, summary)


@contextlib.contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turns the errors of pyiceberg and Arrow into ours, with one line."""
    import pyarrow as pa

    try:
        yield
    except OdradekError:
        raise
    except FileNotFoundError as error:
        raise DataFileMissing(f"{what}: {one_line(error)}") from error
    except OSError as error:
        raise StorageError(f"{what} cannot be read: {one_line(error)}") from error
    except (ValueError, TypeError, NotImplementedError, pa.ArrowException) as error:  # of files that another tool wrote
        raise TableUnreadable(f"{what}: {one_line(error)}") from error
    except Exception as error:
        if not type(error).__module__.startswith("pyiceberg"):
            raise
        raise TableUnreadable(f"{what}: {one_line(error)}") from error


__all__ = ["IcebergRows"]
