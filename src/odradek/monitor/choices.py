"""What a user chooses, such as the source of the commits and the order of groups, and the refusal of a wrong choice."""

from __future__ import annotations

from odradek.core.errors import OdradekError

SOURCES = ("auto", "topic", "fetch")
GRANULARITIES = ("auto", "group", "topic", "partition")
SORTS = (
    "name", "lag", "max_lag", "time_lag", "lost", "records_per_second", "clear", "status", "partitions",
    "newest_commit", "findings", "expires",
)  # fmt: skip
"""The orders of groups; ``-`` before one: the highest first."""
ALLOWABLE = ("reset", "delete-offsets", "delete-group")
"""The values of ``--allow``."""
SHORTEST_INTERVAL_MS = 100
"""The shortest time between two polls."""
MOST_GROUPS = 1_000
"""The most groups in one reply."""
MOST_BULK_GROUPS = 100
"""The most groups of a bulk change: it is one request over HTTP, and one group after another is changed."""


class RequestRefused(OdradekError):
    """A request with a wrong value. ``field`` is the name of the parameter."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
