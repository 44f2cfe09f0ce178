"""A table of Parquet files that micro-batches are added to exactly once, for readers that know nothing of Spark.

How a batch gets in:

1. Spark writes it beside the table (``staging``), and the files are synced.
2. A manifest, ``batches/batch-000012-1a2b3c4d.json`` (the last part is the query's id), names these files and what
   they will be called in the table. It appears whole: from here on the batch is in, whatever dies.
3. The files are moved in, as ``month=7/batch-000012-1a2b3c4d-part-00001.parquet``.

A batch that comes again, because the process died before Spark noted it as done, has a manifest, and then it is not
computed again: what was not moved yet is moved. Without one nothing of it was in the table. So the table holds each
batch once, only whole files are ever visible in it, no row that was visible goes away again, and pyarrow or DuckDB
count what Spark counts. Nothing but files with rows is under the table that ends in ``.parquet``: DuckDB's ``**``
finds what Spark and pyarrow pass over, so batches are staged elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from odradek.core.errors import ConfigError, StorageError
from odradek.core.json_depth import parse_json
from odradek.pipelines.batch_rows import BatchRows, SparkRows, check_covers
from odradek.pipelines.filesystems import LocalPlace, Place
from odradek.pipelines.staging import StagedFile, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Only the newest batch can come again. Older manifests tell what happened, for a while.
_MANIFESTS_KEPT = 200


class Added(NamedTuple):
    """What a batch brought: ``bad`` of its rows have a value that could not be read. ``size``: the bytes of its files;
    None, as ``files``, where a version before these counts added the batch.
    """

    rows: int
    bad: int
    files: int | None = None
    size: int | None = None

    @classmethod
    def of(cls, files: Sequence[StagedFile]) -> Added:
        """What these files hold."""
        rows, bad = sum(file.rows for file in files), sum(file.bad for file in files)
        return cls(rows, bad, len(files), sum(file.size for file in files))


class ParquetTable:
    """``table`` is what readers see; ``manifests`` and ``staging`` are the writer's."""

    def __init__(
        self, table: Place, manifests: Place, staging: Place, partition_by: Sequence[str] = (), run: str | None = None
    ) -> None:
        self._table = table
        self._manifests = manifests
        self._staging = Staging(staging, run)
        self._partition_by = tuple(partition_by)
        self._looked_for_leftovers = False

    def prepare(self, dead: Collection[str] | None = None) -> None:
        """Creates what is missing, finishes what a killed writer had begun, and removes what ``dead`` runs have left,
        or, without these, all others. Raises StorageError.
        """
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
        """Removes what the writer has left beside the table."""
        self._staging.close()

    def has_batches(self) -> bool:
        """Whether a query has added anything."""
        return any(name.startswith("batch-") for name in self._names())

    def check(self, batch: DataFrame) -> None:
        """Parquet files have their columns each for itself."""

    def told(self, batch_id: int, query_id: str) -> Added | None:
        """What a batch has brought that is in the table; None where it is not."""
        manifest = self._find(prefix_of(batch_id, query_id))
        return None if manifest is None else _added(manifest)

    def add(self, rows: BatchRows, batch_id: int, query_id: str) -> Added:
        """Puts a batch into the table, unless it is there; returns what it has brought. Raises StorageError, and what
        ``BatchRows.write`` raises.
        """
        prefix = prefix_of(batch_id, query_id)
        manifest = self._find(prefix)
        if manifest is not None:
            held = manifest.get("covers")
            check_covers(self._table.uri, batch_id, None if held is None else str(held), rows.covers)
            self._move_in(manifest)
            return _added(manifest)
        staged = self._staging.stage(rows, batch_id, prefix, self._partition_by)
        if self._find(prefix) is not None:
            raise StorageError(f"another pipeline has added batch {batch_id} to {self._table.uri} meanwhile")
        added = self.take_in(self._staging.batch(batch_id), staged, prefix, rows.covers)
        self._forget_old(query_id)
        return added

    def take_in(self, staged_in: str, staged: Sequence[StagedFile], prefix: str, covers: str | None = None) -> Added:
        """Writes the manifest of a batch that stands ready in a folder of the staging place, and moves it in."""
        self._remove_leftovers(prefix)
        moves = [(file.name, named_for(file.name, prefix, number)) for number, file in enumerate(staged)]
        added = Added.of(staged)
        manifest = {
            "version": 1,
            "staged": staged_in,
            "moves": moves,
            "rows": added.rows,
            "bad": added.bad,
            "bytes": added.size,
            "covers": covers,
        }
        self._manifests.write_text(f"{prefix}.json", json.dumps(manifest) + "\n")
        self._move_in(manifest)
        return added

    def _forget_old(self, query_id: str) -> None:
        own = [name for name in self._names() if name.startswith("batch-") and name.endswith(f"-{query_id[:8]}.json")]
        own.sort(key=lambda name: int(name.split("-")[1]))  # as text, a million comes before two
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
        """The manifest of a batch; None where there is none."""
        name = f"{prefix}.json"
        text = self._manifests.read_text(name)
        return None if text is None else self._parsed(name, text)

    def _read(self, name: str) -> dict[str, object]:
        return self._parsed(name, self._manifests.read_text(name) or "")

    def _parsed(self, name: str, text: str) -> dict[str, object]:
        try:
            manifest = parse_json(text)
            if manifest["version"] != 1 or not {"staged", "moves", "rows", "bad"} <= manifest.keys():
                raise ValueError("it is of another version")
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{self._manifests.child(name).uri} is no manifest of a batch: {error}") from error
        found: dict[str, object] = manifest
        return found

    def _remove_leftovers(self, prefix: str) -> None:
        """Versions of odradek before manifests left the files of a half-done batch in the table."""
        if self._looked_for_leftovers or not isinstance(self._table, LocalPlace):
            return
        self._looked_for_leftovers = True
        for old in self._table.path.glob(f"**/{prefix}-*.parquet"):
            old.unlink()


def _added(manifest: dict[str, object]) -> Added:
    """What a manifest says; those of earlier versions have no ``bytes``."""
    moves, size = manifest["moves"], manifest.get("bytes")
    assert isinstance(moves, list)
    size = None if size is None else int(str(size))
    return Added(int(str(manifest["rows"])), int(str(manifest["bad"])), len(moves), size)


class Lake:
    """The demo's table under ``root``: ``table/`` is what readers see, the rest is the writer's."""

    def __init__(self, root: Path, partition_by: str) -> None:
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        table, batches, staging = (LocalPlace(root / name) for name in ("table", "batches", "staging"))
        self._table = ParquetTable(table, batches, staging, (partition_by,))

    def prepare(self) -> None:
        """Creates what is missing and finishes what killed writers left. Raises StorageError."""
        self._table.prepare()

    def add(self, batch: DataFrame, batch_id: int) -> int:
        """Writes a batch and puts it into the table, unless it is there; returns its rows."""
        return self._table.add(SparkRows(batch), batch_id, query_id(LocalPlace(self.checkpoint))).rows

    def files(self) -> Iterable[Path]:
        """The table's data files."""
        return [self.table / file.name for file in LocalPlace(self.table).data_files()]


def query_id(checkpoint: Place) -> str:
    """The id that Spark gave the query of this checkpoint: batch numbers start anew with a new one.

    Raises StorageError.
    """
    try:
        return str(parse_json(checkpoint.read_text("metadata") or "")["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{checkpoint.uri} is no checkpoint of a query: {error}") from error


def check_spark_sees(spark: SparkSession, directory: Path) -> None:
    """Whether Java finds a directory under the name we know it by. Raises ConfigError.

    Hadoop takes a path as it stands: it decodes no ``%20``, so a ``file:`` URI made by Python would name another
    directory, and we hand over plain paths. What is left is Java itself, which under an ASCII locale can name no ``ü``.
    """
    jvm = spark._jvm
    assert jvm is not None
    if not jvm.java.io.File(str(directory)).isDirectory():
        raise ConfigError(
            f"Spark's Java does not find {directory} under this locale: set LC_ALL=C.UTF-8 or use another directory"
        )


def prefix_of(batch_id: int, query_id: str) -> str:
    """How the names of a batch's files begin: a query's batches have numbers, a replay is one batch with an id."""
    return query_id[:23] if query_id.startswith("replay-") else f"batch-{batch_id:06d}-{query_id[:8]}"


def named_for(name: str, prefix: str, number: int) -> str:
    """What a staged file is called in the table: the folder stays, the name says which batch it is of."""
    folder, _, _ = name.rpartition("/")
    return f"{folder}/{prefix}-part-{number:05d}.parquet".lstrip("/")
