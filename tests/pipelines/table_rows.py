"""Shared code of the tests of tables without Spark: rows that a test writes, plans of micro-batches, opened tables."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable as Log
from pyspark.sql.types import LongType, StructField, StructType

from odradek.core.ids import NO_TAILS, LogTails, TopicPartition
from odradek.pipelines.commit.state import BatchPlan, covers_of, ends_of
from odradek.pipelines.delta.table import DeltaTable
from odradek.pipelines.files.file_layouts import FileLayout
from odradek.pipelines.files.staging import StagedFile, staged_file
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.pipelines.parquet.table import ParquetTable

QUERY = "0123456789abcdef"
COLUMNS = StructType([StructField("n", LongType())])
TP = TopicPartition("t", 0)
Table = DeltaTable | ParquetTable
KINDS = pytest.mark.parametrize("kind", ["parquet", "delta"])
_NUMBERS = itertools.count(1)


class Rows:
    """Rows that a test writes like a worker. ``during`` is called while they are written."""

    in_place = True
    schema = COLUMNS
    tails: LogTails = NO_TAILS

    def __init__(self, rows: int, during: Callable[[], None] = lambda: None) -> None:
        self.rows = rows
        self.during = during

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        assert isinstance(location, LocalLocation)
        location.path.mkdir(parents=True, exist_ok=True)
        name = f"{prefix}-{os.urandom(6).hex()}-00000.parquet"
        pq.write_table(pa.table({"n": range(self.rows)}), location.path / name)
        self.during()
        return [staged_file(name, (location.path / name).stat().st_size, pq.read_metadata(location.path / name))]


def plan(batch: int, query: str = QUERY, end: int | None = None) -> BatchPlan:
    """The plan of a micro-batch of ten offsets, or up to ``end``."""
    start, end = batch * 10, batch * 10 + 10 if end is None else end
    before = None if batch == 0 else covers_of([(TP, start - 10, start)])
    begin = None if batch == 0 else ends_of({TP: start})
    covers, ends = covers_of([(TP, start, end)]), ends_of({TP: end})
    first = {TP: 0} if batch == 0 else {}
    return BatchPlan(query, batch, covers, ends, begin=begin, covers_before=before, offsets={TP: end}, first=first)


def delta_table(root: Path, run: str) -> DeltaTable:
    return DeltaTable(LocalLocation(root / "t"), LocalLocation(root / ".t.staging"), run=run)


def parquet_table(root: Path, run: str = "a" * 32) -> ParquetTable:
    return ParquetTable(*(LocalLocation(root / name) for name in ("t", "b", ".t.staging")), run=run)


def begun_table(kind: str, root: Path, run: str) -> Table:
    """A table that a run with the next number has opened."""
    table: Table = delta_table(root, run * 32) if kind == "delta" else parquet_table(root, run * 32)
    table.prepare(frozenset(), lambda least: max(least + 1, next(_NUMBERS)))
    return table


def files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "t").glob("*.parquet"))


def rows_of(root: Path) -> int:
    """The rows of the table."""
    is_delta = (root / "t" / "_delta_log").exists()
    return int((Log(root / "t").to_pyarrow_table() if is_delta else ds.dataset(root / "t").to_table()).num_rows)


def log_files(root: Path) -> list[str]:
    return sorted(uri.rpartition("/")[2] for uri in Log(root / "t").file_uris())
