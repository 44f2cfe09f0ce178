"""Two concurrent runs of ``history --output``, and files of dead runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from odradek.core.errors import StorageError
from odradek.pipelines.filesystems.location import LocalLocation, Location
from odradek.pipelines.history import report as history_report
from odradek.pipelines.history.frames import HistoryFrames
from odradek.pipelines.history.report import write_tables
from odradek.pipelines.tables.runs import Run

STAGED = ".history-"


def stage(output: Path, run: str, days: float = 0.0) -> Path:
    path = output / f"{STAGED}{run}"
    (path / "commits").mkdir(parents=True)
    os.utime(path, (time.time() - days * 86_400,) * 2)
    return path


def write(output: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls ``write_tables`` without Spark. Returns the names of the staging folders that it used."""
    staged: list[str] = []

    def wrote(spark: Any, frames: Any, place: Location, since_us: Any, into: Location) -> None:
        staged.append(into.uri.rpartition("/")[2])
        into.make()
        assert [path.name for path in (output / "_odradek" / "runs").iterdir()] != []
        into.remove()

    monkeypatch.setattr(history_report, "_write", wrote)
    write_tables(cast(Any, None), cast(HistoryFrames, None), LocalLocation(output), None)
    return staged


def test_a_live_run_keeps_its_staging_and_a_second_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Run(LocalLocation(tmp_path / "_odradek" / "runs"))
    first.begin()
    living = stage(tmp_path, first.id)
    with pytest.raises(StorageError, match=rf"another pipeline is writing.*process {os.getpid()} on .*{first.id[:8]}"):
        write(tmp_path, monkeypatch)
    assert (living / "commits").exists()
    first.end()


def test_staging_and_records_of_dead_runs_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead, unknown, old = stage(tmp_path, "d" * 32), stage(tmp_path, "0123abcd"), stage(tmp_path, "89abcdef", days=1.1)
    killed = Run(LocalLocation(tmp_path / "_odradek" / "runs"))
    record = killed._record._replace(run="d" * 32, process="999999999@1", begun_s=1.0, seen_s=1.0)
    LocalLocation(tmp_path / "_odradek" / "runs").write_text(f"{'d' * 32}.json", json.dumps(record._asdict()))
    (staged,) = write(tmp_path, monkeypatch)
    assert len(staged) == len(STAGED) + 32
    assert (dead.exists(), unknown.exists(), old.exists()) == (False, True, False)
    assert [path.name for path in tmp_path.iterdir()] == [unknown.name]
