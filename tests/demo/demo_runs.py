"""Runs of the demo for tests: as a process of their own, and what is in the table they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.dataset as ds

FIRST_RUN_S = 240.0


class Run(NamedTuple):
    """How a run ended."""

    code: int
    out: str
    err: str


class Table(NamedTuple):
    """What pyarrow finds, read with none of our code: rows, distinct records, sum of their distances."""

    rows: int
    distinct: int
    distance: int


def command(data_dir: Path, options: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "odradek.cli.main", "demo", "--data-dir", str(data_dir), *options]


def run_demo(data_dir: Path, *options: str) -> Run:
    done = subprocess.run(command(data_dir, options), capture_output=True, text=True, timeout=FIRST_RUN_S, check=False)
    return Run(done.returncode, done.stdout, done.stderr)


def kill_demo_when(data_dir: Path, options: Sequence[str], reached: Callable[[], bool]) -> bool:
    """Starts the demo and kills it (-9, the job's own process alone) once ``reached``; False when it ended first."""
    with (data_dir.parent / "killed.txt").open("ab") as output:
        process = subprocess.Popen(command(data_dir, options), stdout=output, stderr=output)
        while not reached():
            try:
                process.wait(0.002)
            except subprocess.TimeoutExpired:
                continue
            return False
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    return True


def log_bytes(data_dir: Path) -> int:
    """Bytes of records that the broker has written for topic flights."""
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
