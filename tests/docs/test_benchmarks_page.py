"""What the articles claim of speed, as the benchmarks' page has it measured. Nothing is timed here."""

from __future__ import annotations

import re
from pathlib import Path

from bench import raw

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text()
FIGURE = re.compile(r"[\d,]+(?:\.\d+)?")


def ablation() -> dict[str, list[tuple[str, float, str]]]:
    """Mechanism → (variant, median, unit), in the table's order."""
    rows: dict[str, list[tuple[str, float, str]]] = {}
    lines = PAGE.partition("| mechanism | variant |")[2].partition("\n\n")[0].splitlines()[2:]
    mechanism = ""
    for line in lines:
        first, variant, figure, _ = (cell.strip() for cell in line[1:-1].split(" | "))
        mechanism = first or mechanism
        found = FIGURE.match(figure)
        assert found is not None, line
        rows.setdefault(mechanism, []).append((variant, float(found[0].replace(",", "")), figure.rsplit(" ", 1)[-1]))
    return rows


def test_claim_12_a_million_records_a_second() -> None:  # claim 12
    (batching,) = (rows for name, rows in ablation().items() if name.startswith("batching"))
    rates = {variant: rate for variant, rate, unit in batching if unit == "rows/s"}
    assert list(rates) == ["1", "10", "100", "1000"]
    assert rates["1000"] >= 1e6
    assert rates["1"] < rates["10"] < rates["100"] < rates["1000"]


def test_claim_11_sendfile_against_read_and_write() -> None:  # claim 11
    """Twice as fast, where nothing but the sending is measured; less in a broker, which has more to do."""
    (copying,) = (rows for name, rows in ablation().items() if name.startswith("8 readers"))
    (_, read_and_written, _), (_, by_sendfile, _) = copying
    assert by_sendfile < read_and_written
    cells = {
        line.split(" | ")[0].strip("| "): line.split(" | ")[1] for line in PAGE.splitlines() if "; uvloop |" in line
    }
    bare = {way: float(cell.split(" ")[0]) for way, cell in cells.items()}
    assert bare["read, then write; uvloop"] >= 2 * bare["os.sendfile beside the transport; uvloop"]


def test_claim_7_the_order_of_writes_is_measured(tmp_path: Path) -> None:  # claim 7
    """On the disk of the page's machine the order mattered little; the page says so."""
    speeds = raw.writes(tmp_path, 1, 4096)
    assert set(speeds) == {"sequential", "random"}
    assert min(speeds.values()) > 0
    orders = [rows for name, rows in ablation().items() if name.startswith("order of writes")]
    assert [[variant for variant, _, _ in rows] for rows in orders] == [["random", "sequential"]] * 2
    assert "Random writes are nearly as\nfast as sequential ones on this virtual disk" in PAGE
