"""The benchmark page: each section is replaced separately, aims are compared with medians, the plot is valid XML."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench import ablation, cluster_comparison, failover, report
from bench.cluster_comparison import compare
from bench.measures import COLUMNS, MEASURES, TABLES, Column, tables_of
from bench.pages import BROKER
from bench.replicated_clusters import OdradekBrokers

ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_run_replaces_only_its_own_section(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    report.write(page, "first run", "start")
    report.write(page, "only fan-out", "fan-out")
    page.write_text(page.read_text() + "\nwritten by hand\n")
    report.write(page, "second run", "start")
    report.write(page, "fan-out again", "fan-out")
    text = page.read_text()
    assert text.startswith("# Benchmarks")
    assert [part in text for part in ("first run", "only fan-out")] == [False, False]
    assert text.index("second run") < text.index("fan-out again") < text.index("written by hand")


def test_a_run_writes_each_table_of_the_page_and_the_rest_as_one() -> None:
    assert sorted(name for table in TABLES for name in table) == sorted(MEASURES)
    assert tables_of(list(MEASURES)) == list(TABLES)
    assert tables_of(["start", "idle", "produce", "latency"]) == [("start", "idle"), ("produce", "latency")]
    assert tables_of([]) == []
    page = BROKER.read_text()
    assert all(mark in page for table in TABLES for mark in report.marks(", ".join(table)))


def test_make_bench_runs_every_benchmark() -> None:
    texts = [path.read_text() for path in ROOT.glob("bench/*.py")]
    # A comparison of two revisions needs the other one as an argument.
    alone = [text for text in texts if 'metavar="OTHER' not in text and "OTHER/src" not in text]
    programs = {found for text in alone for found in re.findall(r'prog="(.+?)"', text)}
    assert {"python -m bench", "python -m bench.sending"} <= programs
    recipe = (ROOT / "Makefile").read_text().split("\nbench:", 1)[1].split("\n\n", 1)[0]
    assert {line.removeprefix("\t$(BIN)/") for line in recipe.splitlines()[1:]} == programs


def test_an_aim_is_met_by_the_median_of_the_ratios() -> None:
    column = Column("t", "s", higher_is_better=False, aim=2)
    mine, theirs = [1.0, 2.0, 1.0], [3.0, 2.0, 2.5]
    times = report.ratios(mine, theirs, higher_is_better=False)
    assert times == [3.0, 1.0, 2.5]
    assert report.aim(column, mine, times) == "≥ 2 × (met)"
    assert report.aim(column, mine, [1.0, 1.9, 3.0]) == "≥ 2 × (missed)"
    assert report.aim(column, mine, []) == "≥ 2 ×"
    assert report.aim(Column("t", "×", most=2), [1.0, 2.5, 3.0], []) == "≤ 2 × (missed)"
    assert report.aim(Column("t", "bytes", most=300), [172.0], []) == "≤ 300 bytes (met)"


def test_every_figure_of_issues_4_and_5_has_an_aim_in_the_table() -> None:
    aims = {key: column.aim for key, column in COLUMNS.items() if column.aim}
    assert aims == {
        "start": 8, "idle_rss": 4, "loaded_rss": 4, "produce": 1.5, "producer_perf": 1, "latency_p50": 2,
        "latency_p99": 2, "consume": 1.3, "consumer_perf_100": 1.3, "consumer_perf_1000": 1.3, "fan_out_cpu": 2,
        "restart": 2, "commits_8": 8, "wide_commits": 2, "commit_sync_p50": 3, "fetch_offsets": 2, "rebalance": 1,
        "groups_restart": 3,
    }  # fmt: skip
    assert COLUMNS["compact_share"].most == 2
    assert COLUMNS["offset_bytes"].most == 300
    assert list(MEASURES)[-3:] == ["offsets-memory", "restart", "groups-restart"], "they restart the broker"


def test_the_plot_draws_every_bar_to_the_scale_of_its_group() -> None:
    rounds = [{bar.key: float(n + 1) for n, bar in enumerate(ablation.BARS)}]
    root = ElementTree.fromstring(ablation.plot(rounds, report.shown))
    bars = [element for element in root.iter() if element.tag.endswith("rect")][1:]
    assert len(bars) == len(ablation.BARS)
    widths = dict(zip((bar.key for bar in ablation.BARS), (float(bar.get("width", 0)) for bar in bars), strict=True))
    assert abs(widths["batch_1"] / widths["batch_1000"] - 1 / 4) < 0.01
    assert ablation.table(rounds, report.spread).count("\n") == len(ablation.BARS) + 1


# --- several runs of one benchmark --------------------------------------------------------------------------------


def options_of(page: Path, rounds: int, output: Path | None = None, join: Sequence[Path] = ()) -> argparse.Namespace:
    return argparse.Namespace(rounds=rounds, ours=False, output=output, join=join, page=page)


def test_runs_of_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_comparison, "class_path", lambda: "")
    monkeypatch.setattr(report, "head", lambda rounds, command: f"{rounds} rounds")
    page, loads, moves = (tmp_path / name for name in ("page.md", "loads.json", "moves.json"))
    page.write_text(f"# Failover\n\n{report.marks('failover')[0]}\n{report.marks('failover')[1]}\n")
    kinds = iter([2.0, 20.0, 40.0, 4.0])
    compare(options_of(page, 2, loads), "failover",
            lambda make: {"commits_per_s": next(kinds)}, failover.section)  # fmt: skip
    compare(options_of(page, 1, moves), "failover",
            lambda make: {"silence_s": 1.0 if make is OdradekBrokers else 3.0}, failover.section)  # fmt: skip
    assert "commits a second" not in page.read_text()
    compare(options_of(page, 0, join=[loads, moves]), "failover",
            lambda make: {}, failover.section)  # fmt: skip
    rows = {row.split(" | ")[0][2:]: row.split(" | ")[1] for row in page.read_text().splitlines() if row[:2] == "| "}
    assert rows["commits a second, 8 connections"] == "2"
    assert rows["longest silence of a producer in a rolling restart, s"] == "1"
    assert "3 rounds" in page.read_text()


def test_rounds_of_other_sides_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text('{"one": [], "two": []}')
    with pytest.raises(ValueError, match=r"other\.json has the sides one, two, not us, them"):
        cluster_comparison.joined({"us": [], "them": []}, [file])


def test_a_run_that_is_stopped_keeps_its_rounds(tmp_path: Path) -> None:
    numbers = itertools.count(1)

    def measure() -> dict[str, Any]:
        found = next(numbers)
        if found > 3:
            raise KeyboardInterrupt
        return {"n": found}

    with pytest.raises(KeyboardInterrupt):
        report.measure_rounds({"a": measure, "b": measure}, 2, output=tmp_path / "rounds.json")
    assert json.loads((tmp_path / "rounds.json").read_text()) == {"a": [{"n": 1}], "b": [{"n": 2}]}
