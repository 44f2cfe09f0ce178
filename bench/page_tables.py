"""The tables of the pages with figures, read back after the benchmarks have written them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SECTION = re.compile(r"<!-- bench writes ([^>]*?)from here -->\n(.*?)<!-- \1to here -->", re.DOTALL)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_SECOND_NAMES = ("client", "variant")
"""Titles of a second column whose cell is part of the row's name."""
_NUMBER = re.compile(r"-?[\d,]*\d(?:\.\d+)?")
CONTINUATION = "… "


@dataclass(frozen=True)
class Table:
    """One table of a section. ``heading``: the ``###`` line above it; ``moment``: when its run ended."""

    heading: str
    moment: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[str, ...]]
    """The cells of each row by the row's name.

    The name is the first cell. An empty first cell stands for the title of the row above. If the cell begins with "…",
    the last title without "…" precedes it. If the second column is "client" or "variant", its cell follows after " | ".
    """

    @property
    def day(self) -> str:
        return self.moment[:10]


def tables(page: Path) -> list[Table]:
    """The tables between the marks of a page, in the page's order."""
    return [table for _, section in _SECTION.findall(page.read_text()) for table in _tables_of(section)]


def number(cell: str) -> float:
    """The first number of a cell, which is the median. Raises ValueError if the cell has no number."""
    found = _NUMBER.search(cell)
    if found is None:
        raise ValueError(f"no figure in {cell!r}")
    return float(found[0].replace(",", ""))


def _tables_of(section: str) -> Iterator[Table]:
    heading, moment = "", ""
    lines: list[str] = []
    for line in [*section.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(line)
            continue
        if lines:
            yield _table(heading, moment, lines)
            lines = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
        head = _MOMENT.match(line)
        moment = head[0] if head else moment


def _table(heading: str, moment: str, lines: list[str]) -> Table:
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    named: dict[str, tuple[str, ...]] = {}
    title, parent = "", ""
    for cells in rows:
        if cells[0].startswith(CONTINUATION):
            title = f"{parent} {cells[0]}".strip()
        elif cells[0]:
            title = parent = cells[0]
        name = f"{title} | {cells[1]}" if columns[1] in _SECOND_NAMES else title
        named[name] = tuple(cells)
    return Table(heading, moment, tuple(columns), named)
