"""``odradek pipeline history``: tables, a page without dependencies, JSON, and clear errors."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.brokers import Wire
from support.publish import create_topic, numbers, publish

import odradek
from odradek.batches.encode import encode_batch
from odradek.cli import progress_lines
from odradek.cli.main import run
from odradek.cli.pipeline import history as pipeline_history
from odradek.cli.pipeline.options import HistoryLine
from odradek.client.admin import Admin
from odradek.codecs.offsets_topic import OffsetCommitValue, offset_key, offset_value
from odradek.core.effects import SimpleRecord
from odradek.core.extras import command_of
from odradek.core.ids import OffsetAndMetadata, TopicPartition, partition_for_group
from odradek.history import report
from odradek.pipelines import report_history
from odradek.pipelines.history.options import ReportOptions
from odradek.pipelines.option_declarations import declared_options
from odradek.wire.api_keys import PRODUCE

EVIL = "<script>alert(1)</script>"
TABLES = {
    "commits", "generations", "members", "assignments", "tombstones", "unknown", "others", "findings", "lag", "expiry",
    "coverage", "verdicts",
}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Two groups: one that was reset from 70 to 20, and one with a name that is HTML.

    The broker's clock is a day ahead. So the time range of each report ends with the newest record, not with the
    time of the report.
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


@pytest.mark.parametrize(
    ("ms", "json_time", "shown"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59.999000+00:00", "9999-12-31 23:59:59"),
        (253_402_300_800_007, 253_402_300_800_007, "253402300800007000 µs"),
        (9_223_372_036_854_775, 9_223_372_036_854_775, "9223372036854775000 µs"),
        (-62_135_596_800_000, "0001-01-01T00:00:00+00:00", "0001-01-01 00:00:00"),
    ],
)
def test_times_beyond_the_calendar(
    ms: int, json_time: str | int, shown: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As another program may write them. The report has no other year, and its plots leave the time out."""
    assert report.time_text(ms * 1000) == shown
    assert report.plot_time(ms * 1000) == (None if "µs" in shown else shown)
    if ms not in (253_402_300_799_999, 253_402_300_800_007):
        return
    with odradek.Broker() as broker, Wire(broker.bootstrap_servers, client_id="__admin_client") as wire:
        create_topic(broker.bootstrap_servers, "orders")
        publish(broker.bootstrap_servers, "orders", numbers(9))
        with Admin(broker.bootstrap_servers) as admin:
            admin.alter_group_offsets("g", {TopicPartition("orders", 0): OffsetAndMetadata(5)})
        value = offset_value(OffsetCommitValue(3, -1, "", ms))
        records = encode_batch([SimpleRecord(offset_key("g", "orders", 0), value)], now_ms=time.time_ns() // 1_000_000)
        of = {"index": partition_for_group("g", 50), "records": records}
        topics = [{"name": "__consumer_offsets", "partition_data": [of]}]
        asked = {"transactional_id": None, "acks": -1, "timeout": 10_000, "topic_data": topics}
        assert wire.call(PRODUCE, 9, asked).responses[0].partition_responses[0].error_code == 0
        assert history(broker.bootstrap_servers, "--json", "--report", tmp_path / "page.html") == 0
    found = json.loads(capsys.readouterr().out)
    assert json_time in [one["commit_timestamp"] for one in proof(found)]
    assert shown in (tmp_path / "page.html").read_text()


def proof(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The commits that show the rewind from 5 to 3."""
    (row,) = [row for row in found["findings"] if row["kind"] == "rewind"]
    commits: list[dict[str, Any]] = row["proof"]
    return commits


def history(address: str, *more: str | Path) -> int:
    return run(["pipeline", "history", "-b", address, *map(str, more)])


def test_history_writes_its_tables_and_its_page(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "history.html"
    assert history(address, "--output", "of 12:30", "--report", page) == 0  # pyarrow would take it for a URI
    text = capsys.readouterr()
    (line,) = [line for line in text.out.splitlines() if "from 70 back to 20: records 20 to 69 are read again" in line]
    assert re.match(r"  2\d{3}-\d\d-\d\d \d\d:\d\d:\d\dZ  billing  ", line), "when it happened"
    assert [line for line in text.err.splitlines() if not line.startswith("Reading __consumer_offsets of ")] == []
    assert {path.name for path in (tmp_path / "of 12:30").iterdir()} == {f"{name}.parquet" for name in TABLES}
    commits = pq.read_table(tmp_path / "of 12:30" / "commits.parquet").to_pylist()
    assert [row["committed_offset"] for row in commits if row["group"] == "billing"] == [70, 20]
    html = page.read_text()
    own = re.sub(r"<script\b.*?</script>", "", html, flags=re.DOTALL)
    assert "records 20 to 69" in own
    assert EVIL not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in own
    assert re.search(r"<script[^>]+src=|<link|<img|@import", own) is None
    assert not list(tmp_path.glob("**/*.part"))


def test_history_prints_its_findings_as_json(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(address, "--json", "--group", "billing") == 0
    text: dict[str, Any] = json.loads(capsys.readouterr().out)
    (found,) = text["findings"]
    assert (found["kind"], found["from_offset"], found["to_offset"], found["records"]) == ("rewind", 20, 70, 50)
    assert [one["committed_offset"] for one in found["proof"]] == [70, 20]
    assert text["groups"] == ["billing"]


def rows(path: Path) -> list[str]:
    return sorted(repr(row) for row in pq.read_table(path).to_pylist())


def outputs_of(address: str, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """The printed JSON, all rows of all tables, and the page, without the names that plotly gives to its plots."""
    page, tables = output / "history.html", output / "tables"
    assert history(address, "--output", tables, "--report", page, "--json", *more) == 0
    said = capsys.readouterr()
    on_a_busy_machine = "Reading __consumer_offsets of ", "Python loads the modules"
    assert [line for line in said.err.splitlines() if not line.startswith(on_a_busy_machine)] == []
    assert {path.name for path in tables.iterdir()} == {f"{one}.parquet" for one in TABLES}
    assert {path.is_dir() for path in tables.iterdir()} == {bool(more)}
    schema = pq.read_schema(next(tables.glob("lag.parquet/*"), tables / "lag.parquet"))
    assert schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    html = page.read_text()
    page.unlink()
    plain = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "", html)
    text = {one: rows(tables / f"{one}.parquet") for one in TABLES}
    return text | {"said": json.loads(said.out), "page": plain}


def test_on_spark_page_and_tables_are_the_same(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Row for row. The command on Spark replaces the files of the first run by folders of files."""
    here = outputs_of(address, tmp_path, capsys)
    there = outputs_of(address, tmp_path, capsys, "--master", "local[2]")
    for name, text in here.items():
        assert there[name] == text, name
    (found,) = there["said"]["findings"]
    assert (found["kind"], found["from_offset"], found["to_offset"]) == ("rewind", 20, 70)
    assert {name for name in TABLES if there[name]} >= {"commits", "findings", "lag", "expiry", "coverage"}
    assert "records 20 to 69" in there["page"]


@pytest.mark.slow
def test_after_spark_one_machine_writes_files_again(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = outputs_of(address, tmp_path, capsys, "--master", "local[2]")
    assert outputs_of(address, tmp_path, capsys) == there


def test_on_spark_invalid_input_is_reported_in_one_line(
    spark: object, address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for more, code, says in (
        (["--group", "unknown"], 2, "the offsets topic has no records of group unknown"),
        (["--output", str(tmp_path / "file")], 2, "cannot be created: it is a file, not a folder"),
        (["--output", "nofs://x/y"], 2, "nofs://x/y cannot be reached"),
        (["--output", "hdfs://host.invalid/y"], 2, "hdfs://host.invalid/y cannot be reached"),
        (["--report", "/no/such/place/x.html"], 2, "there is no directory"),
        (["--conf", "x"], 2, "--conf 'x': expected NAME=VALUE"),
        ([], 1, "cannot reach 127.0.0.1:1"),
    ):
        assert history(address if more else "127.0.0.1:1", "--master", "local[2]", *more) == code, more
        text = capsys.readouterr()
        assert says in text.err
        assert text.err.count("\n") == 1
    assert history(address, "--output", "hdfs://x/y") == 2
    assert "a URI needs --master" in capsys.readouterr().err


def test_since_leaves_out_earlier_records(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history(address, "--json", "--since", "2100-01-01", "--output", tmp_path) == 0
    out, error = capsys.readouterr()
    assert json.loads(out)["findings"] == []
    assert error == "Warning: --since 2100-01-01 is in the future: there is no record at or after it.\n"
    assert pq.read_table(tmp_path / "commits.parquet").num_rows == 0
    assert history(address, "--json", "--since", "1h") == 0
    assert len(json.loads(capsys.readouterr().out)["findings"]) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--group", "unknown"], "the offsets topic has no records of group unknown"),
        (["--group", "biling"], "the offsets topic has no records of group biling (did you mean billing?)"),
        (["--since", "soon"], "--since 'soon': expected a time such as"),
        (["--expires-within", "5"], "--expires-within '5': expected a span"),
        (["--report", "/no/such/place/x.html"], "there is no directory"),
        (["--min-distance", "5"], "--min-distance '5': expected a span"),
        (["--reprot", "x.html"], "did you mean --report?"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    address: str, more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history(address, *more) == 2
    text = capsys.readouterr()
    assert said in text.err
    assert text.err.count("\n") == 1


def test_without_a_broker_there_is_a_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert history("127.0.0.1:1") == 1
    assert "cannot reach 127.0.0.1:1" in capsys.readouterr().err


def test_without_plotly_the_error_names_the_extra(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert history(address, "--report", tmp_path / "x.html") == 2
    assert command_of("report") in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("missing", "options", "extra"),
    [(["plotly", "pyarrow"], ["--report", "x.html"], "report"), (["pyarrow"], ["--output", "tables"], "arrow")],
    ids=["both packages of a report", "the package of the tables"],
)
def test_without_a_package_the_error_names_the_extra_that_brings_it(
    missing: list[str], options: list[str], extra: str, tmp_path: Path
) -> None:
    program = (
        f"import sys; sys.modules |= dict.fromkeys({missing})\n"
        "from odradek.cli.main import run\n"
        f"sys.exit(run({['pipeline', 'history', '-b', '127.0.0.1:1', *options]}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert command_of(extra) in done.stderr


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["pipeline", "history", "--help"]) == 0
    assert "odradek pipeline history -b 127.0.0.1:9092 --report history.html" in capsys.readouterr().out


def test_the_function_and_the_command_have_the_same_options(capsys: pytest.CaptureFixture[str]) -> None:
    options = declared_options(ReportOptions)
    assert options.keys() == {"group", "output", "report", "master", "conf"}
    assert declared_options(HistoryLine) == options
    assert options.keys() <= inspect.signature(report_history).parameters.keys()
    run(["pipeline", "history", "--help"])
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for name, (_, option) in options.items():
        assert f"--{name} " in text
        assert option.help in text


def test_the_function_starts_spark_like_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []

    class Started(Exception):
        pass

    def start(*given: Any) -> None:
        started.append(given)
        raise Started

    monkeypatch.setattr("odradek.pipelines.history.report.start_spark", start)
    conf = {"spark.executor.memory": "4g"}
    for more in ({}, {"master": "spark://127.0.0.1:7077", "conf": conf}):
        with pytest.raises(Started):
            report_history("127.0.0.1:9", **more)
    assert started == [("local[*]", None), ("spark://127.0.0.1:7077", conf)]


def test_a_long_run_says_on_stderr_what_it_does(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read = pipeline_history._read

    def late(*arguments: Any) -> None:
        time.sleep(0.5)
        read(*arguments)

    monkeypatch.setattr(progress_lines, "PACE", progress_lines.LinePace(first_s=0.05))
    monkeypatch.setattr(pipeline_history, "_read", late)
    assert run(["pipeline", "history", "-b", address, "--json"]) == 0
    # A busy machine may say before that it loads the modules.
    assert f"Reading __consumer_offsets of {address}: 0 records so far\n" in capsys.readouterr().err
