"""The articles' claims about speed: the checks of the benchmarks judge the measured rounds in docs/benchmarks.json.

The table and the picture of the overview have the figures of the pages. These tests measure no time.
"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

import pytest

from bench import claims, overview, report
from bench.measures import Values
from bench.page_tables import number, tables
from bench.pages import BROKER, MECHANISMS, OFFSET_STORES, OVERVIEW

CLAIMS = Path(__file__).resolve().parents[2] / "docs" / "claims.md"


@pytest.mark.parametrize(
    ("benchmark", "claim"),
    [
        pytest.param("order of writes", 7, marks=pytest.mark.claim(7, part="b", by="measured")),
        pytest.param("ablation", 9, marks=pytest.mark.claim(9, part="c", by="measured")),
        pytest.param("ablation", 11, marks=pytest.mark.claim(11, part="c", by="measured")),
        pytest.param("sending", 11, marks=pytest.mark.claim(11, part="b", by="measured")),
        pytest.param("ablation", 12, marks=pytest.mark.claim(12, by="measured")),
        pytest.param("kinds of commits", 34, marks=pytest.mark.claim(34, part="b", by="measured")),
        pytest.param("kinds of commits", 92, marks=pytest.mark.claim(92, part="b", by="measured")),
        pytest.param("offset stores", 116, marks=pytest.mark.claim(116, by="measured")),
    ],
)
def test_the_stored_rounds_show_the_claim(benchmark: str, claim: int) -> None:
    assert claim in {number for number, _ in claims.CHECKS[benchmark]}
    assert claim not in claims.unshown(benchmark, claims.kept()[benchmark])


def test_claim_34_names_the_stored_medians() -> None:
    (row,) = [line for line in CLAIMS.read_text().splitlines() if line.startswith("| 34 |")]
    rounds = claims.kept()["kinds of commits"]
    for client in ("confluent-kafka", "odradek"):
        kinds = [median(one[f"{client} {kind}"] for one in rounds) for kind in ("async", "sync")]
        assert "{:,.0f} and {:,.0f}".format(*kinds) in row


def test_every_benchmark_with_a_claim_has_stored_rounds() -> None:
    assert claims.kept().keys() == claims.CHECKS.keys()


EQUAL: dict[str, Values] = {name: dict.fromkeys(rounds[0], 500.0) for name, rounds in claims.kept().items()}
"""Rounds in which all figures are equal and below a thousand, so that they show no claim."""


@pytest.mark.parametrize("name", claims.CHECKS)
def test_a_run_that_does_not_show_its_claims_fails(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "benchmarks.md"
    numbers = [number for number, _ in claims.CHECKS[name]]
    assert claims.unshown(name, [EQUAL[name]]) == numbers
    assert claims.judge(name, "a run", [EQUAL[name]], page) == 1
    assert [f"claim {number}" in capsys.readouterr().err for number in numbers[:1]] == [True]
    assert claims.judge(name, "a better run", claims.kept()[name], page) == 0
    assert claims.kept(page) == {name: list(claims.kept()[name])}


def test_a_part_of_a_claim_is_not_enough() -> None:
    """If one figure of a check contradicts the claim, the check fails."""
    for name, key, value in (
        ("order of writes", "sequential_1000", 1.0), ("order of writes", "sequential_4096", 1.0),
        ("ablation", "batch_10", 1e6), ("ablation", "batch_1000", 9e5), ("ablation", "sendfile_cpu", 9.0),
        ("sending", "os.sendfile beside the transport; uvloop, 1024 KiB, s/GB", 9.0),
        ("sending", "os.sendfile beside the transport; uvloop, 1024 KiB, GB/s", 0.1),
        ("kinds of commits", "odradek async", 1.0), ("kinds of commits", "confluent-kafka async", 1.0),
        ("offset stores", "odradek/50/pipelined/per_s", 1.0), ("offset stores", "Apache Kafka/50/pipelined/per_s", 1.0),
    ):  # fmt: skip
        changed = [{**values, key: value} for values in claims.kept()[name]]
        assert key in changed[0]
        assert changed[0].keys() == claims.kept()[name][0].keys()
        assert claims.unshown(name, changed) != [], (name, key)


def test_the_page_has_the_stored_figures() -> None:
    """Three benchmarks write their page and their stored rounds in one run, so both must have the same figures."""
    from bench import kinds_of_commits, offset_stores, order_of_writes

    pages = {order_of_writes: MECHANISMS, kinds_of_commits: MECHANISMS, offset_stores: OFFSET_STORES}
    for module, page in pages.items():
        begin, end = report.marks(module.NAME)
        table = module.table(list(claims.kept()[module.NAME]))
        assert table in page.read_text().partition(begin)[2].partition(end)[0]


def test_the_overview_has_the_figures_of_the_pages(tmp_path: Path) -> None:
    """``python -m bench.overview`` changes nothing."""
    page = tmp_path / OVERVIEW.name
    page.write_text(OVERVIEW.read_text())
    overview.write(page)
    assert page.read_text() == OVERVIEW.read_text(), "python -m bench.overview writes it"
    assert page.with_suffix(".svg").read_text() == OVERVIEW.with_suffix(".svg").read_text()


def test_each_figure_of_the_overview_is_measured_and_drawn() -> None:
    figures = [figure for group in overview.GROUPS for figure in group.figures]
    (table,) = tables(OVERVIEW)
    rows = [cells for name, cells in table.rows.items() if not name.startswith("**")]
    assert [cells[0] for cells in rows] == [figure.name for figure in figures]
    assert all(number(cells[n]) > 0 for cells in rows for n in (1, 2, 3))
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", cells[5]) for cells in rows)
    texts = [text.text for text in ElementTree.parse(OVERVIEW.with_suffix(".svg")).iter() if text.tag.endswith("text")]
    assert [figure.name for figure in figures if figure.name not in texts] == []


def test_the_error_names_a_missing_figure() -> None:
    with pytest.raises(overview.MissingFigureError, match=r"broker\.md, any table: no row 'a missing row, s'"):
        overview.Cell(BROKER, "a missing row, s", "odradek").find()


def test_the_newest_table_with_the_complete_row_is_used(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    columns = "| figure | odradek | other | times better |\n|---|---|---|---|\n"
    for name, moment, cells in (
        ("first, second", "2026-01-02 10:00", "1 (1–2) | 2 | 2.00 ×"),
        ("first", "2026-01-03 09:00", "1,000.5 (1–2) | 2 | 0.50 ×"),
        ("second", "2026-01-04 09:00", "3 | – | –"),
    ):
        rows = f"| a row, s | {cells} |\n| … its CPU, s | {cells} |"
        report.write(page, f"{moment} UTC · a machine\n\n{columns}{rows}", name)
    for row in ("a row, s", "a row, s … its CPU, s"):
        cell, table = overview.Cell(page, row, "odradek").find()
        assert (cell, number(cell), table.day) == ("1,000.5 (1–2)", 1000.5, "2026-01-03")
