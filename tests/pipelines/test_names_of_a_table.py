"""A table is the same by each of its names: a symbolic link, a linked parent, a relative path, one with ``..``."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset
import pytest
from support.brokers import unique
from support.killed_runs import count_as_killed
from support.publish import create_topic, publish
from table_rows import Rows, plan

from odradek.core.errors import ConfigError, StorageError
from odradek.pipelines.commit.operations import FinishEntry
from odradek.pipelines.filesystems.hadoop_location import location_of
from odradek.pipelines.filesystems.location import LocalLocation
from odradek.pipelines.formats.target import Target
from odradek.pipelines.parquet.table import ParquetTable
from odradek.pipelines.tables.table import Table


class Killed(Exception):
    pass


@contextlib.contextmanager
def opened(name: str) -> Iterator[Table]:
    table = Table(Target(name), None)
    try:
        yield table
    finally:
        table.close()


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Names of the table ``real/t``; the first one is its path."""
    for folder in ("real/t", "links", "a/b"):
        (tmp_path / folder).mkdir(parents=True)
    for link, to in (("links/t", "real/t"), ("links/again", "links/t"), ("parent", "real"), ("deep", "a/b")):
        (tmp_path / link).symlink_to(tmp_path / to)
    monkeypatch.chdir(tmp_path / "links")
    return {
        "real": str(tmp_path / "real/t"),
        "link": str(tmp_path / "links/t"),
        "two links": str(tmp_path / "links/again"),
        "linked parent": str(tmp_path / "parent/t"),
        "relative": os.path.join("..", "real", "t"),
        "slash": str(tmp_path / "links/t") + "/",
        "dots": str(tmp_path / "deep/../../real/./t"),
        "uri": f"file://{tmp_path}/links/t",
    }


def test_each_name_is_one_location(names: dict[str, str]) -> None:
    for name in names.values():
        location = location_of(name, None)
        assert isinstance(location, LocalLocation)
        assert (str(location.path), location.uri) == (names["real"], names["real"])


@pytest.mark.parametrize(
    ("killed_by", "next_by"), [("real", "link"), ("two links", "real"), ("linked parent", "slash")]
)
def test_a_run_by_another_name_moves_the_files_of_a_killed_run(
    names: dict[str, str], monkeypatch: pytest.MonkeyPatch, killed_by: str, next_by: str
) -> None:
    """Before, the files beside the other name were lost, and the line offered to go on without their rows."""
    real = ParquetTable._perform

    def perform(self: ParquetTable, operation: object) -> object:
        if isinstance(operation, FinishEntry) and operation.position.number:
            raise Killed
        return real(self, operation)

    table = Table(Target(names[killed_by]), None)
    with monkeypatch.context() as patched:
        patched.setattr(ParquetTable, "_perform", perform)
        with pytest.raises(Killed):
            table._writer.add(Rows(10), plan(0))
    end_of_lock = table._locked.pop_all()  # a killed run closes nothing
    count_as_killed(monkeypatch)
    with opened(names[next_by]):
        assert len(list(Path(names["real"]).glob("*.parquet"))) == 1
    end_of_lock.close()


def test_two_names_are_locked_as_one_table(names: dict[str, str]) -> None:
    with opened(names["real"]), pytest.raises(StorageError, match="another pipeline is writing"):
        Table(Target(names["link"]), None)


def test_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    """Its target may be on a disk that is not mounted."""
    (tmp_path / "t").symlink_to(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="is not a folder"):
        Target(str(tmp_path / "t")).check()
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["workers", "spark"])
def test_the_locale_of_cron_holds_for_no_name(writer: str, bootstrap: str, group: str, tmp_path: Path) -> None:
    """Under LC_ALL=C, Java found no folder outside ASCII, neither the table's, nor the checkpoint's, nor a
    partition's."""
    topic = unique("locale")
    create_topic(bootstrap, topic, 1)
    publish(bootstrap, topic, [json.dumps({"id": n, "p": "ä"}).encode() for n in range(10)])
    line = [sys.executable, "-m", "odradek.cli.main", "pipeline", "ingest", "-b", bootstrap, "--topics", topic]
    line += ["--group", group, "--output", str(tmp_path / "tä"), "--checkpoint", str(tmp_path / "cö")]
    line += ["--value-format", "json", "--schema", "id bigint, p string", "--flat", "--partition-by", "p"]
    for rows in (10, 0):
        environment = {name: text for name, text in os.environ.items() if name != "LANG"} | {"LC_ALL": "C"}
        done = subprocess.run(
            [*line, "--writer", writer, "--json"],
            capture_output=True, encoding="utf-8", timeout=400, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout.splitlines()[-1])["rows"] == rows
    found = pyarrow.dataset.dataset(tmp_path / "tä", partitioning="hive").to_table()
    assert (found.num_rows, set(found["p"].to_pylist())) == (10, {"ä"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cö", "tä"]
