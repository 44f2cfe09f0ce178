"""Messages about one thing are in the singular, and a range of one offset is that offset."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import odradek
from odradek.core.counts import are, counted, span, was

SOURCE = Path(odradek.__file__).parent
RANGE = re.compile(r"""(offsets|records|rows) \{[^{}]+\} to \{[^{}]+- 1[^{}]*\}""")
COUNT = re.compile(r"""["' (]\{(?!MAX|MIN)[^{}]*\} (records|rows|groups|offsets|micro-batches) (was|were|are)\b""")


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "record", "0 records"), (1, "record", "1 record"), (2000, "row", "2,000 rows"), (1, "entry", "1 entry"),
     (2, "entry", "2 entries"), (2, "directory", "2 directories")],
)  # fmt: skip
def test_counts(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text
    assert was(count) == ("was" if count == 1 else "were")


def test_ranges() -> None:
    assert (span(7, 8), are(7, 8)) == ("offset 7", "is")
    assert (span(7, 9), are(7, 9)) == ("offsets 7 to 8", "are")
    assert span(1000, 1001, "record", ",") == "record 1,000"
    assert span(999, 1001, "record", ",") == "records 999 to 1,000"


@pytest.mark.parametrize("pattern", [RANGE, COUNT], ids=["range", "count"])
def test_no_message_writes_the_plural_itself(pattern: re.Pattern[str]) -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.name != "counts.py"
        for line in path.read_text().splitlines()
        if pattern.search(line)
    ]
    assert found == []
