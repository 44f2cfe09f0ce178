"""By how much a topic's settings let a record be older than an earlier one. Pure; ``pushdown`` has the rules."""

from __future__ import annotations

from collections.abc import Mapping

# Kafka's default of message.timestamp.before.max.ms is the largest int64, which means no limit. A limit of ten years or
# more counts as none, too: it would not narrow a search by time.
_NO_LIMIT_MS = 10 * 365 * 86_400_000


def disorder_ms(settings: Mapping[str, str | None]) -> int | None:
    """Returns by how many ms a record can be older than an earlier one. None: no known limit."""
    if settings.get("message.timestamp.type") == "LogAppendTime":
        return 0
    # Before Kafka 3.6 there was one limit for both directions.
    both = settings.get("message.timestamp.difference.max.ms")
    before = settings.get("message.timestamp.before.max.ms", both)
    after = settings.get("message.timestamp.after.max.ms", both)
    if before is None or after is None:
        return None
    total = int(before) + int(after)
    return total if total < _NO_LIMIT_MS else None
