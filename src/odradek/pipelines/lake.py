"""A table of Parquet files. It gets each micro-batch exactly once; its readers need not know Spark.

How a micro-batch is added:

1. The micro-batch is written beside the table (``staging``), and its files are synced.
2. A manifest, ``batches/batch-000012-1a2b3c4d.json`` (the last part is the start of the query's id), lists these
   files and their names in the table. The manifest appears atomically. From then on the micro-batch is in the table,
   even if a process dies.
3. The files are moved into the table, as ``month=7/batch-000012-1a2b3c4d-part-00001.parquet``.

A micro-batch is repeated if the process died before Spark noted it as done. If it has a manifest, it is not computed
again: only the remaining files are moved. If it has no manifest, no file of it is in the table. So the table has each
micro-batch once, only complete files are visible in it, and a visible row never disappears. pyarrow and DuckDB count
the same rows as Spark. Micro-batches are staged outside of the table's folder if possible, because DuckDB's
``**`` also finds the files that Spark and pyarrow skip.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.core.errors import ConfigError, StorageError
from odradek.core.json_depth import parse_json
from odradek.pipelines.batch_rows import BatchRows, SparkRows, check_offsets_digest
from odradek.pipelines.filesystems import LocalLocation, Location
from odradek.pipelines.staging import StagedFile, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Only the newest micro-batch can be repeated. Older manifests are kept for a while, to show what happened.
_MANIFESTS_KEPT = 200


class Added(NamedTuple):
    """The counts of an added micro-batch. ``bad``: rows with an unreadable value. ``size``: the bytes of its files.
    ``files`` and ``size`` are None if the micro-batch was added by a version that did not count them.
    """

    rows: int
    bad: int
    files: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, files: Sequence[StagedFile]) -> Added:
        """Returns the counts of these files."""
        rows, bad = sum(file.rows for file in files), sum(file.bad for file in files)
        return cls(rows, bad, len(files), sum(file.size for file in files))


class ParquetTable:
    """A table of Parquet files. Readers use ``table``; only the writer uses ``manifests`` and ``staging``."""

    def __init__(
        self,
        table: Location,
        manifests: Location,
        staging: Location,
        partition_by: Sequence[str] = (),
        run: str | None = None,
    ) -> None:
        self._table = table
        self._manifests = manifests
        self._staging = Staging(staging, run)
        self._partition_by = tuple(partition_by)
        self._looked_for_leftovers = False

    def prepare(self, dead: Collection[str] | None = None) -> None:
        """Creates missing folders, completes micro-batches of a killed writer, and removes the leftovers of the
        ``dead`` runs and of runs older than a day, or of all runs if ``dead`` is None. Raises StorageError."""
        self._table.make()
        runs = set(self._staging.root.children())
        for name in self._names():
            manifest = self._read(name)
            staged = str(manifest["staged"])
            if staged.partition("/")[0] in runs and self._staging.root.child(staged).children():
                self._move_in(manifest)
        self._staging.remove_runs(dead)
        self._staging.root.make()

    def close(self) -> None:
        """Removes the writer's files beside the table."""
        self._staging.close()

    def has_batches(self) -> bool:
        """Returns whether a query has added a micro-batch."""
        return any(name.startswith("batch-") for name in self._names())

    def check(self, batch: DataFrame) -> None:
        """Accepts every micro-batch: each Parquet file has its own columns."""

    def find_added(self, batch_id: int, query_id: str) -> Added | None:
        """Returns the counts of a micro-batch in the table; None if the table does not have it."""
        manifest = self._find(prefix_of(batch_id, query_id))
        return None if manifest is None else _counts_in(manifest)

    def add(self, rows: BatchRows, batch_id: int, query_id: str) -> Added:
        """Adds a micro-batch, unless the table already has it; returns its counts. Raises StorageError, and what
        ``BatchRows.write`` raises.
        """
        prefix = prefix_of(batch_id, query_id)
        manifest = self._find(prefix)
        if manifest is not None:
            held = manifest.get("covers")
            check_offsets_digest(self._table.uri, batch_id, None if held is None else str(held), rows.offsets_digest)
            self._move_in(manifest)
            return _counts_in(manifest)
        staged = self._staging.stage(rows, batch_id, prefix, self._partition_by)
        if self._find(prefix) is not None:
            raise StorageError(f"another pipeline has added micro-batch {batch_id} to {self._table.uri} meanwhile")
        added = self.add_staged(self._staging.batch(batch_id), staged, prefix, rows.offsets_digest)
        self._forget_old(query_id)
        return added

    def add_staged(
        self, staged_in: str, staged: Sequence[StagedFile], prefix: str, offsets_digest: str | None = None
    ) -> Added:
        """Writes the manifest of a micro-batch whose files are ready in a staging folder, and moves the files in."""
        self._remove_leftovers(prefix)
        moves = [(file.name, table_file_name(file.name, prefix, number)) for number, file in enumerate(staged)]
        added = Added.of(staged)
        manifest = {
            "version": 1,
            "staged": staged_in,
            "moves": moves,
            "rows": added.rows,
            "bad": added.bad,
            "bytes": added.size,
            "covers": offsets_digest,
        }
        self._manifests.write_text(f"{prefix}.json", json.dumps(manifest) + "\n")
        self._move_in(manifest)
        return added

    def _forget_old(self, query_id: str) -> None:
        own = [name for name in self._names() if name.startswith("batch-") and name.endswith(f"-{query_id[:8]}.json")]
        own.sort(key=lambda name: int(name.split("-")[1]))  # numerically: as text, 1000000 is before 2
        for old in own[:-_MANIFESTS_KEPT]:
            self._manifests.delete(old)

    def _move_in(self, manifest: dict[str, object]) -> None:
        staged, moves = self._staging.root.child(str(manifest["staged"])), manifest["moves"]
        assert isinstance(moves, list)
        self._table.move_here(staged, [(name, target) for name, target in moves])
        staged.remove()

    def _names(self) -> list[str]:
        return [name for name in self._manifests.children() if name.endswith(".json")]

    def _find(self, prefix: str) -> dict[str, object] | None:
        """Returns the manifest of a micro-batch; None if there is none."""
        name = f"{prefix}.json"
        text = self._manifests.read_text(name)
        return None if text is None else self._parse_manifest(name, text)

    def _read(self, name: str) -> dict[str, object]:
        return self._parse_manifest(name, self._manifests.read_text(name) or "")

    def _parse_manifest(self, name: str, text: str) -> dict[str, object]:
        try:
            manifest = parse_json(text)
            if manifest["version"] != 1 or not {"staged", "moves", "rows", "bad"} <= manifest.keys():
                raise ValueError("it is of another version")
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self._manifests.child(name).uri} is not a manifest of a micro-batch: {error}"
            ) from error
        found: dict[str, object] = manifest
        return found

    def _remove_leftovers(self, prefix: str) -> None:
        """Removes files of a half-done micro-batch from the table. Versions without manifests left such files there."""
        if self._looked_for_leftovers or not isinstance(self._table, LocalLocation):
            return
        self._looked_for_leftovers = True
        for old in self._table.path.glob(f"**/{prefix}-*.parquet"):
            old.unlink()


def _counts_in(manifest: dict[str, object]) -> Added:
    """Returns the counts in a manifest; manifests of earlier versions have no ``bytes``."""
    moves, size = manifest["moves"], manifest.get("bytes")
    assert isinstance(moves, list)
    size = None if size is None else int(str(size))
    return Added(int(str(manifest["rows"])), int(str(manifest["bad"])), len(moves), size)


class Lake:
    """The demo's table under ``root``. Readers use ``table/``; only the writer uses the other folders."""

    def __init__(self, root: Path, partition_by: str) -> None:
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        table, batches, staging = (LocalLocation(root / name) for name in ("table", "batches", "staging"))
        self._table = ParquetTable(table, batches, staging, (partition_by,))

    def prepare(self) -> None:
        """Creates missing folders and completes micro-batches of killed writers. Raises StorageError."""
        self._table.prepare()

    def add(self, batch: DataFrame, batch_id: int) -> int:
        """Adds a micro-batch, unless the table already has it; returns the number of its rows."""
        return self._table.add(SparkRows(batch), batch_id, query_id(LocalLocation(self.checkpoint))).rows

    def files(self) -> Iterable[Path]:
        """Returns the table's data files."""
        return [self.table / file.name for file in LocalLocation(self.table).data_files()]


def query_id(checkpoint: Location) -> str:
    """Returns the id that Spark gave the query of this checkpoint. Each query numbers its micro-batches from 0.

    Raises StorageError.
    """
    try:
        return str(parse_json(checkpoint.read_text("metadata") or "")["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{checkpoint.uri} is not a checkpoint of a query: {error}") from error


def check_spark_sees(spark: SparkSession, directory: Path) -> None:
    """Raises ConfigError if Java does not find a directory under our name for it.

    Hadoop decodes no ``%20`` in a path, so a ``file:`` URI made by Python would be another directory. So Spark gets
    unquoted paths. The remaining problem is Java itself: under an ASCII locale it cannot represent a name with ``ü``.
    """
    jvm = spark._jvm
    assert jvm is not None
    if not jvm.java.io.File(str(directory)).isDirectory():
        raise ConfigError(
            f"Spark's Java does not find {directory} under this locale: set LC_ALL=C.UTF-8 or use another directory"
        )


def prefix_of(batch_id: int, query_id: str) -> str:
    """Returns the prefix of a micro-batch's file names. A query's micro-batch has its number in the prefix. A replay is
    a single micro-batch, and its prefix is the start of its id."""
    return query_id[:23] if query_id.startswith("replay-") else f"batch-{batch_id:06d}-{query_id[:8]}"


def table_file_name(name: str, prefix: str, number: int) -> str:
    """Returns the name of a staged file in the table: in the same folder, with the micro-batch in its name."""
    folder, _, _ = name.rpartition("/")
    return f"{folder}/{prefix}-part-{number:05d}.parquet".lstrip("/")
