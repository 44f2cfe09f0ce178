"""The states of a shard's driver, and the table of its transitions."""

from __future__ import annotations

from enum import Enum

from odradek.core.effects import IllegalTransition
from odradek.core.errors import ErrorCode


class CoordinatorState(Enum):
    """The state of one shard's driver."""

    LOADING = "loading"
    """The shard reads its log."""
    ACTIVE = "active"
    """The shard handles requests."""
    REBUILDING = "rebuilding"
    """An empty shard has replaced one that failed. It loads its log at once or after a delay (``reloads``)."""
    FAILED = "failed"
    """The log cannot be read. A later load may succeed."""
    CLOSED = "closed"
    """This broker no longer leads the partition, or the topic was deleted. The driver is never used again."""


NEXT: dict[CoordinatorState, frozenset[CoordinatorState]] = {
    CoordinatorState.LOADING: frozenset(CoordinatorState) - {CoordinatorState.LOADING},
    CoordinatorState.ACTIVE: frozenset({CoordinatorState.REBUILDING, CoordinatorState.CLOSED}),
    CoordinatorState.REBUILDING: frozenset(CoordinatorState) - {CoordinatorState.ACTIVE, CoordinatorState.FAILED},
    CoordinatorState.FAILED: frozenset(
        {CoordinatorState.LOADING, CoordinatorState.REBUILDING, CoordinatorState.CLOSED}
    ),
    CoordinatorState.CLOSED: frozenset(),
}
"""The valid next states of each state. A failed shard is rebuilt if a notice raises. A rebuilt shard that waits for its
load is rebuilt again for the same reason."""

ERRORS: dict[CoordinatorState, ErrorCode] = {
    CoordinatorState.LOADING: ErrorCode.coordinator_load_in_progress,
    CoordinatorState.ACTIVE: ErrorCode.none,
    CoordinatorState.REBUILDING: ErrorCode.coordinator_load_in_progress,
    CoordinatorState.FAILED: ErrorCode.not_coordinator,
    CoordinatorState.CLOSED: ErrorCode.not_coordinator,
}
"""The error of a request in each state; NONE: the shard handles it."""


def next_state(name: str, before: CoordinatorState, after: CoordinatorState) -> CoordinatorState:
    """Returns ``after``. Raises IllegalTransition if the table does not allow the transition."""
    if after not in NEXT[before]:
        raise IllegalTransition(f"{name}: {before.value} → {after.value}")
    return after
