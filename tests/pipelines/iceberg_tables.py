"""Iceberg tables for tests: the catalogue of a folder, rows as workers write them, and two readers.

The catalogue is an SQL catalogue, or the REST catalogue that ``use_rest`` has named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from table_rows import QUERY, TP

from odradek.core.ids import NO_TAILS, LogTails
from odradek.pipelines.commit.state import BatchPlan, covers_of, ends_of
from odradek.pipelines.files.file_layouts import FileLayout
from odradek.pipelines.files.staging import StagedFile, staged_file
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.pipelines.iceberg.catalogs import TableName, place_of
from odradek.pipelines.iceberg.table import IcebergTable

NAME = "db.events"
_REST = "rest-catalogue"  # the file with the URI
COLUMNS = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("small", pa.int8())])


def catalog_in(root: Path) -> SqlCatalog:
    """The catalogue of a folder; the first call creates it."""
    where = {"uri": f"sqlite:///{root}/catalog.db", "warehouse": f"{root}/warehouse"}
    catalog = load_catalog("default", type="sql", **where)
    assert isinstance(catalog, SqlCatalog)
    catalog.create_namespace_if_not_exists("db")
    return catalog


def use_rest(root: Path, uri: str) -> None:
    """From now on the catalogue of a folder is the REST catalogue at ``uri``, also for other processes."""
    load_catalog("default", type="rest", uri=uri).create_namespace_if_not_exists("db")
    (root / _REST).write_text(uri)


def catalog_of(root: Path) -> Catalog:
    """The catalogue of a folder as other writers use it."""
    rest = root / _REST
    return load_catalog("default", type="rest", uri=rest.read_text()) if rest.exists() else catalog_in(root)


def name_in(root: Path) -> TableName:
    if (root / _REST).exists():
        return TableName((root / _REST).read_text(), NAME)
    return TableName(f"sqlite:///{root}/catalog.db", NAME, {"warehouse": f"{root}/warehouse"})


def table_in(root: Path, run: str = "a", number: int | None = None, partition_by: tuple[str, ...] = ()) -> IcebergTable:
    """A table that a run has opened. ``number``: that of the run; None: the next one."""
    place = place_of(name_in(root), None)
    table = IcebergTable(place, LocalLocation(Path(place.folder)), partition_by, run * 32)
    table.prepare((), (lambda least: least + 1) if number is None else lambda least: number)
    table.begin(COLUMNS)
    return table


class OffsetRows:
    """Rows with these offsets of a partition, in a file for each half. ``during`` is called after they are written."""

    in_place = True
    schema: Any = None
    tails: LogTails = NO_TAILS

    def __init__(self, start: int, end: int, during: Callable[[], None] = lambda: None) -> None:
        self.start, self.end, self.during = start, end, during

    def write(self, location: Location, prefix: str, layout: FileLayout) -> list[StagedFile]:
        assert isinstance(location, LocalLocation)
        middle = (self.start + self.end) // 2
        parts = [range(self.start, middle), range(middle, self.end)]
        found = [file for part in parts for file in self._files(location, prefix, layout, part)]
        self.during()
        return found

    def _files(self, location: LocalLocation, prefix: str, layout: FileLayout, offsets: range) -> list[StagedFile]:
        count = len(offsets)
        columns = [[TP.topic] * count, [TP.partition] * count, list(offsets), [at % 5 for at in offsets]]
        rows = pa.RecordBatch.from_arrays(
            [pa.array(one, of.type) for one, of in zip(columns, COLUMNS, strict=True)], schema=COLUMNS
        )
        found = []
        for part in layout.parts(rows):
            name = f"{part.folder}/{prefix}-{os.urandom(6).hex()}-00000.parquet".lstrip("/")
            path = location.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with pq.ParquetWriter(path, layout.schema(COLUMNS), store_schema=False) as writer:
                writer.write_batch(part.rows)
            footer = pq.read_metadata(path)
            file = staged_file(name, path.stat().st_size, footer)
            found.append(StagedFile(name, file.size, file.rows, 0, {}, part.values, footer))
        return found


def plan_of(batch: int, size: int = 10, query: str = QUERY) -> BatchPlan:
    """The plan of a micro-batch of ``size`` offsets."""
    start, end = batch * size, (batch + 1) * size
    before = None if batch == 0 else covers_of([(TP, start - size, start)])
    begin = None if batch == 0 else ends_of({TP: start})
    covers, ends = covers_of([(TP, start, end)]), ends_of({TP: end})
    first = {TP: 0} if batch == 0 else {}
    return BatchPlan(query, batch, covers, ends, begin=begin, covers_before=before, offsets={TP: end}, first=first)


def add(table: IcebergTable, batch: int, size: int = 10, during: Callable[[], None] = lambda: None) -> int:
    """Adds a micro-batch; returns the number of its rows."""
    return table.add(OffsetRows(batch * size, (batch + 1) * size, during), plan_of(batch, size)).rows


def offsets_in(root: Path) -> list[int]:
    """The offsets in the table, by pyiceberg and by DuckDB, which have to agree."""
    table = catalog_of(root).load_table(NAME)
    ours: list[int] = sorted(table.scan(row_filter=f"topic == '{TP.topic}'").to_arrow()["offset"].to_pylist())
    assert ours == by_duckdb(root)
    return ours


def by_duckdb(root: Path) -> list[int]:
    """The offsets in the data files of the newest snapshot, read by DuckDB, which finds them in the manifests."""
    import duckdb

    table = catalog_of(root).load_table(NAME)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    if not paths:
        return []
    rows = duckdb.sql(
        f"SELECT \"offset\" FROM read_parquet({paths!r}) WHERE topic = '{TP.topic}' ORDER BY 1"
    ).fetchall()
    return [at for (at,) in rows]


def append_foreign(root: Path, offsets: range = range(3)) -> None:
    """Another writer appends rows of another topic, by pyiceberg."""
    table = catalog_of(root).load_table(NAME)
    rows = {
        "topic": ["other"] * len(offsets),
        "partition": [0] * len(offsets),
        "offset": list(offsets),
        "small": [0] * len(offsets),
    }
    table.append(pa.table(rows, schema=table.schema().as_arrow()))


def data_files(root: Path) -> set[str]:
    """The data files in the table's folder, by their names."""
    return {path.name for path in (root / "warehouse/db/events/data").rglob("*.parquet")}


def published_files(root: Path) -> set[str]:
    """The data files of all snapshots, by their names."""
    files = catalog_of(root).load_table(NAME).inspect.all_files()["file_path"].to_pylist()
    return {path.rpartition("/")[2] for path in files}
