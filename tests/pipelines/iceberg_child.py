"""A driver of an Iceberg table in a process of its own: ``iceberg_child.py ROOT LETTER BATCHES``. It adds micro-batches
until the table has so many, and prints the number of each. The run is not stopped by another one, as if the table were
on another machine: only the catalogue is between them."""

from __future__ import annotations

import sys
from pathlib import Path

from iceberg_tables import COLUMNS, add, name_in

from odradek.core.errors import OdradekError
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.iceberg.catalogs import place_of
from odradek.pipelines.iceberg.table import IcebergTable
from odradek.pipelines.tables.runs import Run


def main() -> int:
    root, letter, wanted = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    runs = LocalLocation(root / "runs")
    runs.make()
    try:
        place = place_of(name_in(root), None)
        table = IcebergTable(place, LocalLocation(Path(place.folder)), (), letter * 32)
        table.prepare((), Run(runs).take_number, gone={"dead"})
        table.begin(COLUMNS)
        print("ready", flush=True)
        while True:
            newest = table.state().newest_query
            batch = 0 if newest is None else newest.batch + 1
            if batch >= wanted:
                break
            add(table, batch)
            print(batch, flush=True)
        table.close()
    except OdradekError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
