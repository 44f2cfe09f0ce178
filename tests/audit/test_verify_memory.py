"""The memory of ``odradek pipeline verify`` depends on the span of the offsets, and not on the number of rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

CHILD = """
import resource, sys
from odradek.cli.main import run
code = run(["pipeline", "verify", *sys.argv[1:], "--json"])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def write(folder: Path, files: int, rows_per_file: int) -> None:
    """File n has each offset whose rest modulo ``files`` is n: rows that a hash has distributed over the files."""
    folder.mkdir()
    topic = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows_per_file, np.int8)), pa.array(["events"]))
    partition = pa.array(np.zeros(rows_per_file, np.int32))
    for number in range(files):
        offsets = pa.array(np.arange(number, files * rows_per_file, files))
        table = pa.table({"topic": topic, "partition": partition, "offset": offsets})
        encodings = {"offset": "DELTA_BINARY_PACKED"}
        pq.write_table(table, folder / f"{number:03}.parquet", use_dictionary=["topic"], column_encoding=encodings)


def iceberg(folder: Path) -> list[str]:
    """An Iceberg table of the files of a folder; returns the options that name it."""
    from pyiceberg.catalog import load_catalog

    uri = f"sqlite:///{folder.parent}/{folder.name}.db"
    catalog = load_catalog("default", type="sql", uri=uri, warehouse=f"{folder}-warehouse")
    catalog.create_namespace("db")
    columns = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())])
    catalog.create_table("db.events", columns).add_files(sorted(map(str, folder.glob("*.parquet"))))
    return ["--catalog", uri, "--table", "db.events"]


def verified(*table: str) -> tuple[int, int]:
    """(rows, largest memory in MB) of an audit in a process of its own."""
    done = subprocess.run([sys.executable, "-c", CHILD, *table], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["whole"]
    return found["partitions"][0]["rows"], int(done.stderr) // 1024


@pytest.mark.slow
def test_a_hundred_million_rows_take_bounded_memory(tmp_path: Path) -> None:
    write(tmp_path / "few", 50, 20_000)
    write(tmp_path / "many", 50, 2_000_000)
    for named in (lambda folder: [str(folder)], iceberg):
        check_memory(*(named(tmp_path / name) for name in ("few", "many")))


def check_memory(small: list[str], large: list[str]) -> None:
    rows, few = verified(*small)
    assert rows == 1_000_000
    rows, many = verified(*large)
    assert rows == 100_000_000
    assert many < few + 150, "bits of the offsets (12.5 MB), batches of Arrow and numpy's arrays of one batch"
