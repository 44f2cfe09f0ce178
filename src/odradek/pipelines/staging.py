"""What Spark has written beside a table, to be put into it: the files, and what is in them.

A batch is staged in a folder that belongs to one run of one writer. One that was killed may leave a Java process
behind that finishes its files a moment later: those land in the folder of that run, never in another's.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq

from odradek.pipelines.demo_state import sync_directory
from odradek.pipelines.places import LocalPlace, Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ERROR = "error"
"""The column that says why a record's value could not be read; null where it could."""


@dataclass(frozen=True)
class StagedFile:
    """A file by its name in the staging folder; ``bad``: rows whose ``error`` says something."""

    name: str
    size: int
    rows: int
    bad: int


class Staging:
    """Where one run of a writer stages its batches."""

    def __init__(self, root: Place) -> None:
        self.root = root
        self.run = uuid.uuid4().hex

    def batch(self, batch_id: int) -> str:
        """The name of a batch's folder below ``root``."""
        return f"{self.run}/batch-{batch_id}"

    def stage(
        self,
        frame: DataFrame,
        batch_id: int,
        partition_by: Sequence[str],
        check: Callable[[DataFrame], None] | None = None,
    ) -> list[StagedFile]:
        """Writes the rows of a batch; returns the files that hold any, durable where the place is this machine's.

        ``check`` gets what was written, to be read.
        """
        place = self.root.child(self.batch(batch_id))
        writer = frame.write.mode("overwrite")
        (writer.partitionBy(*partition_by) if partition_by else writer).parquet(place.uri)
        if check is not None:
            check(frame.sparkSession.read.schema(frame.schema).parquet(place.uri))
        return staged_files(place, frame)


def staged_files(place: Place, frame: DataFrame | None = None) -> list[StagedFile]:
    """The files of a folder that hold rows. ``frame`` has the session to look with, and the schema, where it is far."""
    if isinstance(place, LocalPlace):
        found = [_look(place.path, file.name, file.size) for file in place.data_files()]
        folders = {folder for file in found for folder in (place.path / file.name).parents}
        for folder in folders - set(place.path.parent.parent.parents):
            sync_directory(folder)
    else:
        assert frame is not None
        found = _ask_spark(place, frame)
    return [file for file in found if file.rows]


def _look(root: Path, name: str, size: int) -> StagedFile:
    path = root / name
    with path.open("rb+") as opened:
        os.fsync(opened.fileno())
    metadata = pq.read_metadata(path)
    bad = 0
    columns = [number for number in range(metadata.num_columns) if metadata.schema.column(number).path == ERROR]
    for number, at in itertools.product(range(metadata.num_row_groups), columns):
        column = metadata.row_group(number).column(at)
        bad += column.num_values - column.statistics.null_count
    return StagedFile(name, size, metadata.num_rows, bad)


def _ask_spark(place: Place, frame: DataFrame) -> list[StagedFile]:
    from pyspark.sql import functions as f

    files = place.data_files()
    if not files:
        return []
    bad = f.count(ERROR) if ERROR in frame.columns else f.lit(0)
    staged = frame.sparkSession.read.schema(frame.schema).parquet(place.uri)
    counted = staged.groupBy("_metadata.file_path").agg(f.count("*").alias("rows"), bad.alias("bad")).collect()
    # Full paths, quoted as in a URI; the folder's own last two parts occur in no other place.
    folder = "/".join(place.uri.split("/")[-2:]) + "/"
    by_name = {unquote(row.file_path).partition(folder)[2]: row for row in counted}
    known = ((file, by_name.get(file.name)) for file in files)
    return [StagedFile(file.name, file.size, row.rows, row.bad) for file, row in known if row is not None]
