"""A Delta table that gets each micro-batch exactly once, without a jar.

If the workers write a micro-batch (``RangeRows``), they write its Parquet files directly into the table's folder. If
Spark writes it (``SparkRows``), the files are first written beside the table, as for ``parquet/table``, and then moved
into the table's folder. One table commit by the ``deltalake`` package adds the files to the table's log, together with
the table's state as ``txn`` actions (``delta/state``). ``commit/machine`` has the order and the rules. The files of a
micro-batch that was killed before its table commit belong to no version of the table. The names of these files have the
number and the id of the run, and a later run removes the files.

The alternative, ``delta-spark``, needs another jar for each version of Spark. The newest, 4.4.0 for Spark 4.2, fails on
Spark 4.3 with a ``NoSuchMethodError``.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import unquote

from odradek.core.errors import ConfigError, StorageError
from odradek.core.ids import LogTail, TopicPartition
from odradek.pipelines.commit.columns import Columns, RowColumns, columns_of
from odradek.pipelines.commit.logs import VersionLog
from odradek.pipelines.commit.machine import CommitMachine
from odradek.pipelines.commit.operations import LogPosition, NewFiles, TableChange
from odradek.pipelines.commit.state import Added, BatchPlan, RunTag, TableRefused, TableState
from odradek.pipelines.delta import state as delta_state
from odradek.pipelines.delta.commit_conflicts import CommitConflicts
from odradek.pipelines.delta.commit_history import with_history
from odradek.pipelines.delta.leftovers import DeltaLeftovers
from odradek.pipelines.delta.log_errors import text_of, unreadable
from odradek.pipelines.delta.protocol import check_supported
from odradek.pipelines.delta.restores import DeltaRestores, StateLog
from odradek.pipelines.delta.schema_changes import (
    ColumnVersion,
    columns_in,
    noted_names,
    own_columns,
    schema_after,
    write_version,
)
from odradek.pipelines.files.file_layouts import FolderLayout
from odradek.pipelines.files.file_names import REPLAYS, prefix_of, table_file_name
from odradek.pipelines.files.partition_folders import NULL, check_partition_columns
from odradek.pipelines.files.row_ends import row_ends
from odradek.pipelines.files.staging import StagedFile, Staging
from odradek.pipelines.files.table_rows import Marks, Spans, marks_in
from odradek.pipelines.filesystems.location import FileStatus, Location
from odradek.pipelines.formats.table_sink import VersionedTableSink, next_number
from odradek.text.json_depth import parse_json
from odradek.text.table_paths import DELTA_LOG, check_descriptors, delta_uri

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import DeltaTable as Log
    from deltalake import Schema
    from deltalake.transaction import AddAction, Transaction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from odradek.pipelines.files.batch_rows import BatchRows

_OFFSET_COLUMNS = {"topic": "string", "partition": "integer", "offset": "long"}
_NO_LOG = LogPosition(-1, TableState(is_whole=True))


class DeltaTable(VersionedTableSink):
    """The Delta table at a location. ``options``: deltalake's options for its storage. ``run``: the id of the run.
    ``has_log``: whether the table is known to have a log. ``has_lock``: whether deltalake takes a lock for its commits,
    which no other writer may leave out."""

    _NO_FILES = NewFiles([], Added(0, 0, 0, 0))

    def __init__(
        self,
        table: Location,
        staging: Location,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        run: str | None = None,
        *,
        has_log: bool = False,
        has_lock: bool = False,
    ) -> None:
        super().__init__()
        self._has_log = has_log
        self._has_lock = has_lock
        self._table = table
        self._staging = Staging(staging)
        self._id = run or uuid.uuid4().hex
        self._partition_by = list(partition_by)
        self._options = dict(options or {})
        self._conflicts = CommitConflicts(table.uri)
        self._leftovers = DeltaLeftovers(table, self._open_log)
        self._restores = DeltaRestores(table, self._open_version)
        self._has_written = False
        self._dead: Collection[str] | None = None
        self._gone: Collection[str] = ()

    @property
    def uri(self) -> str:
        """The table's URI for deltalake. Raises ConfigError if deltalake cannot find the folder."""
        return delta_uri(self._table.uri)

    def check_log(self) -> bool:
        """Returns whether there is a log. Raises ConfigError if micro-batches would violate what it demands of writers.
        Writes nothing. Raises StorageError."""
        with self._reading():
            log = self._open_log()
            if log is not None:
                check_supported(log, self._table.uri)
            return log is not None

    # --- the run

    def prepare(
        self,
        dead: Collection[str] | None = None,
        take_number: Callable[[int], int] = next_number,
        gone: Collection[str] = (),
    ) -> None:
        self._table.make()
        self._dead, self._gone = dead, {*gone, *(dead or ())}
        if not self._has_log:
            self.check_notes("")
        self._begin_run(take_number)
        with self._reading():
            state = self._drive(self._machine.begin())
            self._leftovers.remove_old(state.may_publish)
        self._staging.root.make()

    def _begin_run(self, take_number: Callable[[int], int] = next_number) -> None:
        with self._reading():
            number = take_number(self._newest().state.run.number)
        tag = RunTag(number, self._id[:8])
        self._staging.run = tag
        self._run = CommitMachine(tag, VersionLog(f"Delta table {self._table.uri}"), self._table.uri)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError) as error:
            raise unreadable(self._table.uri, error) from error

    def has_batches(self, *, is_begun: bool = True, has_runs: Callable[[], bool] = lambda: False) -> bool | None:
        """It is unknown if commits of earlier versions may be removed from the log: no removed commit takes away the
        note of a run. (The table may also have rows of other writers.)"""
        with self._reading():
            log = self._state_log()
            if log is None:
                return False
            return delta_state.has_query(
                log, is_begun=lambda: is_begun and (delta_state.may_forget(log) or not has_runs())
            )

    def has_records(self) -> bool:
        """It is unknown if the start of the log was removed."""
        with self._reading():
            log = self._state_log()
            return log is not None and delta_state.has_records(log)

    def columns(self) -> Columns | None:
        """Returns the columns of our rows, if the log says which of its columns these are."""
        with self._reading():
            log = self._open_log()
            return None if log is None else own_columns(log)

    def check(self, frame: DataFrame) -> None:
        from deltalake.exceptions import DeltaError

        try:
            self._log(self._schema_of(frame.schema))
        except (DeltaError, OSError) as error:
            raise unreadable(self._table.uri, error) from error

    def begin(self, columns: pa.Schema) -> None:
        check_partition_columns(columns, self._partition_by)

    def add(self, rows: BatchRows, plan: BatchPlan) -> Added:
        from deltalake.exceptions import DeltaError

        with self._adding:
            try:
                self._log(self._schema_of(rows.schema))
                return self._add(rows, plan)
            except (DeltaError, OSError) as error:
                raise StorageError(f"the Delta table {self._table.uri} cannot be written: {text_of(error)}") from error

    def check_notes(self, query: str) -> None:
        """With a log, accepts everything: the log names the files, so nothing else is in the table. Without a log, only
        files of the first micro-batch may be there: its run was killed before it created the log."""
        with self._reading():
            batch = None if self._open_log() is not None else self._leftovers.newest_batch()
        if batch:
            raise TableRefused(
                f"{self._table.uri} has files of micro-batch {batch}, and no Delta log: the log was removed. Nothing "
                "was added, and the group was not committed. Restore the folder _delta_log, or read into a new --output"
            )

    def offsets(self, plan: BatchPlan) -> dict[TopicPartition, int]:
        """Returns the offsets after the newest micro-batch of the query of ``plan``, in its partitions that the table
        has noted."""
        with self._reading():
            log = self._state_log()
            return {} if log is None else delta_state.offsets_in(log, plan.query, plan)

    def tails(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogTail]:
        """Returns the last batches that the newest query has read in these partitions, as far as they are noted."""
        with self._reading():
            log = self._open_log()
            return {} if log is None else delta_state.tails_in(log, partitions)

    def row_ends(
        self, partitions: Collection[TopicPartition] | None = None, left_out: re.Pattern[str] = REPLAYS
    ) -> dict[TopicPartition, int]:
        from deltalake.exceptions import DeltaProtocolError

        with self._reading():
            try:
                rows = self._dataset()
            except DeltaProtocolError as error:
                raise StorageError(
                    f"the rows of the Delta table {self._table.uri} cannot be read, so it is not known which records "
                    f"it has: {text_of(error)} Remove these features (ALTER TABLE … DROP FEATURE), or read into a new "
                    "--output"
                ) from error
            return {} if rows is None else row_ends(rows, partitions, left_out)

    def marks(self, spans: Spans, files_of: re.Pattern[str] | None = None) -> Marks:
        """There are none if deltalake cannot read a feature of the table."""
        from deltalake.exceptions import DeltaProtocolError

        with self._reading():
            try:
                rows = self._dataset()
            except DeltaProtocolError:
                return {}
            return {} if rows is None else marks_in(rows, spans, files_of)

    def _dataset(self) -> ds.FileSystemDataset | None:
        """Returns the table's rows; None if there is no table. Raises ConfigError, and the errors of deltalake."""
        log = self._open_log()
        if log is None:
            return None
        self._check_offset_columns(log)
        found: ds.FileSystemDataset = log.to_pyarrow_dataset()
        return found

    def _check_offset_columns(self, log: Log) -> None:
        held = {field.name: _type_name(field.type) for field in log.schema().fields}
        for name, needed in _OFFSET_COLUMNS.items():
            if held.get(name) != needed:
                raise ConfigError(
                    f"the Delta table {self._table.uri} has no column {name} ({needed}): another writer has replaced "
                    "its columns. RESTORE a version from before that, or read into a new --output"
                )

    # --- the operations of the machine

    def _newest(self, plan: BatchPlan | None = None) -> LogPosition:
        log = self._open_log()
        if log is None:
            return _NO_LOG
        if plan is None:
            return LogPosition(log.version(), delta_state.read(log, None), content=log)
        columns = own_columns(log)  # a RESTORE takes the columns back, too
        found = self._restores.state_log(log)
        if found.log is None:
            state = replace(delta_state.read_unknown(log, plan, found.reason), columns=columns)
            return LogPosition(log.version(), state, content=log)
        state = delta_state.read(found.log, plan)
        lost = delta_state.lost_offsets(log, found.log, plan) if found.reason else None
        state = replace(state, run=delta_state.run_of(log), restored=found.reason, lost=lost, columns=columns)
        return LogPosition(log.version(), state, content=log)

    def _state_log(self) -> Log | None:
        """Returns the version of the log whose state belongs to the table's rows; None if there is no log. Raises the
        errors of deltalake."""
        log = self._open_log()
        return None if log is None else self._restores.state_log(log).log or log

    def _discard(self, files: NewFiles) -> None:
        self._leftovers.remove(FileStatus(file.name, file.size, time.time()) for file in files.content)

    def _has_leftovers(self) -> bool:
        log = self._open_log()
        if log is None:
            return False
        if self._staging.has_other_runs():
            return True
        may_publish = delta_state.read(log, None).may_publish
        return bool(self._gone) and self._leftovers.has_any_of(may_publish, self._dead or (), log)

    def _remove_leftovers(self, can_publish: Callable[[RunTag], bool]) -> None:
        self._staging.remove_runs(can_publish, self._dead)
        if self._has_written or self._gone:
            self._leftovers.remove_ended(can_publish, self._dead or ())

    def _write(self, plan: BatchPlan) -> NewFiles:
        assert self._rows is not None
        files = self._write_files(self._rows, plan)
        return NewFiles(files, Added.of(files), dict(self._rows.tails))

    def _write_files(self, rows: BatchRows, plan: BatchPlan) -> list[StagedFile]:
        """Writes the files of a micro-batch into the table's folder; no version of the table has them yet."""
        prefix = f"{prefix_of(plan.batch, plan.query)}-{self._machine.run.text}"
        self._has_written, layout = True, FolderLayout(tuple(self._partition_by))
        if rows.in_place:
            return rows.write(self._table, prefix, layout)
        folder = self._staging.root.child(self._staging.batch(plan.batch))
        staged = rows.write(folder, prefix, layout)
        named = [replace(file, name=table_file_name(file.name, prefix, number)) for number, file in enumerate(staged)]
        moves = [(file.name, to.name) for file, to in zip(staged, named, strict=True)]
        self._table.move_here(folder, moves)
        folder.remove()
        return named

    def _commit(self, base: LogPosition, change: TableChange) -> bool:
        from deltalake.exceptions import DeltaError

        try:
            is_committed = self._commit_version(base, change)
        except DeltaError as error:
            raise StorageError(text_of(error)) from error
        self._conflicts.note(is_committed=is_committed)
        return is_committed

    def _commit_version(self, base: LogPosition, change: TableChange) -> bool:
        """Makes the version after ``base``; returns False if it exists already.

        If the log was loaded after a commit of a transaction id, deltalake accepts a second commit of that id. So the
        state machine looks at the state of exactly the version that it builds on, and this fails if that version is not
        the newest.
        """
        from deltalake import CommitProperties
        from deltalake.exceptions import CommitFailedError

        log = base.content
        if log is None:
            assert self._rows is not None
            log = self._create_log(self._schema_of(self._rows.schema))
            if log.version() > 0:  # another writer has created it and written to it
                return False
        check_supported(log, self._table.uri)  # another writer may have changed the table since its files were written
        found = self._restores.state_log(log) if change.plan is not None else StateLog(log)
        files = [] if change.files is None else [self._add_action(file) for file in change.files.content]
        transactions = delta_state.transactions(found.log or log, base.state, change, found.taken_back)
        schema, columns, version = log.schema(), log.metadata().partition_columns, log.version()
        is_made = self._commit_columns(log, base.state, change, transactions, files)
        if is_made is not None:
            if is_made:
                self._restores.wrote(version + 1)
            return is_made
        texts = delta_state.texts(change)
        properties = CommitProperties(custom_metadata=texts, max_commit_retries=0, app_transactions=transactions)
        try:
            log.create_write_transaction(files, "append", schema, columns, commit_properties=properties)
        except CommitFailedError:
            newest = self._open_log()
            if newest is not None and newest.version() > log.version():
                return False
            raise
        if change.plan is not None:
            self._restores.wrote(version + 1)
        return True

    def _commit_columns(
        self,
        log: Log,
        state: TableState,
        change: TableChange,
        transactions: Sequence[Transaction],
        files: Sequence[AddAction],
    ) -> bool | None:
        """Makes the version after ``log`` if the rows of the change need other columns; returns whether it was made.
        Returns None if the columns stay. Raises ConfigError, StorageError."""
        if self._rows is None or change.plan is None or change.plan.columns is None:
            return None
        schema = schema_after(log, self._schema_of(self._rows.schema))
        if schema is None:
            return None
        if self._has_lock:
            raise ConfigError(
                f"the Delta table {self._table.uri} needs new columns, and its commits a lock that only deltalake "
                "takes: add the columns by another writer (ALTER TABLE … ADD COLUMN), and run the command again"
            )
        own = change.plan.columns.after(state.columns)
        wanted = ColumnVersion(schema, own, delta_state.texts(change), transactions, files)
        return write_version(log, self._table.child(DELTA_LOG), wanted)

    def _schema_of(self, columns: StructType) -> Schema:
        from deltalake import Schema
        from pyspark.sql.types import StructField, StructType

        # Delta's log has schemas in Spark's JSON format. Every column is nullable, as in the files that Spark writes.
        fields = [StructField(field.name, field.dataType) for field in columns.fields]
        return Schema.from_json(StructType(fields).json())

    def _create_log(self, schema: Schema) -> Log:
        """Creates the log of a new table. Its caller has already written the first micro-batch's files: if that write
        fails, no log is created."""
        from deltalake import DeltaTable as Log

        names = None if self.row_columns is None else noted_names(self.row_columns.types)
        made = Log.create(
            self.uri, schema, "ignore", self._partition_by or None,
            configuration=names, storage_options=self._options, raise_if_key_not_exists=False,
        )  # fmt: skip
        return with_history(made, self.uri, self._table)

    def _open_log(self) -> Log | None:
        """Returns the log in its newest version; None if there is none."""
        from deltalake import DeltaTable as Log

        check_descriptors()
        if not Log.is_deltatable(self.uri, self._options):
            return None
        return with_history(Log(self.uri, storage_options=self._options), self.uri, self._table)

    def _open_version(self, version: int) -> Log:
        from deltalake import DeltaTable as Log

        check_descriptors()
        found = Log(self.uri, version=version, storage_options=self._options)
        return with_history(found, self.uri, self._table)

    def _log(self, wanted: Schema) -> Log | None:
        """Returns the table's log; None if there is none yet. Raises ConfigError if the table lacks a wanted
        column, or has another type for it or other partition columns."""
        log = self._open_log()
        if log is None:
            return None
        check_supported(log, self._table.uri)
        rows = replace(self.row_columns or RowColumns({}), types=columns_of(parse_json(wanted.to_json())))
        rows.check(columns_in(log), self._table.uri, may_lack=True)
        if log.metadata().partition_columns != self._partition_by:
            found = ", ".join(log.metadata().partition_columns) or "nothing"
            raise ConfigError(f"the Delta table {self._table.uri} is partitioned by {found}")
        return log

    def _add_action(self, file: StagedFile) -> AddAction:
        from deltalake.transaction import AddAction

        values: dict[str, str | None] = {}
        for part in file.name.split("/")[:-1]:
            column, _, value = part.partition("=")
            values[unquote(column)] = None if value == NULL else unquote(value)
        statistics = json.dumps({"numRecords": file.rows, **file.statistics})
        return AddAction(file.name, file.size, values, int(time.time() * 1000), True, statistics)


def _type_name(kind: object) -> str:
    """Returns the name of a simple type, or the kind of any other type."""
    return str(getattr(kind, "type", kind))
