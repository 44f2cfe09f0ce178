"""The pages with figures, in docs/benchmarks."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
OVERVIEW = DOCS / "benchmarks.md"
FOLDER = DOCS / "benchmarks"
BROKER = FOLDER / "broker.md"
MECHANISMS = FOLDER / "mechanisms.md"
CLIENTS = FOLDER / "clients.md"
SPARK = FOLDER / "spark.md"
TABLES = FOLDER / "tables.md"
HISTORY = FOLDER / "history.md"


def option_help(page: Path) -> str:
    """The help text of an option whose default is ``page``."""
    return f"page to write the figures to ({page.relative_to(DOCS.parent).as_posix()})"
