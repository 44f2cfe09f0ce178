"""A table of Parquet files that micro-batches are added to exactly once, for readers that know nothing of Spark.

Each batch is written beside the table and moved in file by file, under names that say which batch it was:
``month=7/batch-000012-1a2b3c4d-part-00001.parquet`` (the middle is the query's id). A batch that comes again, because
the process died before Spark noted it as done, first removes what it had moved in. So the table holds each batch once,
only whole files are ever visible in it, and pyarrow or DuckDB count what Spark counts.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.demo_state import sync_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Lake:
    """One table under ``root``: ``table/`` is what readers see, ``staging/`` and ``checkpoint/`` are the writer's."""

    def __init__(self, root: Path, partition_by: str) -> None:
        self.table = root / "table"
        self.checkpoint = root / "checkpoint"
        self._staging = root / "staging"
        self._partition_by = partition_by
        # A writer that was killed may leave a Java process that finishes its files a moment later: those land in the
        # directory of that run, never in ours.
        self._run = self._staging / uuid.uuid4().hex

    def prepare(self) -> None:
        """Creates what is missing and removes what killed writers left. Raises StorageError."""
        try:
            shutil.rmtree(self._staging, ignore_errors=True)
            for directory in (self.table, self._run):
                directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"{self.table.parent} cannot hold a table: {error}") from error

    def add(self, batch: DataFrame, batch_id: int) -> int:
        """Writes a batch and puts it into the table, in place of an earlier try; returns its rows."""
        staged = self._run / f"batch-{batch_id}"
        batch.write.mode("overwrite").partitionBy(self._partition_by).parquet(str(staged))
        return self.take_in(staged, self._prefix(batch_id))

    def take_in(self, staged: Path, prefix: str) -> int:
        """Moves the whole Parquet files of a staged directory into the table; returns their rows.

        Files of the table with this prefix belong to an earlier try of the same batch and go first.
        """
        rows, touched = 0, set()
        for old in self.table.glob(f"**/{prefix}-*.parquet"):
            old.unlink()
            touched.add(old.parent)
        for number, file in enumerate(sorted(_whole_files(staged))):
            file_rows = pq.read_metadata(file).num_rows
            if not file_rows:
                continue
            folder = self.table / file.parent.relative_to(staged)
            folder.mkdir(parents=True, exist_ok=True)
            _sync_file(file)
            file.replace(folder / f"{prefix}-part-{number:05d}.parquet")
            touched.add(folder)
            rows += file_rows
        for folder in touched:
            sync_directory(folder)
        sync_directory(self.table)
        shutil.rmtree(staged, ignore_errors=True)
        return rows

    def files(self) -> Iterable[Path]:
        """The table's data files."""
        return _whole_files(self.table)

    def _prefix(self, batch_id: int) -> str:
        """Batch numbers start anew with a new checkpoint, so the query's id goes with them."""
        metadata = json.loads((self.checkpoint / "metadata").read_text(encoding="utf-8"))
        return f"batch-{batch_id:06d}-{metadata['id'][:8]}"


def check_spark_sees(spark: SparkSession, directory: Path) -> None:
    """Whether Java finds a directory under the name we know it by. Raises ConfigError.

    Hadoop takes a path as it stands: it decodes no ``%20``, so a ``file:`` URI made by Python would name another
    directory, and we hand over plain paths. What is left is Java itself, which under an ASCII locale can name no ``ü``.
    """
    jvm = spark._jvm
    assert jvm is not None
    if not jvm.java.io.File(str(directory)).isDirectory():
        raise ConfigError(
            f"Spark's Java does not find {directory} under this locale: set LC_ALL=C.UTF-8 or use a plain --data-dir"
        )


def _whole_files(root: Path) -> list[Path]:
    """Spark's own rule: what begins with an underscore or a dot, file or directory, is not data."""
    found = root.glob("**/*.parquet")
    return [path for path in found if not any(part[0] in "_." for part in path.relative_to(root).parts)]


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
