"""A replay that is killed at any point and run again: each record is in the table once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ingest_runs import delta, duckdb_count, expected, parquet, record_ids
from support.brokers import unique
from support.processes import kill_tree
from support.publish import create_topic, numbers, publish

from odradek.client.admin import Admin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds a process's children through /proc"),
]
RECORDS = 40_000


def staged(output: Path) -> bool:
    """Whether Spark has begun to write beside the table."""
    return any(output.parent.glob(f".{output.name}.staging/**/*.parquet"))


def written(output: Path) -> bool:
    """Whether the manifest exists, or a data file in the table's folder."""
    return any(output.glob("_odradek/batches/replay-*")) or any(output.glob("*.parquet"))


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    name = unique("replay-kill")
    create_topic(bootstrap, name, 4, retention_ms="-1")
    for partition in range(4):
        publish(bootstrap, name, numbers(RECORDS // 4), partition=partition)
    return name


def start(line: list[str], log_file: Path) -> subprocess.Popen[str]:
    with log_file.open("w") as out:  # a file, not a pipe: children that outlive a killed run would hold a pipe open
        return subprocess.Popen(line, stdout=out, stderr=out, text=True)


@pytest.mark.parametrize(("seen", "whole"), [(staged, True), (written, False)])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_killed_replay_is_completed_by_the_next(
    bootstrap: str, admin: Admin, topic: str, tmp_path: Path,
    table_format: str, seen: Callable[[Path], bool], whole: bool,
) -> None:  # fmt: skip
    output, log_file = tmp_path / "table", tmp_path / "output.txt"
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "replay", "-b", bootstrap, "--topics", topic]
    line += ["--output", str(output), "--table-format", table_format, "--master", "local[2]"]
    first = start(line, log_file)
    while first.poll() is None and not seen(output):
        time.sleep(0.001)
    assert first.poll() is None, f"the replay ended before the kill: {log_file.read_text()}"
    if whole:  # else only Python is killed, and Java ends when it notices this
        first.send_signal(signal.SIGSTOP)  # the driver is stopped first, so it sees none of its children end
        kill_tree(first.pid)
    first.kill()
    # A run with written files may have ended before the kill, with code 0.
    ends = (-signal.SIGKILL,) if whole else (-signal.SIGKILL, 0)
    assert first.wait(60) in ends, log_file.read_text()
    second = start(line, log_file)
    assert second.wait(300) == 0, log_file.read_text()
    assert f"{RECORDS:,} records" in log_file.read_text()
    wanted = expected(admin, topic)
    assert record_ids(delta(output) if table_format == "delta" else parquet(output)) == wanted
    if table_format == "parquet":
        assert duckdb_count(output) == RECORDS
    third = start(line, log_file)
    assert third.wait(300) == 0
    assert "Nothing was added" in log_file.read_text()
    assert record_ids(delta(output) if table_format == "delta" else parquet(output)) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "output.txt"], os.listdir(tmp_path)
