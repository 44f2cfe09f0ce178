"""Runs the demo in separate processes, and reads the table that it has written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset as ds
from support.processes import kill_tree

RUN_S = 480.0  # long enough for a busy machine; on an idle one a first run takes some 20 s


class Run(NamedTuple):
    """The end of a run."""

    code: int
    out: str
    err: str


class Table(NamedTuple):
    """The table as pyarrow reads it, without our code: rows, distinct records, sum of their distances."""

    rows: int
    distinct: int
    distance: int


def command(data_dir: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "odradek.cli.main", "demo", "--data-dir", str(data_dir), *options]


def run_demo(data_dir: Path, *options: str) -> Run:
    done = subprocess.run(command(data_dir, options), capture_output=True, text=True, timeout=RUN_S, check=False)
    return Run(done.returncode, done.stdout, done.stderr)


def run_until(step: str, data_dir: Path, *options: str) -> Run:
    """Runs the demo until a step of ``demo_child.py``, which kills it and all its children."""
    child = [sys.executable, str(Path(__file__).with_name("demo_child.py")), step, "--data-dir", str(data_dir)]
    return _run_in_files([*child, *options], data_dir.parent, lambda process: None)


def signal_demo_when(data_dir: Path, options: Sequence[str], reached: Callable[[], bool], *, whole: bool) -> Run:
    """Starts the demo and kills it once ``reached()`` is true. ``whole``: with all its children.

    A killed run has code -9; a run that ended earlier has its own code.
    """

    def watch(process: subprocess.Popen[str]) -> None:
        while not reached() and process.poll() is None:
            time.sleep(0.002)
        if process.poll() is None:
            if whole:
                kill_tree(process.pid)
            process.kill()

    return _run_in_files(command(data_dir, options), data_dir.parent, watch)


def _run_in_files(line: list[str], place: Path, watch: Callable[[subprocess.Popen[str]], None]) -> Run:
    """Runs a command with files for its output. Children that outlive a killed run would hold a pipe open."""
    with (place / "out.txt").open("w+") as out, (place / "err.txt").open("w+") as err:
        # Child processes find the modules of the tests, too.
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PYTHONPATH": path}
        process = subprocess.Popen(line, stdout=out, stderr=err, text=True, env=environment)
        watch(process)
        code = process.wait(RUN_S)
        out.seek(0)
        err.seek(0)
        return Run(code, out.read(), err.read())


def log_bytes(data_dir: Path) -> int:
    """The bytes of records that the broker has written for topic flights."""
    total = 0
    for path in (data_dir / "broker").glob("flights-*/*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def table_files(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "table").glob("month=*/*.parquet"))


def read_table(data_dir: Path) -> Table:
    rows = ds.dataset(data_dir / "table", partitioning="hive").to_table(columns=["partition", "offset", "distance"])
    records = {(p, o): d for p, o, d in zip(*(column.to_pylist() for column in rows.columns), strict=True)}
    return Table(rows.num_rows, len(records), sum(records.values()))
