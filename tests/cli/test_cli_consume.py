"""``odradek consume``."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from odradek.cli.main import run

Capture = pytest.CaptureFixture[str]


def test_terminal_json_and_parquet(bootstrap: str, filled: str, tmp_path: Path, capsys: Capture) -> None:
    assert run(["consume", filled, "-b", bootstrap]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{p}:{n}" for p in (0, 1) for n in range(10)]
    assert run(["consume", f"{filled}:1", "--from", "8", "--json", "-b", bootstrap]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["partition"], row["offset"], row["key"], row["value"]) for row in found] == [
        (1, 8, "8", "1:8"), (1, 9, "9", "1:9"),
    ]  # fmt: skip
    since = "2023-11-14T22:13:20.007"
    assert run(["consume", filled, "--from", since, "--output", str(tmp_path / "f"), "-b", bootstrap]) == 0
    assert pq.read_table(tmp_path / "f").column("offset").to_pylist() == [7, 8, 9, 7, 8, 9]
    nothing = tmp_path / "nothing"
    assert run(["consume", filled, "--from", "10", "--output", str(nothing), "-b", bootstrap]) == 0
    assert pq.read_table(nothing).num_rows == 0
    assert pq.read_schema(nothing) == pq.read_schema(tmp_path / "f")
    assert run(["consume", filled, "--from", "soon", "-b", bootstrap]) == 2
