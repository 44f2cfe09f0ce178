"""The observers of the metadata log, as its leader sees them: what they may read, and how far they are.

``place_of`` answers an observer by the offset and the epoch of its last record, as Kafka's ReplicatedLog does.
Observers do not vote. The leader forgets an observer that has not fetched for five minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from odradek.catalog.records import Id16

OBSERVER_SESSION_MS = 300_000


class LogPlace(NamedTuple):
    """The end of a snapshot or of an epoch: the offset after its last record, and the epoch of this record."""

    end_offset: int
    epoch: int


class PlaceKind(Enum):
    """VALID: the observer's records are those of the leader. DIVERGING: it has to cut off records. SNAPSHOT: it needs a
    snapshot first."""

    VALID = 0
    DIVERGING = 1
    SNAPSHOT = 2


class LeaderLog(Protocol):
    """The log of the leader. ``snapshots``: by ascending offset. ``end_offset``: that of the committed records."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    @property
    def snapshots(self) -> Sequence[LogPlace]: ...

    def epoch_end(self, epoch: int) -> LogPlace | None:
        """Returns the largest known epoch up to ``epoch``, and its end; None for an epoch after the newest."""


def place_of(log: LeaderLog, offset: int, epoch: int) -> tuple[PlaceKind, LogPlace]:
    """Answers an observer whose log ends at ``offset``, with a last record of this epoch.

    The place is that of the observer if it is valid, the largest common one if it diverges, or that of a snapshot."""
    snapshots = log.snapshots
    if offset == 0 and snapshots:  # an empty log: a snapshot is shorter
        return PlaceKind.SNAPSHOT, snapshots[-1]
    if offset == 0 and log.start_offset == 0:
        return PlaceKind.VALID, LogPlace(0, 0)
    if snapshots:
        first, start = snapshots[0], log.start_offset
        if offset < start or (offset == start and epoch != first.epoch) or epoch < first.epoch:
            return PlaceKind.SNAPSHOT, snapshots[-1]
    end = _end_of(log, epoch)
    if end.epoch != epoch or end.end_offset < offset:
        return PlaceKind.DIVERGING, end
    return PlaceKind.VALID, LogPlace(offset, epoch)


def _end_of(log: LeaderLog, epoch: int) -> LogPlace:
    end = log.epoch_end(epoch)
    if end is None:
        return LogPlace(log.end_offset, log.epoch)
    first = log.snapshots[0] if log.snapshots else None
    if first is not None and end == LogPlace(first.end_offset, epoch):
        return first  # the epoch is older than those of the log
    return end


class ObserverKey(NamedTuple):
    """An observer: its node, and the id of the directory with its log."""

    node_id: int
    directory: Id16


@dataclass(slots=True)
class ObserverState:
    """How far an observer is. Times: ms since 1970, −1 for never. ``heard_ms``: on a clock that only goes forward.

    ``end_offset``: the end of its log. ``leader_end``: the end of the leader's log at its last fetch.
    """

    end_offset: int
    fetched_ms: int = -1
    caught_up_ms: int = -1
    leader_end: int = -1
    heard_ms: int = -1


class Observers:
    """The observers that have fetched in the leader's epoch."""

    def __init__(self) -> None:
        self._states: dict[ObserverKey, ObserverState] = {}

    def note_fetch(self, key: ObserverKey, offset: int, leader_end: int, now_ms: int, steady_ms: int) -> None:
        """Notes a valid fetch from ``offset``. A negative id is that of a reader, which is no observer."""
        if key.node_id < 0:
            return
        self._forget_silent(steady_ms)
        state = self._states.setdefault(key, ObserverState(offset))
        if offset >= leader_end:
            state.caught_up_ms = max(state.caught_up_ms, now_ms)
        elif 0 < state.leader_end <= offset:  # it has all that was there when it fetched before
            state.caught_up_ms = max(state.caught_up_ms, state.fetched_ms)
        state.end_offset, state.leader_end, state.heard_ms = offset, leader_end, steady_ms
        state.fetched_ms = max(state.fetched_ms, now_ms)

    def present(self, steady_ms: int) -> Mapping[ObserverKey, ObserverState]:
        """Returns the observers of the last five minutes."""
        self._forget_silent(steady_ms)
        return self._states

    def _forget_silent(self, steady_ms: int) -> None:
        oldest = steady_ms - OBSERVER_SESSION_MS
        if any(state.heard_ms <= oldest for state in self._states.values()):
            self._states = {key: state for key, state in self._states.items() if state.heard_ms > oldest}
