"""A Delta table that another tool has copied has no ``_odradek``: the refusals name a way that works."""

from __future__ import annotations

import shutil
from pathlib import Path

import deltalake
from support.forks import run_steps
from support.publish import create_topic


def run(*steps: list[str]) -> tuple[int, str]:
    done = run_steps(*steps)
    return done.returncode, done.stdout + done.stderr


def test_a_copy_without_the_description_goes_on_with_that_of_the_original(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    create_topic(bootstrap, topic)
    original, copy = tmp_path / "original", tmp_path / "copy"

    def ingest(table: Path) -> list[str]:
        own = ["--group", f"{topic}-{table.name}", "--topics", topic, "--table-format", "delta"]
        return ["pipeline", "ingest", "-b", bootstrap, *own, "--output", str(table)]

    def send(count: int) -> list[str]:
        return ["send", bootstrap, topic, str(count)]

    adopt = ["pipeline", "adopt", "-b", bootstrap, "--group", f"{topic}-copy", "--output", str(copy), "--execute"]
    code, out = run(send(20), ingest(original))
    assert code == 0, out
    shutil.copytree(original, copy)
    shutil.rmtree(copy / "_odradek")
    code, out = run(send(10), ingest(copy))
    assert (code, "restore this file from a copy of the table" in out) == (1, True), out
    code, out = run(adopt)
    assert (code, "copy this file from the table of which this one is a copy" in out) == (1, True), out
    (copy / "_odradek").mkdir(exist_ok=True)
    shutil.copy(original / "_odradek" / "table.json", copy / "_odradek" / "table.json")
    code, out = run(adopt, ingest(copy), send(5), ingest(copy), ingest(original))
    assert code == 0, out
    for table in (copy, original):
        assert sorted(deltalake.DeltaTable(table).to_pyarrow_table()["offset"].to_pylist()) == list(range(35))
