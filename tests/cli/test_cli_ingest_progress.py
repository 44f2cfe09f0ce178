"""How far an ingest is, on stderr: JSON lines, a bar on a terminal only, or nothing."""

from __future__ import annotations

import io
import json
import sys

import pytest

from odradek.cli import ingest_progress
from odradek.cli.ingest_progress import Lines, check_kind, shown
from odradek.cli.terminal import CommandError, note
from odradek.pipelines.lake import Added
from odradek.pipelines.run_progress import RunProgress

Captured = pytest.CaptureFixture[str]
FIELDS = ["batch", "records", "rows_per_s", "lag", "eta_s", "files", "bytes", "unreadable", "seconds"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_json_is_a_line_for_each_batch_and_one_a_second_within(capsys: Captured) -> None:
    clock = Clock()
    lines = Lines(RunProgress(1000, has_end=True, clock=clock), clock)
    for _ in range(30):  # ten times a second
        clock.now += 0.1
        lines.passed(10)
    clock.now += 0.1
    lines.added(Added(300, 1, 2, 5000), 300, None)
    captured = capsys.readouterr()
    assert captured.out == ""
    found = [json.loads(line) for line in captured.err.splitlines()]
    assert len(found) == 3, "two seconds have passed within the batch"
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
    }
    assert (found[-1]["rows_per_s"], found[-1]["eta_s"]) == (96.8, 7.2)


def test_a_bar_is_for_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
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
        watch.passed(250)
        note("one line of the command")
        watch.added(Added(1000, 0, 1, 10), 1000, 7)
    drawn = err.getvalue()
    assert "1000/1000" in drawn
    assert "lag 7" in drawn
    assert out.getvalue() == "one line of the command\n", "a file gets the command's lines, and no bar"


def test_an_unknown_kind_is_refused() -> None:
    for kind in ingest_progress.KINDS:
        check_kind(kind)
    with pytest.raises(CommandError, match="--progress bar: choose one of auto, json, none"):
        check_kind("bar")
