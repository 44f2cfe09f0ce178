"""Each program in examples runs and prints the expected lines."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def run(*arguments: str, limit_s: float = 300, **environment: str) -> list[str]:
    """Runs a program and returns its lines."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=EXAMPLES, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=limit_s,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def test_every_example_is_in_the_table_and_has_a_test() -> None:
    named = set(re.findall(r"^\| `([\w./]+)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE))
    programs = {path.name for path in EXAMPLES.glob("*.py")} | {
        f"{path.name}/" for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"
    }
    assert named == programs
    tests = Path(__file__).read_text()
    assert [name for name in programs - {"grafana/"} if f'"{name.rstrip("/")}"' not in tests] == []
    assert (EXAMPLES.parent / "tests/unit/monitor/http/test_dashboards.py").is_file()


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_suite_with_fixtures_passes(processes: str) -> None:
    lines = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", processes, "pytest_suite")
    assert re.search(r"^5 passed", lines[-1]), lines


def test_each_way_of_committing_commits_all() -> None:
    assert run("consumer_commits.py") == [
        f"{way} 10"
        for way in (
            "automatic", "after_each_poll", "without_waiting", "after_each_record", "when_partitions_leave",
            "in_a_transaction",
        )
    ]  # fmt: skip


@pytest.mark.slow
def test_the_columns_give_the_same_in_polars_and_duckdb(tmp_path: Path) -> None:
    """Polars is too large for the packages of every test run, so this test installs it."""
    if importlib.util.find_spec("polars") is None:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path)]
        done = subprocess.run(
            [*command, "polars", "polars-runtime-32"], capture_output=True, text=True, check=False, timeout=300
        )
        if done.returncode:
            pytest.skip(f"polars cannot be installed: {done.stderr.strip().splitlines()[-1:]}")
    lines = run("columns.py", PYTHONPATH=str(tmp_path))
    expected = "[('EWR', 34403), ('JFK', 34295), ('LGA', 34299)]"
    assert lines == [f"polars {expected}", f"duckdb {expected}"]


@pytest.mark.slow
def test_the_spark_query_follows_its_group() -> None:
    assert run("spark_group.py", limit_s=600) == [
        "records behind the log end: [0]",
        "first run [4, 5, 6, 7, 8, 9]",
        "committed 10",
        "records behind the log end: [0]",
        "after the reset [7, 8, 9]",
    ]
