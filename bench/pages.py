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
TRANSACTIONS = FOLDER / "transactions.md"
OFFSET_STORES = FOLDER / "offset-stores.md"
CLUSTER = FOLDER / "cluster.md"
REPLICATION = FOLDER / "replication.md"
FAILOVER = FOLDER / "failover.md"
HISTORY = FOLDER / "history.md"
LATENCY = FOLDER / "latency.md"
BROKERS_FOR_TESTS = DOCS / "brokers-for-tests.md"


def option_help(*pages: Path) -> str:
    """The help text of an option that writes to ``pages`` by default."""
    names = " and ".join(page.relative_to(DOCS.parent).as_posix() for page in pages)
    return f"page to write the figures to (default {names})"
