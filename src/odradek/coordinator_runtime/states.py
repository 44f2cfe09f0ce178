"""The states of a shard's driver, and the table of its transitions."""

from __future__ import annotations

from enum import Enum

from odradek.core.effects import IllegalTransition
from odradek.core.errors import ErrorCode
from odradek.core.state_machines.tables import checked


class CoordinatorState(Enum):
    """The state of one shard's driver."""

    NEW = "new"
    """The shard has not begun to load."""
    LOADING = "loading"
    """The shard reads its log."""
    ACTIVE = "active"
    """The shard handles requests."""
    REBUILDING = "rebuilding"
    """An empty shard has replaced one that failed. It loads its log at once or after a delay (``shard_loads``)."""
    RELOADING = "reloading"
    """This empty shard reads its log."""
    FAILED = "failed"
    """The log cannot be read. A new term of the coordinator reads it again."""
    UNREADABLE = "unreadable"
    """The disk, or the limit of open files, did not let the log be read. It is read again after a delay."""
    RETRYING = "retrying"
    """The shard reads such a log again. Another failure is not logged."""
    CLOSED = "closed"
    """This broker no longer leads the partition, or the topic was deleted. The driver is never used again."""


_STATE = CoordinatorState
_ENDS_OF_A_LOAD = frozenset({_STATE.ACTIVE, _STATE.REBUILDING, _STATE.FAILED, _STATE.UNREADABLE, _STATE.CLOSED})

NEXT: dict[CoordinatorState, frozenset[CoordinatorState]] = {
    _STATE.NEW: frozenset({_STATE.LOADING, _STATE.REBUILDING, _STATE.CLOSED}),
    _STATE.LOADING: _ENDS_OF_A_LOAD,
    _STATE.ACTIVE: frozenset({_STATE.REBUILDING, _STATE.CLOSED}),
    _STATE.REBUILDING: frozenset({_STATE.RELOADING, _STATE.REBUILDING, _STATE.CLOSED}),
    _STATE.RELOADING: _ENDS_OF_A_LOAD,
    _STATE.FAILED: frozenset({_STATE.LOADING, _STATE.REBUILDING, _STATE.CLOSED}),
    _STATE.UNREADABLE: frozenset({_STATE.RETRYING, _STATE.REBUILDING, _STATE.CLOSED}),
    _STATE.RETRYING: _ENDS_OF_A_LOAD,
    _STATE.CLOSED: frozenset(),
}
"""The valid next states of each state. A shard that handles no requests is rebuilt if a notice raises."""

LOADS: dict[CoordinatorState, CoordinatorState] = {
    _STATE.NEW: _STATE.LOADING,
    _STATE.REBUILDING: _STATE.RELOADING,
    _STATE.FAILED: _STATE.LOADING,
    _STATE.UNREADABLE: _STATE.RETRYING,
}
"""The state of a load that begins in each state. In any other state no load begins."""

ERRORS: dict[CoordinatorState, ErrorCode] = {
    _STATE.NEW: ErrorCode.coordinator_load_in_progress,
    _STATE.LOADING: ErrorCode.coordinator_load_in_progress,
    _STATE.ACTIVE: ErrorCode.none,
    _STATE.REBUILDING: ErrorCode.coordinator_load_in_progress,
    _STATE.RELOADING: ErrorCode.coordinator_load_in_progress,
    _STATE.FAILED: ErrorCode.not_coordinator,
    _STATE.UNREADABLE: ErrorCode.not_coordinator,
    _STATE.RETRYING: ErrorCode.coordinator_load_in_progress,
    _STATE.CLOSED: ErrorCode.not_coordinator,
}
"""The error of a request in each state; NONE: the shard handles it."""


def next_state(name: str, before: CoordinatorState, after: CoordinatorState) -> CoordinatorState:
    """Returns ``after``. Raises IllegalTransition if the table does not allow the transition."""
    return checked(NEXT, name, before, after)


def next_load(name: str, before: CoordinatorState) -> CoordinatorState:
    """Returns the state of a load that begins. Raises IllegalTransition if no load can begin in this state."""
    if before not in LOADS:
        raise IllegalTransition(f"{name}: no load begins in the state {before.value}")
    return LOADS[before]
