"""A replay that is killed, wherever it was, and run again: each record is in the table once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ingest_runs import delta, duckdb_count, expected, parquet, places
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
    """Spark has begun to write beside the table."""
    return any(output.parent.glob(f".{output.name}.staging/**/*.parquet"))


def written(output: Path) -> bool:
    """All is written: the manifest is there, or, for Delta, files that no commit names yet."""
    return any(output.glob("_odradek/batches/replay-*")) or any(output.glob("*.parquet"))


@pytest.fixture(scope="module")
def topic(bootstrap: str) -> str:
    name = unique("replay-kill")
    create_topic(bootstrap, name, 4, retention_ms="-1")
    for partition in range(4):
        publish(bootstrap, name, numbers(RECORDS // 4), partition=partition)
    return name


def start(line: list[str], told: Path) -> subprocess.Popen[str]:
    with told.open("w") as out:  # a file, not a pipe: children that outlive a killed run would hold a pipe open
        return subprocess.Popen(line, stdout=out, stderr=out, text=True)


@pytest.mark.parametrize(("seen", "whole"), [(staged, True), (written, False)])
@pytest.mark.parametrize("table_format", ["parquet", "delta"])
def test_a_killed_replay_is_completed_by_the_next(
    bootstrap: str, admin: Admin, topic: str, tmp_path: Path,
    table_format: str, seen: Callable[[Path], bool], whole: bool,
) -> None:  # fmt: skip
    output, told = tmp_path / "table", tmp_path / "told.txt"
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "replay", "-b", bootstrap, "--topics", topic]
    line += ["--output", str(output), "--table-format", table_format, "--master", "local[2]"]
    first = start(line, told)
    while first.poll() is None and not seen(output):
        time.sleep(0.001)
    assert first.poll() is None, f"it ended before it could be killed: {told.read_text()}"
    if whole:  # else Java finds out by itself
        first.send_signal(signal.SIGSTOP)  # it sees none of its own die, and is killed in the midst of its work
        kill_tree(first.pid)
    first.kill()
    ends = (-signal.SIGKILL,) if whole else (-signal.SIGKILL, 0)  # all was written: it may have been done just then
    assert first.wait(60) in ends, told.read_text()
    second = start(line, told)
    assert second.wait(300) == 0, told.read_text()
    assert f"{RECORDS:,} records" in told.read_text()
    wanted = expected(admin, topic)
    assert places(delta(output) if table_format == "delta" else parquet(output)) == wanted
    if table_format == "parquet":
        assert duckdb_count(output) == RECORDS
    third = start(line, told)
    assert third.wait(300) == 0
    assert "Nothing was added" in told.read_text()
    assert places(delta(output) if table_format == "delta" else parquet(output)) == wanted
    assert sorted(path.name for path in tmp_path.iterdir()) == ["table", "told.txt"], os.listdir(tmp_path)
