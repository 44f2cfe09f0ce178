"""The tables of docs/compatibility.md are those of the comparison with Apache Kafka."""

from __future__ import annotations

from compatibility import DIFFERENCES, OUT, PAGE, rewritten, tables
from recording import load


def test_the_tables_are_those_of_the_comparison() -> None:
    page = PAGE.read_text()
    assert rewritten(page) == page, "python -m tests.oracle.compatibility writes them"


def test_each_difference_is_on_the_page_with_its_reason() -> None:
    page = PAGE.read_text()
    for reason in [each.why for each in DIFFERENCES] + [out.why for out in OUT]:
        assert reason in page


def test_the_number_of_requests_is_that_of_the_trace() -> None:
    asked = sum(map(len, load("apis").values()))
    assert f"{asked:,} requests in all" in " ".join(PAGE.read_text().split())


def test_a_wrong_row_is_detected() -> None:
    page = PAGE.read_text()
    assert tables()["features"] in page
    assert rewritten(page.replace("| transaction.version | 0–2 | 2 |", "| transaction.version | 0–3 | 2 |")) == page
