"""The folder of ``odradek pipeline history --output``: what is in it already, other reports at once, a full disk."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.publish import commit, create_topic

import odradek
from odradek.cli.main import run
from odradek.cli.pipeline.history import Writers
from odradek.cli.terminal import CommandError
from odradek.core.errors import ConfigError
from odradek.history.analysis import RESULTS
from odradek.history.views import TABLES
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.history.report_folder import check_held_tables


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with odradek.Broker() as broker:
        create_topic(broker.bootstrap_servers, "orders")
        commit(broker.bootstrap_servers, "billing", {("orders", 0): 0})
        yield broker.bootstrap_servers


def tables_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


ALL = {f"{name}.parquet" for name in (*TABLES, *RESULTS)}


@pytest.mark.parametrize("held", ["findings.parquet/precious.txt", "findings.parquet/mine.parquet", "commits.parquet"])
def test_files_of_others_stay(held: str, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before, the folder was removed and the file replaced, with exit code 0 and no line."""
    (tmp_path / held).parent.mkdir(exist_ok=True)
    (tmp_path / held).write_text("not mine")
    assert run(["pipeline", "history", "-b", address, "--output", str(tmp_path)]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("odradek: ")]
    assert f"has {held}, which is not of an earlier report, and this one would replace" in line
    assert [path.read_text() for path in tmp_path.rglob("*") if path.is_file()] == ["not mine"]


def test_the_tables_of_an_earlier_report_are_replaced(address: str, tmp_path: Path) -> None:
    """Those of a run without Spark are files, those of a run on Spark are folders."""
    (tmp_path / "lag.parquet").mkdir()
    for name in ("part-00000.parquet", "part-00001.parquet", ".part-00000.parquet.crc"):
        pq.write_table(pa.table({"a": [1]}), tmp_path / "lag.parquet" / name)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "commits.parquet")
    check_held_tables(LocalLocation(tmp_path), ["lag", "commits"])
    assert run(["pipeline", "history", "-b", address, "--output", str(tmp_path)]) == 0
    assert tables_in(tmp_path) == ALL
    assert pq.read_table(tmp_path / "commits.parquet").num_rows == 1
    (tmp_path / "lag.parquet").unlink()
    (tmp_path / "lag.parquet").mkdir()
    (tmp_path / "lag.parquet" / "theirs.csv").touch()
    with pytest.raises(ConfigError, match=r"has lag.parquet/theirs.csv"):
        check_held_tables(LocalLocation(tmp_path), ["lag", "commits"])


def test_a_file_uri_names_the_folder(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, a traceback, and a folder with the name ``file:``."""
    monkeypatch.chdir(tmp_path)
    assert run(["pipeline", "history", "-b", address, "--output", f"file:{tmp_path}/of-uri"]) == 0
    assert tables_in(tmp_path) == {"of-uri"}
    assert tables_in(tmp_path / "of-uri") == ALL


def test_reports_at_once_end_well(address: str, tmp_path: Path, forked_commands: None) -> None:
    """Before, all wrote the same ``.part`` files: one ended well, the others with a traceback."""
    command = [sys.executable, "-m", "odradek", "pipeline", "history", "-b", address, "--output", str(tmp_path)]
    reports = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    ends = [(*report.communicate(timeout=240), report.returncode) for report in reports]
    assert [code for *_, code in ends] == [0, 0, 0], ends
    assert tables_in(tmp_path) == ALL
    assert all(pq.read_table(tmp_path / name) is not None for name in ALL)


def test_a_failed_write_names_the_option_and_leaves_no_file(tmp_path: Path) -> None:
    """``/dev/full`` in place of a full disk."""
    writers = Writers(tmp_path)
    writers._part("lag").symlink_to("/dev/full")
    table = pa.table({"a": [os.urandom(10_000).hex() for _ in range(1_000)]})
    with pytest.raises(CommandError, match=rf"^--output {tmp_path}: No space left on device$"):
        writers.write("lag", table)
    writers.discard()
    assert tables_in(tmp_path) == set()


def test_the_files_of_killed_reports_are_removed_after_a_day(address: str, tmp_path: Path) -> None:
    old, young, other = (
        tmp_path / f".{name}.part" for name in (f"lag.parquet.{'a' * 12}", f"lag.parquet.{'b' * 12}", "mine")
    )
    for path in (old, young, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 100_000,) * 2)
    assert run(["pipeline", "history", "-b", address, "--output", str(tmp_path)]) == 0
    assert tables_in(tmp_path) == {*ALL, young.name, other.name}
