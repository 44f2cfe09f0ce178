"""A Delta table that gets each micro-batch exactly once, without a jar.

If the workers write a micro-batch (``RangeRows``), they write its Parquet files directly into the table's folder. If
Spark writes it (``SparkRows``), the files are first written beside the table, as for ``lake``, and then moved into the
table's folder. One table commit by the ``deltalake`` package adds the files to the table's log, together
with the number of the micro-batch. This is Delta's own idempotent write: ``txn`` with ``appId`` (the query's id) and
``version`` (the micro-batch's number). A repeated micro-batch that is in the log is not computed again. The files of a
micro-batch that was killed before its table commit belong to no version of the table. The names of these files have
the id of the run, and a later run removes the files.

The alternative, ``delta-spark``, needs another jar for each version of Spark. The newest, 4.4.0 for Spark 4.2, fails on
Spark 4.3 with a ``NoSuchMethodError``.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.batch_rows import check_offsets_digest
from odradek.pipelines.delta_leftovers import DeltaLeftovers
from odradek.pipelines.filesystems import FileStatus, LocalLocation, Location
from odradek.pipelines.lake import Added, prefix_of, table_file_name
from odradek.pipelines.partition_folders import NULL
from odradek.pipelines.staging import StagedFile, Staging

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log
    from deltalake import Schema
    from deltalake.transaction import AddAction
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from odradek.pipelines.batch_rows import BatchRows

_TRIES = 20
_COMMITS_LOOKED_AT = 100


class _Batch(NamedTuple):
    """A micro-batch that is in the log or is to be added to it."""

    number: int
    query_id: str
    added: Added
    offsets_digest: str | None

    def commit_text(self, run: str) -> str:
        """Returns the text for the micro-batch in the table commit."""
        added = self.added
        text = f"{self.number} {self.query_id} {added.rows} {added.bad} {run[:8]} {added.files} {added.size}"
        return text if self.offsets_digest is None else f"{text} {self.offsets_digest}"


class DeltaTable:
    """The Delta table at a location. ``options``: deltalake's options for its storage."""

    def __init__(
        self,
        table: Location,
        staging: Location,
        partition_by: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        run: str | None = None,
    ) -> None:
        check_installed()
        self._table = table
        self._staging = Staging(staging, run)
        self._run = self._staging.run
        self._has_written = False
        self._is_open = False  # whether a table commit may still appear in the log
        self._partition_by = list(partition_by)
        self._options = dict(options or {})
        self._leftovers = DeltaLeftovers(table, self._open_log)
        self._adding = threading.Lock()
        self._dead: frozenset[str] = frozenset()

    @property
    def uri(self) -> str:
        """The table's URI for deltalake, which knows only the scheme ``s3`` for S3."""
        if isinstance(self._table, LocalLocation):
            return self._table.path.as_uri()
        scheme, _, rest = self._table.uri.partition("://")
        return f"s3://{rest}" if scheme in ("s3a", "s3n") else self._table.uri

    def prepare(self, dead: Collection[str] | None = None) -> None:
        """Creates missing folders and removes files of dead runs in and beside the table. Raises StorageError."""
        from deltalake.exceptions import DeltaError

        self._table.make()
        self._dead = frozenset(dead or ())
        try:
            self._leftovers.remove_those_of(self._dead)
            self._leftovers.remove_old()
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error
        self._staging.remove_runs(dead)
        self._staging.root.make()

    def close(self) -> None:
        """Removes files of this run and of dead runs in and beside the table. Keeps files that this run has committed
        or may have committed. A task of a dead run may have written more files since ``prepare``.
        """
        from deltalake.exceptions import DeltaError

        self._staging.close()
        if not self._adding.acquire(blocking=False):  # another thread is about to commit: a later run removes the files
            return
        try:
            own = [self._run] if self._has_written and not self._is_open else []
            with contextlib.suppress(DeltaError, StorageError, OSError):  # a later run removes them
                self._leftovers.remove_those_of([*own, *self._dead])
        finally:
            self._adding.release()

    def has_batches(self) -> bool:
        """Returns whether a query has added a micro-batch. (The table may also have rows of other writers.)"""
        log = self._open_log()
        if log is None:
            return False
        texts = (str(commit.get("odradek.batch", "0 replay-")) for commit in log.history())
        return any(not text.startswith("0 replay-") for text in texts)

    def has_records(self) -> bool:
        """Returns whether a query or a replay has added anything. True if the start of the log was removed: then it is
        unknown. Raises StorageError.
        """
        from deltalake.exceptions import DeltaError

        try:
            log = self._open_log()
            if log is None:
                return False
            commits = log.history()
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error
        return all(commit["version"] != 0 for commit in commits) or any("odradek.batch" in one for one in commits)

    def check(self, batch: DataFrame) -> None:
        """Raises ConfigError if an existing table lacks a column, or has other types or other partition columns.

        Raises StorageError if the table cannot be read.
        """
        from deltalake.exceptions import DeltaError

        try:
            self._log(self._schema_of(batch.schema))
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error

    def find_added(self, batch_id: int, query_id: str) -> Added | None:
        """Returns the counts of a micro-batch in the table; None if the table does not have it. Raises StorageError."""
        from deltalake.exceptions import DeltaError

        try:
            held = self._find_batch(batch_id, query_id)
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error
        return None if held is None else held.added

    def _find_batch(self, batch_id: int, query_id: str) -> _Batch | None:
        """Returns a micro-batch in the table; None if the table does not have it. Raises the errors of deltalake."""
        log = self._open_log()
        if log is None:
            return None
        return self._batch_in_log(log, batch_id, query_id) if self._has(log, batch_id, query_id) else None

    def add(self, rows: BatchRows, batch_id: int, query_id: str) -> Added:
        """Adds a micro-batch in one table commit, unless the table already has it; returns its counts. Raises
        StorageError, and the errors of ``BatchRows.write``.
        """
        with self._adding:
            return self._add(rows, batch_id, query_id)

    def _add(self, rows: BatchRows, batch_id: int, query_id: str) -> Added:
        from deltalake.exceptions import DeltaError

        try:
            schema = self._schema_of(rows.schema)
            self._log(schema)
            held = self._find_batch(batch_id, query_id)
            if held is not None:
                check_offsets_digest(self._table.uri, batch_id, held.offsets_digest, rows.offsets_digest)
                return held.added
            files = self._write_files(rows, batch_id, query_id)
            actions = [self._add_action(file) for file in files]
            added = self._commit(actions, schema, _Batch(batch_id, query_id, Added.of(files), rows.offsets_digest))
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be written: {error}") from error
        return added

    def _write_files(self, rows: BatchRows, batch_id: int, query_id: str) -> list[StagedFile]:
        """Writes the files of a micro-batch into the table's folder; no version of the table has them yet. Their names
        have the run's id, so two runs never write the same file."""
        prefix = f"{prefix_of(batch_id, query_id)}-{self._run[:8]}"
        self._has_written = True
        if rows.in_place:
            return rows.write(self._table, prefix, self._partition_by)
        staged = self._staging.stage(rows, batch_id, prefix, self._partition_by)
        named = [replace(file, name=table_file_name(file.name, prefix, number)) for number, file in enumerate(staged)]
        moves = [(file.name, to.name) for file, to in zip(staged, named, strict=True)]
        folder = self._staging.root.child(self._staging.batch(batch_id))
        self._table.move_here(folder, moves)
        folder.remove()
        return named

    def _commit(self, actions: list[AddAction], schema: Schema, batch: _Batch) -> Added:
        """Makes the table commit of a micro-batch.

        If the log was loaded after a commit of a transaction id, deltalake accepts a second commit of that id. So each
        try looks for the micro-batch in exactly the version that it builds on, and fails if that version is not the
        newest.

        After a failed try, only the log shows whether the commit was made, because the storage's reply may be lost.
        """
        from deltalake.exceptions import DeltaError

        failed: Exception | None = None
        built_on = -1
        for _ in range(_TRIES):
            try:
                log = self._log(schema) or self._create_log(schema)
                if self._has(log, batch.number, batch.query_id):
                    return self._keep_earlier_commit(log, actions, batch)
            except (DeltaError, OSError) as error:
                if failed is None:
                    raise
                raise self._unknown_outcome(batch, "it cannot be read", failed) from error
            if failed is not None and log.version() == built_on:
                raise self._unknown_outcome(batch, "it is not there now", failed) from failed
            built_on, self._is_open = log.version(), True
            try:
                self._try_to_commit(log, actions, batch)
            except (DeltaError, OSError) as error:
                failed = error
            else:
                self._is_open = False
                return batch.added
        assert failed is not None
        raise self._unknown_outcome(batch, "others commit all the time", failed) from failed

    def _try_to_commit(self, log: Log, actions: list[AddAction], batch: _Batch) -> None:
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(
            custom_metadata={"odradek.batch": batch.commit_text(self._run)},
            max_commit_retries=0,
            app_transactions=[Transaction(batch.query_id, batch.number)],
        )
        log.create_write_transaction(actions, "append", log.schema(), self._partition_by, commit_properties=properties)

    @staticmethod
    def _has(log: Log, batch_id: int, query_id: str) -> bool:
        known = log.transaction_version(query_id)
        return known is not None and known >= batch_id

    def _keep_earlier_commit(self, log: Log, actions: Sequence[AddAction], batch: _Batch) -> Added:
        """Returns the counts of a micro-batch that the log has already, and removes those of our files that are in no
        commit. Another run made the commit, or this run made it and the storage's reply was lost."""
        held = self._batch_in_log(log, batch.number, batch.query_id)
        self._is_open = False
        check_offsets_digest(self._table.uri, batch.number, held.offsets_digest, batch.offsets_digest)
        self._leftovers.remove(FileStatus(action.path, action.size, time.time()) for action in actions)
        return held.added

    def _unknown_outcome(self, batch: _Batch, found: str, error: Exception) -> StorageError:
        """Returns the error for a failed commit that may have been made, or may still be made by a late request."""
        return StorageError(
            f"the Delta table {self._table.uri} cannot be written: {error}. It is not known whether its log will have "
            f"micro-batch {batch.number} ({found}): its files stay, and the next run checks the log"
        )

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

        return Log.create(self.uri, schema, "ignore", self._partition_by or None, storage_options=self._options)

    def _open_log(self) -> Log | None:
        """Returns the log in its newest version; None if there is none."""
        from deltalake import DeltaTable as Log

        if not Log.is_deltatable(self.uri, self._options):
            return None
        return Log(self.uri, storage_options=self._options)

    def _log(self, wanted: Schema) -> Log | None:
        """Returns the table's log; None if there is none yet. Raises ConfigError if the table lacks a wanted
        column, or has another type for it or other partition columns."""
        log = self._open_log()
        if log is None:
            return None
        held = {field.name: field.type for field in log.schema().fields}
        for field in wanted.fields:
            found, needed = held.get(field.name), _type_name(field.type)
            if found is None:
                raise ConfigError(f"the Delta table {self._table.uri} has no column {field.name} ({needed})")
            if found != field.type:
                what = f"column {field.name} is {_type_name(found)}, not {needed}"
                raise ConfigError(f"the Delta table {self._table.uri}: {what}")
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

    @staticmethod
    def _batch_in_log(log: Log, batch_id: int, query_id: str) -> _Batch:
        """Returns a micro-batch in the table. Its counts are 0 if its commit is not one of the newest 100."""
        for commit in log.history(_COMMITS_LOOKED_AT):
            words = str(commit.get("odradek.batch", "")).split()
            if words[:2] == [str(batch_id), query_id]:
                files, size = (
                    map(int, words[5:7]) if len(words) > 6 else (None, None)
                )  # an earlier version of odradek wrote neither number
                offsets_digest = words[7] if len(words) > 7 else None
                return _Batch(batch_id, query_id, Added(int(words[2]), int(words[3]), files, size), offsets_digest)
        return _Batch(batch_id, query_id, Added(0, 0), None)


def _type_name(kind: Any) -> str:
    """Returns the name of a simple type, or the kind of any other type."""
    return str(getattr(kind, "type", kind))


def check_installed() -> None:
    """Raises ConfigError if the package deltalake is missing."""
    import importlib.util

    if importlib.util.find_spec("deltalake") is None:
        raise ConfigError("table format delta needs deltalake: pip install 'odradek[lake]'")
