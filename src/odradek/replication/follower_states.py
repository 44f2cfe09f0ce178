"""The followers of a partition, as its leader knows them: what each has fetched, and when it was caught up.

A follower fetches from the end of its log. So each fetch says what the follower has, and nothing else says it. As in
Kafka (``kafka.cluster.Replica``), a follower was caught up when it asked for the leader's log end: at the time of this
fetch, or at the time of the fetch before, if it has now asked for what was the log end then. So a follower counts as
caught up although new records come between any two of its fetches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from odradek.core.ids import NO_EPOCH, NO_OFFSET, FetchingReplica

NEVER_MS = -(1 << 62)
"""The time of a fetch that has not come: a steady clock may begin at 0."""


class FollowerState(NamedTuple):
    """What a leader knows of one follower. ``end_offset`` and ``log_start``: of its log, −1 before its first fetch.

    ``leader_end``: the leader's log end at its last fetch, which came at ``fetched_ms``. ``caught_up_ms``: the latest
    time at which it had all records of the leader. ``broker_epoch``: that of its last fetch, −1 if the fetch had none.
    """

    end_offset: int = NO_OFFSET
    log_start: int = NO_OFFSET
    leader_end: int = NO_OFFSET
    fetched_ms: int = NEVER_MS
    caught_up_ms: int = NEVER_MS
    broker_epoch: int = NO_EPOCH

    def is_caught_up(self, leader_end: int, now_ms: int, max_lag_ms: int) -> bool:
        """Returns whether the follower has all records of the leader, or had them a short time ago."""
        return self.end_offset == leader_end or now_ms - self.caught_up_ms <= max_lag_ms


class Followers:
    """The followers of one partition. Times are those of the leader's steady clock, in ms."""

    __slots__ = ("_states",)

    def __init__(self) -> None:
        self._states: dict[int, FollowerState] = {}

    @property
    def states(self) -> Mapping[int, FollowerState]:
        """The followers by broker id."""
        return self._states

    def __contains__(self, broker_id: int) -> bool:
        return broker_id in self._states

    def assign(self, broker_ids: Iterable[int]) -> None:
        """Sets the followers. One that stays keeps its state."""
        self._states = {number: self._states.get(number, FollowerState()) for number in broker_ids}

    def begin_term(self, isr: Collection[int], start_offset: int, now_ms: int, *, is_new_leader: bool) -> None:
        """Begins a leader epoch. A follower in the ISR counts as caught up now, any other one as never.

        ``start_offset``: the leader's log end. A new leader knows nothing of the logs of its followers.
        """
        for number, state in self._states.items():
            caught_up_ms = now_ms if number in isr else NEVER_MS
            if is_new_leader:
                self._states[number] = FollowerState(caught_up_ms=caught_up_ms)
            else:
                self._states[number] = state._replace(
                    leader_end=start_offset, fetched_ms=caught_up_ms, caught_up_ms=caught_up_ms
                )

    def most_caught_up(self, broker_ids: Collection[int], offset: int) -> int | None:
        """Returns the one of these followers that has the most records, was caught up last, or has the largest id, in
        this order. Only those count whose log has ``offset``, or ends there. None without one."""
        able = [
            (state.end_offset, state.caught_up_ms, number)
            for number, state in self._states.items()
            if number in broker_ids and state.log_start <= offset <= state.end_offset
        ]
        return max(able)[2] if able else None

    def note_fetch(
        self, replica: FetchingReplica, offset: int, log_start: int, leader_end: int, now_ms: int
    ) -> FollowerState:
        """Notes a fetch from ``offset``, and returns the state after it. ``leader_end``: the leader's log end before
        its reply. Raises KeyError for a broker that is no follower.
        """
        known = self._states[replica.broker_id]
        caught_up_ms = known.caught_up_ms
        if offset >= leader_end:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif offset >= known.leader_end:
            caught_up_ms = max(caught_up_ms, known.fetched_ms)
        state = self._states[replica.broker_id] = FollowerState(
            offset, log_start, max(leader_end, known.leader_end), now_ms, caught_up_ms, replica.broker_epoch
        )
        return state
