"""``odradek pipeline history``: tables, a page that needs nothing else, JSON, and errors that say what to do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.publish import create_topic, numbers, publish

import odradek
from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition

EVIL = "<script>alert(1)</script>"
TABLES = {
    "commits", "generations", "members", "assignments", "tombstones", "unknown", "others", "findings", "lag", "expiry",
    "coverage",
}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two groups: one that was sent back from 70 to 20, one with a name that is HTML.

    The broker's clock is ahead, so that its newest record is the present that a report is about, whenever it is made.
    """
    with odradek.Broker() as broker:
        broker.clock.advance(days=1)
        create_topic(broker.bootstrap_servers, "orders")
        publish(broker.bootstrap_servers, "orders", numbers(100))
        with Admin(broker.bootstrap_servers) as admin:
            for group, offsets in (("billing", (70, 20)), (EVIL, (100,))):
                for offset in offsets:
                    admin.alter_group_offsets(group, {TopicPartition("orders", 0): OffsetAndMetadata(offset)})
        yield broker.bootstrap_servers


def history(address: str, *more: str | Path) -> int:
    return run(["pipeline", "history", "-b", address, *map(str, more)])


def test_tables_and_page(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "history.html"
    assert history(address, "--output", tmp_path / "tables", "--report", page) == 0
    told = capsys.readouterr()
    assert "from 70 back to 20: records 20 to 69 are read again" in told.out
    assert told.err == ""
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {f"{name}.parquet" for name in TABLES}
    commits = pq.read_table(tmp_path / "tables" / "commits.parquet").to_pylist()
    assert [row["committed_offset"] for row in commits if row["group"] == "billing"] == [70, 20]
    html = page.read_text()
    own = re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)
    assert "records 20 to 69" in own
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in own
    assert re.search(r"<script[^>]+src=|<link|<img|@import", own) is None
    assert not list(tmp_path.glob("**/*.part"))


def test_json(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(address, "--json", "--group", "billing") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    (found,) = told["findings"]
    assert (found["kind"], found["from_offset"], found["to_offset"], found["records"]) == ("rewind", 20, 70, 50)
    assert [one["committed_offset"] for one in found["proof"]] == [70, 20]
    assert told["groups"] == ["billing"]


def rows(path: Path) -> list[str]:
    return sorted(repr(row) for row in pq.read_table(path).to_pylist())


def told_of(address: str, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """What is said, all rows of all tables, and the page, less the names that plotly gives to its plots."""
    page, tables = output / "history.html", output / "tables"
    assert history(address, "--output", tables, "--report", page, "--json", *more) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert {path.name for path in tables.iterdir()} == {f"{one}.parquet" for one in TABLES}
    assert {path.is_dir() for path in tables.iterdir()} == {bool(more)}
    schema = pq.read_schema(next(tables.glob("lag.parquet/*"), tables / "lag.parquet"))
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    html = page.read_text()
    page.unlink()
    plain = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "", html)
    told = {one: rows(tables / f"{one}.parquet") for one in TABLES}
    return told | {"said": json.loads(said.out), "page": plain}


def test_on_spark_page_and_tables_are_the_same(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row for row, where tables of the other kind stand: files of one machine give way to folders of files of many."""
    here = told_of(address, tmp_path, capsys)
    there = told_of(address, tmp_path, capsys, "--master", "local[2]")
    for name, told in here.items():
        assert there[name] == told, name
    (found,) = there["said"]["findings"]
    assert (found["kind"], found["from_offset"], found["to_offset"]) == ("rewind", 20, 70)
    assert {name for name in TABLES if there[name]} >= {"commits", "findings", "lag", "expiry", "coverage"}
    assert "records 20 to 69" in there["page"]


@pytest.mark.slow
def test_after_spark_one_machine_writes_files_again(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = told_of(address, tmp_path, capsys, "--master", "local[2]")
    assert told_of(address, tmp_path, capsys) == there


def test_on_spark_ill_input_is_said_in_a_line(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for more, code, says in (
        (["--group", "nobody"], 2, "the offsets topic has no records of group nobody"),
        (["--output", str(tmp_path / "file")], 2, "cannot be used"),
        (["--output", "nofs://x/y"], 2, "nofs://x/y cannot be reached"),
        (["--report", "/no/such/place/x.html"], 2, "there is no directory"),
        (["--conf", "x"], 2, "--conf 'x': expected NAME=VALUE"),
        (["-b", "127.0.0.1:1"], 1, "cannot reach 127.0.0.1:1"),
    ):
        assert history(address, "--master", "local[2]", *more) == code, more
        told = capsys.readouterr()
        assert says in told.err
        assert told.err.count("\n") == 1
    assert history(address, "--output", "hdfs://x/y") == 2
    assert "a URI needs --master" in capsys.readouterr().err


def test_since_leaves_out_what_was_before(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(address, "--json", "--since", "2100-01-01", "--output", tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert pq.read_table(tmp_path / "commits.parquet").num_rows == 0
    assert history(address, "--json", "--since", "1h") == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--group", "nobody"], "the offsets topic has no records of group nobody"),
        (["--since", "soon"], "--since 'soon': expected a time such as"),
        (["--expires-within", "5"], "--expires-within '5': expected a span"),
        (["--report", "/no/such/place/x.html"], "there is no directory"),
        (["--reprot", "x.html"], "did you mean --report?"),
    ],
)
def test_ill_input_is_said_in_a_line(
    address: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(address, *more) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert history("127.0.0.1:1") == 1
    assert "cannot reach 127.0.0.1:1" in capsys.readouterr().err


def test_without_plotly_the_extra_is_named(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert history(address, "--report", tmp_path / "x.html") == 2
    assert "odradek[report]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "history", "--help"]) == 0
    assert "odradek pipeline history -b 127.0.0.1:9092 --report history.html" in capsys.readouterr().out
