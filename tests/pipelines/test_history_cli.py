"""``odradek pipeline history``: tables, a page that needs nothing else, JSON, and errors that say what to do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from publish import create_topic, numbers, publish

import odradek
from odradek.cli.main import run
from odradek.client.admin import Admin
from odradek.core.ids import OffsetAndMetadata, TopicPartition

EVIL = "<script>alert(1)</script>"
TABLES = {
    "commits", "generations", "members", "assignments", "tombstones", "unknown", "others", "findings", "lag", "expiry",
}  # fmt: skip


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """Two groups: one that was sent back from 70 to 20, one with a name that is HTML."""
    with odradek.Broker() as broker:
        create_topic(broker.bootstrap_servers, "orders")
        publish(broker.bootstrap_servers, "orders", numbers(100))
        with Admin(broker.bootstrap_servers) as admin:
            for group, offsets in (("billing", (70, 20)), (EVIL, (100,))):
                for offset in offsets:
                    admin.alter_group_offsets(group, {TopicPartition("orders", 0): OffsetAndMetadata(offset)})
        yield broker.bootstrap_servers


def history(bootstrap: str, *more: str | Path) -> int:
    return run(["pipeline", "history", "-b", bootstrap, *map(str, more)])


def test_tables_and_page(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "history.html"
    assert history(bootstrap, "--output", tmp_path / "tables", "--report", page) == 0
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


def test_json(bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(bootstrap, "--json", "--group", "billing") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    (found,) = told["findings"]
    assert (found["kind"], found["from_offset"], found["to_offset"], found["records"]) == ("rewind", 20, 70, 50)
    assert [one["committed_offset"] for one in found["proof"]] == [70, 20]
    assert told["groups"] == ["billing"]


def test_since_leaves_out_what_was_before(bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(bootstrap, "--json", "--since", "2100-01-01", "--output", tmp_path) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []
    assert pq.read_table(tmp_path / "commits.parquet").num_rows == 0
    assert history(bootstrap, "--json", "--since", "1h") == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--group", "nobody"], "the offsets topic holds nothing about group nobody"),
        (["--since", "soon"], "--since 'soon': expected a time such as"),
        (["--expires-within", "5"], "--expires-within '5': expected a span"),
        (["--report", "/no/such/place/x.html"], "there is no directory"),
        (["--reprot", "x.html"], "did you mean --report?"),
    ],
)
def test_ill_input_is_said_in_a_line(
    bootstrap: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(bootstrap, *more) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert history("127.0.0.1:1") == 1
    assert "cannot reach 127.0.0.1:1" in capsys.readouterr().err


def test_without_plotly_the_extra_is_named(
    bootstrap: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert history(bootstrap, "--report", tmp_path / "x.html") == 2
    assert "odradek[report]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "history", "--help"]) == 0
    assert "odradek pipeline history -b 127.0.0.1:9092 --report history.html" in capsys.readouterr().out
