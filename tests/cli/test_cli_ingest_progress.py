"""The progress of an ingest on stderr: JSON lines, a bar (only on a terminal), or nothing."""

from __future__ import annotations

import dataclasses
import io
import json
import sys

import pytest

from odradek.cli.pipeline import ingest as pipeline_ingest
from odradek.cli.pipeline import ingest_progress
from odradek.cli.pipeline.ingest_progress import Lines, check_kind, shown
from odradek.cli.pipeline.options import IngestLine
from odradek.cli.terminal import CommandError, note
from odradek.pipelines.commit.state import Added
from odradek.pipelines.group_commit import CommitState
from odradek.pipelines.ingestion.job import Ingested
from odradek.pipelines.tables.run_progress import RunProgress

Captured = pytest.CaptureFixture[str]
FIELDS = ["batch", "records", "rows_per_s", "lag", "eta_s", "files", "bytes", "unreadable", "seconds", "committed"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_json_progress_has_a_line_for_each_micro_batch_and_for_each_second(capsys: Captured) -> None:
    clock = Clock()
    lines = Lines(RunProgress(1000, has_end=True, clock=clock), clock)
    for _ in range(30):  # ten times a second
        clock.now += 0.1
        lines.on_read(10)
    clock.now += 0.1
    lines.on_micro_batch(Added(300, 1, 2, 5000), 300, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    found = [json.loads(line) for line in captured.err.splitlines()]
    assert len(found) == 3, "two lines within the micro-batch, and one at its end"
    assert all(list(line) == FIELDS for line in found)
    assert [line["batch"] for line in found] == [0, 0, 1]
    assert found[0]["lag"] == 1000 - found[0]["records"] > 0
    assert found[-1] | {"rows_per_s": 0, "eta_s": 0} == {
        "batch": 1,
        "records": 300,
        "rows_per_s": 0,
        "lag": 700,
        "eta_s": 0,
        "files": 2,
        "bytes": 5000,
        "unreadable": 1,
        "seconds": 3.1,
        "committed": None,
    }
    assert (found[-1]["rows_per_s"], found[-1]["eta_s"]) == (96.8, 7.2)


REFUSED = CommitState(is_committed=False, why="it has live members: a", remedy="Stop them")


def test_the_last_json_line_says_whether_the_group_is_committed(capsys: Captured) -> None:
    lines = Lines(RunProgress(0, has_end=True))
    lines.on_end(CommitState(is_committed=True))
    lines.on_end(REFUSED)
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert list(first) == FIELDS
    assert (first["committed"], second["committed"]) == (True, False)
    assert (second["why_not_committed"], second["remedy"]) == ("it has live members: a", "Stop them")


def test_the_summary_says_whether_the_group_is_committed(capsys: Captured) -> None:
    done = Ingested(rows=2, batches=1, bad=0, seconds=1.0, files=1, size=10, group=REFUSED)
    asked = IngestLine(bootstrap_servers="b:1", group="g", output="t")
    pipeline_ingest.print_result(asked, done)
    pipeline_ingest.print_result(asked, dataclasses.replace(done, group=CommitState(is_committed=True)))
    pipeline_ingest.print_result(dataclasses.replace(asked, as_json=True), done)
    refused, committed, summary = capsys.readouterr().out.splitlines()
    assert refused.endswith("into t; group g is not committed: it has live members: a. Stop them.")
    assert committed.endswith("into t; group g is committed.")
    found = json.loads(summary)
    assert (found["committed"], found["why_not_committed"]) == (False, "it has live members: a")
    assert found["remedy"] == "Stop them"


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    with shown("auto", 10, has_end=True) as watch:
        assert watch is None
    with shown("none", 10, has_end=True) as watch:
        assert watch is None
    with shown("json", 10, has_end=True) as watch:
        assert isinstance(watch, Lines)
    assert capsys.readouterr() == ("", "")

    err, out = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with shown("none", 10, has_end=True) as watch:
        assert watch is None
    assert err.getvalue() == ""
    with shown("auto", 1000, has_end=True) as watch:
        assert watch is not None
        watch.on_read(250)
        note("one line of the command")
        watch.on_micro_batch(Added(1000, 0, 1, 10), 1000, 7)
        watch.on_end(REFUSED)
    drawn = err.getvalue()
    assert "1000/1000" in drawn
    assert "lag 7" in drawn
    assert out.getvalue() == "one line of the command\n", "a file gets the command's lines, and no bar"


def test_an_unknown_kind_of_progress_is_refused() -> None:
    for kind in ingest_progress.KINDS:
        check_kind(kind)
    with pytest.raises(CommandError, match="--progress bar: choose one of auto, json, none"):
        check_kind("bar")
