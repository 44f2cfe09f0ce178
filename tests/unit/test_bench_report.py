"""The benchmark page: each section is replaced separately, aims are compared with medians, the plot is valid XML."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from bench import ablation, report
from bench.measures import COLUMNS, MEASURES, TABLES, Column, tables_of
from bench.pages import BROKER

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
