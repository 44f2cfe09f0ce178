"""The columns that records are read into: those of Spark's built-in Kafka source."""

from __future__ import annotations

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""All but ``headers``, in that source's order."""

COLUMNS = (*DEFAULT_COLUMNS, "headers")


def check_columns(columns: tuple[str, ...]) -> None:
    """Raises ValueError naming a column that does not exist."""
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}: one of {', '.join(COLUMNS)}")
