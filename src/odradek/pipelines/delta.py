"""A Delta table that micro-batches are added to exactly once, without a jar.

Spark writes a batch's Parquet files beside the table, as for ``lake``; they are moved in, and one commit of the
``deltalake`` package adds them to the table's log, together with the number of the batch: Delta's own way of making a
writer idempotent, ``txn`` with ``appId`` (the query's id) and ``version`` (the batch's). A batch that comes again and
is in the log is not computed again. Files of a batch that was killed before its commit belong to no version of the
table; the batch's next try has the same names and replaces them.

``delta-spark`` would be the other way: a jar for one version of Spark each. 4.4.0, made for Spark 4.2 and the newest,
fails on 4.3 with a ``NoSuchMethodError`` (tried).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.lake import Added, named_for, prefix_of
from odradek.pipelines.places import LocalPlace, Place
from odradek.pipelines.staging import Staging

if TYPE_CHECKING:
    from deltalake import DeltaTable as Log
    from deltalake import Schema
    from pyspark.sql import DataFrame

_NULL = "__HIVE_DEFAULT_PARTITION__"


class DeltaTable:
    """The table at a place; ``options`` are those that deltalake reaches its storage with."""

    def __init__(
        self, table: Place, staging: Place, partition_by: Sequence[str] = (), options: Mapping[str, str] | None = None
    ) -> None:
        check_installed()
        self._table = table
        self._staging = Staging(staging)
        self._partition_by = list(partition_by)
        self._options = dict(options or {})

    @property
    def uri(self) -> str:
        """As deltalake names it: it knows S3 by one scheme only."""
        if isinstance(self._table, LocalPlace):
            return self._table.path.as_uri()
        scheme, _, rest = self._table.uri.partition("://")
        return f"s3://{rest}" if scheme in ("s3a", "s3n") else self._table.uri

    def prepare(self) -> None:
        """Creates what is missing and removes what killed writers left beside the table. Raises StorageError."""
        self._table.make()
        self._staging.root.remove()
        self._staging.root.make()

    def close(self) -> None:
        """Removes the writer's own folder; the table stays."""
        self._staging.root.remove()

    def has_batches(self) -> bool:
        """Whether a query has added anything. (Rows of others may be there all the same.)"""
        from deltalake import DeltaTable as Log

        if not Log.is_deltatable(self.uri, self._options):
            return False
        log = Log(self.uri, storage_options=self._options)
        told = (str(commit.get("odradek.batch", "0 replay-")) for commit in log.history())
        return any(not text.startswith("0 replay-") for text in told)

    def holds_any(self) -> bool:
        """Whether a query or a replay has added anything, or may have: where the log's begin was removed, none can
        tell. Raises StorageError.
        """
        from deltalake import DeltaTable as Log
        from deltalake.exceptions import DeltaError

        try:
            if not Log.is_deltatable(self.uri, self._options):
                return False
            commits = Log(self.uri, storage_options=self._options).history()
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error
        return all(commit["version"] != 0 for commit in commits) or any("odradek.batch" in one for one in commits)

    def check(self, batch: DataFrame) -> None:
        """Raises ConfigError where the table is there with other columns than these, StorageError."""
        from deltalake.exceptions import DeltaError

        try:
            self._log(self._schema_of(batch))
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error

    def told(self, batch_id: int, query_id: str) -> Added | None:
        """What a batch has brought that is in the table; None where it is not. Raises StorageError."""
        from deltalake import DeltaTable as Log
        from deltalake.exceptions import DeltaError

        try:
            if not Log.is_deltatable(self.uri, self._options):
                return None
            log = Log(self.uri, storage_options=self._options)
            known = log.transaction_version(query_id)
            return self._added(log, batch_id, query_id) if known is not None and known >= batch_id else None
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be read: {error}") from error

    def add(
        self, batch: DataFrame, batch_id: int, query_id: str, check: Callable[[DataFrame], None] | None = None
    ) -> Added:
        """Adds a batch as one commit, unless it is in the table; returns what it has brought. ``check`` sees the rows
        before that. Raises StorageError, and what ``check`` raises.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import DeltaError

        try:
            schema = self._schema_of(batch)
            self._log(schema)
            added = self.told(batch_id, query_id)
            if added is not None:
                return added
            staged = self._staging.stage(batch, batch_id, self._partition_by, check)
            prefix = prefix_of(batch_id, query_id)
            moves = [(file.name, named_for(file.name, prefix, number)) for number, file in enumerate(staged)]
            self._table.move_here(self._staging.root.child(self._staging.batch(batch_id)), moves)
            files = [(target, file.size, file.rows) for (_, target), file in zip(moves, staged, strict=True)]
            added = Added(sum(file.rows for file in staged), sum(file.bad for file in staged))
            log = self._log(schema) or self._begun(schema)
            log.create_write_transaction(
                [self._add_action(*file) for file in files],
                "append",
                log.schema(),
                self._partition_by,
                commit_properties=CommitProperties(
                    custom_metadata={"odradek.batch": f"{batch_id} {query_id} {added.rows} {added.bad}"},
                    app_transactions=[Transaction(query_id, batch_id)],
                ),
            )
        except (DeltaError, OSError) as error:
            raise StorageError(f"the Delta table {self._table.uri} cannot be written: {error}") from error
        self._staging.root.child(self._staging.batch(batch_id)).remove()
        return added

    def _schema_of(self, batch: DataFrame) -> Schema:
        from deltalake import Schema
        from pyspark.sql.types import StructField, StructType

        # Delta writes a schema down as Spark does. Every column is nullable, as in the files that Spark writes.
        fields = [StructField(field.name, field.dataType) for field in batch.schema.fields]
        return Schema.from_json(StructType(fields).json())

    def _begun(self, schema: Schema) -> Log:
        """The log of a table that was not there: after its first batch was staged, as one that fails begins none."""
        from deltalake import DeltaTable as Log

        return Log.create(self.uri, schema, "ignore", self._partition_by or None, storage_options=self._options)

    def _log(self, wanted: Schema) -> Log | None:
        """The table's log; None where there is none yet. Raises ConfigError where the table has other columns."""
        from deltalake import DeltaTable as Log

        if not Log.is_deltatable(self.uri, self._options):
            return None
        log = Log(self.uri, storage_options=self._options)
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

    def _add_action(self, name: str, size: int, rows: int) -> Any:
        from deltalake.transaction import AddAction

        values: dict[str, str | None] = {}
        for part in name.split("/")[:-1]:
            column, _, value = part.partition("=")
            values[unquote(column)] = None if value == _NULL else unquote(value)
        return AddAction(name, size, values, int(time.time() * 1000), True, json.dumps({"numRecords": rows}))

    def _added(self, log: Log, batch_id: int, query_id: str) -> Added:
        """What a batch has brought that is in the table already, as its commit says while the log still has that."""
        for commit in log.history(100):
            told = str(commit.get("odradek.batch", "")).split()
            if told[:2] == [str(batch_id), query_id]:
                return Added(int(told[2]), int(told[3]))
        return Added(0, 0)


def _type_name(kind: Any) -> str:
    """Of a simple type its name; of any other the word for its kind."""
    return str(getattr(kind, "type", kind))


def check_installed() -> None:
    """Raises ConfigError where the package deltalake is missing."""
    import importlib.util

    if importlib.util.find_spec("deltalake") is None:
        raise ConfigError("table format delta needs deltalake: pip install 'odradek[lake]'")
