"""The columns of decoded records, which are those of Spark's Kafka source, and the columns that a producer accepts."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""All columns except ``headers``, in the order of Spark's Kafka source."""

COLUMNS = (*DEFAULT_COLUMNS, "headers")
WRITE_COLUMNS = ("key", "value", "headers", "partition", "timestamp")
"""The columns that a producer accepts."""
MAX_MS = (1 << 63) // 1000
"""The largest time in milliseconds that a column of microseconds holds; the earliest one is ``-MAX_MS``."""
NO_MICROS = -(1 << 63)
"""In an array of microseconds: a time that does not fit. No time in milliseconds has this value."""


def check_columns(columns: Sequence[str]) -> None:
    """Raises ValueError for an unknown column, TypeError for one text in place of several names."""
    if isinstance(columns, str):
        raise TypeError(f"columns: expected a list of names, not {columns!r}")
    for name in columns:
        if name not in COLUMNS:
            raise ValueError(f"unknown column {name!r}: one of {', '.join(COLUMNS)}")
