"""An Iceberg table that gets each micro-batch exactly once.

The workers write the Parquet files of a micro-batch, with the table's field ids, into its folder ``data``. One commit
to the catalogue adds them as a snapshot, together with the table's state (``iceberg/notes``). ``commit/machine`` has
the order and the rules. The files of a micro-batch that was killed before its commit belong to no snapshot. The names
of these files have the number and the id of the run, and a later run removes the files.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.logs import VersionLog
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.operations import LogPosition, NewFiles, TableChange
from odradek.pipelines.commit.state import (
    ANOTHER_TABLE,
    NO_RUN,
    Added,
    BatchPlan,
    RunTag,
    TableRefused,
    TableState,
)
from odradek.pipelines.files.file_names import OURS, REPLAYS, is_named, last_part, prefix_of
from odradek.pipelines.files.row_ends import row_ends
from odradek.pipelines.files.staging import StagedFile
from odradek.pipelines.files.table_rows import Marks, Spans, marks_in
from odradek.pipelines.filesystems.location import Location
from odradek.pipelines.formats.table_sink import VersionedTableSink, next_number
from odradek.pipelines.iceberg.catalogs import TablePlace, catalog_errors, load, open_catalog
from odradek.pipelines.iceberg.column_changes import schema_after
from odradek.pipelines.iceberg.columns import (
    IcebergLayout,
    check_columns,
    columns_in_files,
    nullable,
    schema_of,
    spec_of,
)
from odradek.pipelines.iceberg.commits import Seen, SnapshotCommits, changed_meanwhile, create, older_snapshots, view_of
from odradek.pipelines.iceberg.data_files import FOLDER, current_files, dataset_of
from odradek.pipelines.iceberg.leftovers import IcebergLeftovers
from odradek.pipelines.iceberg.notes import AncestorEvidence, EntryFiles, Note, read
from odradek.pipelines.iceberg.partitions import check_transforms, transforms_of

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from pyiceberg.table import Table as IcebergMetadata

    from odradek.pipelines.files.batch_rows import BatchRows

_NO_TABLE = LogPosition(-1, TableState(is_whole=True))


@dataclass(frozen=True)
class _Written:
    """The files of a micro-batch, and the layout with which they were written; None: there are no files."""

    files: Sequence[StagedFile]
    layout: IcebergLayout | None = None


class IcebergTable(VersionedTableSink):
    """The Iceberg table at a place, whose location is ``folder``. ``partition_by``: as a user gives it. ``run``: the id
    of the run."""

    _NO_FILES = NewFiles(_Written([]), Added(0, 0, 0, 0))

    def __init__(
        self, place: TablePlace, folder: Location, partition_by: Sequence[str] = (), run: str | None = None
    ) -> None:
        super().__init__()
        name = place.name
        self._name = name
        self._shown = name.table
        self._catalog = open_catalog(name)
        self._table = folder
        self._data = folder.child(FOLDER)
        self._location = place.location
        self._transforms = transforms_of(partition_by)
        self._id = run or uuid.uuid4().hex
        self._commits = SnapshotCommits(self._catalog, name)
        self._leftovers = IcebergLeftovers(self._data, self._load)
        self._columns: pa.Schema | None = None
        self._gone: Collection[str] = ()
        self._has_unpublished = False

    def _load(self) -> IcebergMetadata | None:
        return load(self._catalog, self._name)

    # --- the run

    def prepare(
        self,
        dead: Collection[str] | None = None,
        take_number: Callable[[int], int] = next_number,
        gone: Collection[str] = (),
    ) -> None:
        self._gone = {*gone, *(dead or ())}
        self.check_notes("")
        self._begin_run(take_number)
        self._drive(self._machine.begin())

    def _begin_run(self, take_number: Callable[[int], int] = next_number) -> None:
        tag = RunTag(take_number(self._newest().state.run.number), self._id[:8])
        self._run = CommitMachine(tag, VersionLog(f"Iceberg table {self._shown}"), self._shown)

    def has_records(self) -> bool:
        state = self.state()
        return bool(state.queries) or state.lost is not None

    def begin(self, columns: pa.Schema) -> None:
        """Notes the columns of micro-batches. Raises ConfigError if Iceberg lacks a type of them, or if an existing
        table lacks a column, or has other types or other partitions. Raises StorageError."""
        self._columns = nullable(columns)
        self._layout(self._columns, self._load())

    def add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        """``begin`` must have run before."""
        with self._adding:
            return self._add(rows, plan)

    def check_notes(self, query: str) -> None:
        """Raises TableRefused if there are files of ours, and no notes."""
        table = self._load()
        if table is None:
            if self._leftovers.newest_batch():
                raise self._lost(f"{self._data.uri} has files of later micro-batches than the first one, and the "
                                 "catalogue does not have the table")  # fmt: skip
            return
        if view_of(table.metadata).note is not None or self._state_of(table).state.run != NO_RUN:
            return
        with self._reading():
            ours = next((path for path in current_files(table) if is_named(path, OURS)), None)
        if ours is not None:
            raise self._lost(f"the Iceberg table {self._shown} has the file {last_part(ours)} and no notes of it")

    def _lost(self, what: str) -> TableRefused:
        return TableRefused(
            f"{what}: the table was dropped or replaced, or its properties were removed. Nothing was added, and the "
            f"group was not committed. Restore the table, or {ANOTHER_TABLE}"
        )

    def row_ends(
        self, partitions: Collection[TopicPartition] | None = None, left_out: re.Pattern[str] = REPLAYS
    ) -> dict[TopicPartition, int]:
        with self._reading():
            rows = self._dataset()
            return {} if rows is None else row_ends(rows, partitions, left_out)

    def marks(self, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
        with self._reading():
            rows = self._dataset()
            return {} if rows is None else marks_in(rows, spans, files_of)

    def _dataset(self) -> ds.FileSystemDataset | None:
        table = self._load()
        return None if table is None else dataset_of(table)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        with catalog_errors(f"the Iceberg table {self._shown} cannot be read"):
            yield

    # --- the operations of the machine

    def _newest(self, plan: BatchPlan | None = None) -> LogPosition:
        table = self._load()
        return _NO_TABLE if table is None else self._state_of(table)

    def _state_of(self, table: IcebergMetadata) -> LogPosition:
        view = view_of(table.metadata)
        evidence = AncestorEvidence(
            lambda: older_snapshots(table),
            lambda files: _has_files(table, files),
            lambda: not all(is_named(path, REPLAYS) for path in current_files(table)),
        )
        with self._reading():
            state, note = read(view, self._shown, evidence)
        return LogPosition(view.sequence, state, content=Seen(table, note))

    def _discard(self, files: NewFiles) -> None:
        self._leftovers.remove(file.name for file in files.content.files)

    def _remove_leftovers(self, can_publish: Callable[[RunTag], bool]) -> None:
        if self._gone or self._has_unpublished:
            self._leftovers.remove_ended(can_publish)

    def _has_leftovers(self) -> bool:
        if not self._gone:
            return False
        found = self._newest()
        return found.content is not None and self._leftovers.has_any_of(found.state.may_publish)

    def _write(self, plan: BatchPlan) -> NewFiles:
        rows, columns = self._rows, self._columns
        assert rows is not None
        assert columns is not None
        layout = self._layout(columns, self._load())
        self._has_unpublished = True
        files = rows.write(self._data, f"{prefix_of(plan.batch, plan.query)}-{self._machine.run.text}", layout)
        return NewFiles(_Written(files, layout), Added.of(files), dict(rows.tails))

    def _layout(self, columns: pa.Schema, table: IcebergMetadata | None) -> IcebergLayout:
        """Returns how files are written for a table, or for a new one. Raises ConfigError if the table has other
        columns or partitions."""
        check_transforms(columns, self._transforms)
        schema = wanted = schema_of(columns)
        if table is not None:
            check_columns(table, wanted, self._transforms, self._shown, self.row_columns)
            schema = schema_after(table, wanted)
        return IcebergLayout(columns_in_files(columns, schema), self._transforms)

    def _commit(self, base: LogPosition, change: TableChange) -> bool:
        seen: Seen | None = base.content
        written: _Written = _Written([]) if change.files is None else change.files.content
        if seen is None:
            assert self._columns is not None
            schema = schema_of(self._columns)
            made = create(self._catalog, self._name, self._location, schema, spec_of(schema, self._transforms))
            if made.metadata.snapshots:  # another writer has created it and written to it
                return False
            seen = Seen(made, Note())
        wanted = None
        if written.layout is not None:
            assert self._columns is not None
            wanted = schema_of(self._columns)
            present = self._layout(self._columns, seen.table)
            if not present.columns.equals(written.layout.columns, check_metadata=True):
                raise changed_meanwhile(self._shown)
        is_added = self._commits.commit(seen, base.state, change, written.files, wanted)
        if is_added and change.files is not None:
            self._has_unpublished = False
        return is_added


def _has_files(table: IcebergMetadata, files: EntryFiles) -> bool:
    prefix = f"{prefix_of(files.batch, files.query)}-{files.run.text}-"
    return sum(last_part(path).startswith(prefix) for path in current_files(table)) == files.number
