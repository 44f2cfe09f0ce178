"""Drivers of an Iceberg table in processes: kill -9 and SIGSTOP at random moments, beside commits of another writer.

Each row is in the table once, by pyiceberg and by DuckDB, whatever has been killed or stopped when.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from iceberg_tables import append_foreign, catalog_in, data_files, offsets_in, published_files
from support.fork_server import Fork
from support.forks import start_driver
from test_iceberg_table import expire

Driver = Fork | subprocess.Popen[bytes]
SIZE = 10
ENDS = ("RunFenced", "TableRefused", "OutcomeUnknown")


class Drivers:
    """The drivers of one table."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._letters = iter("abcdef0123456789" * 20)
        self.said: list[str] = []

    def start(self, batches: int) -> Driver:
        """Starts a driver that goes on until the table has so many micro-batches. Waits until it has begun."""
        driver = start_driver("iceberg_child", str(self._root), next(self._letters), str(batches))
        assert driver.stdout is not None
        self.said.append(driver.stdout.readline().decode().strip())
        return driver

    def end(self, driver: Driver) -> str:
        """Waits for the end of a driver; returns its last line."""
        driver.wait(timeout=300)  # the lines that it says fit into the pipe
        assert driver.stdout is not None
        lines = driver.stdout.read().decode().splitlines()
        self.said += lines
        return lines[-1] if lines else ""


def other_writer(root: Path, chance: Random) -> None:
    """Another writer appends, and sometimes expires snapshots."""
    append_foreign(root)
    if chance.random() < 0.5:
        expire(root)


def round_of_kills(
    drivers: Drivers,
    chance: Random,
    root: Path,
    wanted: int,
    other: Callable[[Path, Random], None] = other_writer,
) -> None:
    """One driver is killed or stopped at a random moment; another one completes the table meanwhile."""
    first = drivers.start(wanted)
    time.sleep(chance.random() * 1.0)
    is_stopped = chance.random() < 0.5
    first.send_signal(signal.SIGSTOP if is_stopped else signal.SIGKILL)
    if chance.random() < 0.5 and (root / "warehouse/db/events/metadata").exists():
        other(root, chance)
    second = drivers.start(wanted)
    if is_stopped and chance.random() < 0.5:
        time.sleep(chance.random())
        first.send_signal(signal.SIGCONT)  # both work at the same time
    drivers.end(second)
    if is_stopped:
        first.send_signal(signal.SIGCONT)
    drivers.end(first)
    last = drivers.start(wanted)
    drivers.end(last)


def check_whole(root: Path, wanted: int) -> None:
    assert offsets_in(root) == list(range(wanted * SIZE))
    assert data_files(root) >= published_files(root)


@pytest.mark.parametrize("seed", [1])
def test_kills_and_stops(seed: int, tmp_path: Path) -> None:
    rounds(seed, tmp_path, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(int(os.environ.get("ODRADEK_ICEBERG_SEEDS", "10"))))
def test_many_kills_and_stops(seed: int, tmp_path: Path) -> None:
    rounds(100 + seed, tmp_path, 5)


def rounds(seed: int, root: Path, count: int) -> None:
    catalog_in(root)
    drivers, chance = Drivers(root), Random(seed)
    for number in range(1, count + 1):
        round_of_kills(drivers, chance, root, number * 12)
        check_whole(root, number * 12)
    check_said(drivers)


def check_said(drivers: Drivers, *more: str) -> None:
    """A driver ends with its last micro-batch, or with one line of these errors, or of ``more``."""
    wrong = [line for line in drivers.said if not line.isdecimal() and line not in ("", "ready")]
    assert all(line.startswith((*ENDS, *more)) for line in wrong), wrong
