"""The names of what a user chooses: the source of the commits, the finest lines of the metrics, the order of groups."""

from __future__ import annotations

SOURCES = ("auto", "topic", "fetch")
GRANULARITIES = ("auto", "group", "topic", "partition")
SORTS = (
    "name", "lag", "max_lag", "time_lag", "lost", "records_per_second", "clear", "status", "partitions",
    "newest_commit", "findings", "expires",
)  # fmt: skip
"""The orders of groups; ``-`` before one: the highest first."""
SHORTEST_INTERVAL_MS = 100
"""The shortest time between two polls."""
MOST_GROUPS = 1_000
"""The most groups in one reply."""
