"""A run of ``ingest`` in a process of its own, without Spark: ``evolution_child.py JSON``, with the keywords, and
``halt`` as in ``driver_child``. Its locks are open: another run never stops it, and its log decides."""

from __future__ import annotations

import json
import sys

import driver_child
from support import plain_engine

from odradek.pipelines.delta.table import DeltaTable
from odradek.pipelines.iceberg.table import IcebergTable
from odradek.pipelines.parquet.table import ParquetTable


def main() -> None:
    plain_engine.use()
    driver_child.open_all_locks()
    for kind in (ParquetTable, DeltaTable, IcebergTable):
        driver_child.halt_at_operations(kind)
    print(json.dumps(driver_child.said_by(None, json.loads(sys.argv[1]))), flush=True)


if __name__ == "__main__":
    main()
