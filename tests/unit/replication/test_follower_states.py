"""What a leader knows of its followers, against a plain record of everything that has happened."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odradek.core.ids import FetchingReplica
from odradek.replication.follower_states import NEVER_MS, Followers, FollowerState

A, B = 2, 3


class Event(NamedTuple):
    """An event after a pause: the leader appends ``appends`` records, then A fetches, ``behind`` records back."""

    pause_ms: int
    appends: int
    behind: int


EVENTS = st.lists(st.builds(Event, st.integers(0, 20), st.integers(0, 3), st.integers(0, 4)), max_size=30)


@given(EVENTS, st.booleans())
def test_a_follower_was_caught_up_when_it_had_asked_for_the_log_end_of_that_time(
    events: list[Event], in_isr: bool
) -> None:
    """The log end at each fetch is noted. A fetch shows that the follower has all records of each earlier log end that
    is not above its offset. The state notes one earlier fetch alone: its time is never too late."""
    followers, now_ms, end = Followers(), 50, 7
    followers.assign([A])
    followers.begin_term([A] if in_isr else [], end, now_ms, is_new_leader=True)
    caught_up_ms = now_ms if in_isr else NEVER_MS
    past: list[tuple[int, int]] = []
    for event in events:
        now_ms += event.pause_ms
        end += event.appends
        offset = max(end - event.behind, 0)
        state = followers.note_fetch(FetchingReplica(A, 9), offset, 1, end, now_ms)
        past.append((now_ms, end))
        latest = max((at_ms for at_ms, seen in past if seen <= offset), default=NEVER_MS)
        caught_up_ms = max(caught_up_ms, latest)
        assert state.caught_up_ms <= caught_up_ms
        if offset >= end or (len(past) > 1 and offset >= max(seen for _, seen in past[:-1])):
            assert state.caught_up_ms == caught_up_ms
        assert (state.end_offset, state.log_start, state.fetched_ms, state.broker_epoch) == (offset, 1, now_ms, 9)
    assert followers.states[A].caught_up_ms <= now_ms


def test_a_follower_that_is_always_one_record_behind_is_caught_up() -> None:
    """Each fetch asks for what was the log end at the fetch before."""
    followers = Followers()
    followers.assign([A, B])
    for number in range(1, 100):
        followers.note_fetch(FetchingReplica(A), number - 1, 0, number, 10 * number)
        followers.note_fetch(FetchingReplica(B), number // 2, 0, number, 10 * number)
    assert followers.states[A].caught_up_ms == 980
    assert followers.states[A].is_caught_up(99, 1_000, 30)
    assert not followers.states[B].is_caught_up(99, 1_000, 30)


def test_a_follower_at_the_log_end_is_caught_up_however_long_ago_it_has_fetched() -> None:
    state = FollowerState(end_offset=5, caught_up_ms=10)
    assert state.is_caught_up(5, 1_000_000, 30)
    assert not state.is_caught_up(6, 1_000_000, 30)


def test_before_its_first_fetch_only_a_follower_of_the_isr_counts_as_caught_up() -> None:
    """A steady clock may begin at 0: then the time of no fetch must not be near."""
    followers = Followers()
    followers.assign([A, B])
    followers.begin_term([A], 4, 5, is_new_leader=True)
    assert [followers.states[one].is_caught_up(4, 20, 30) for one in (A, B)] == [True, False]
    assert FollowerState().is_caught_up(4, 20, 30) is False


def test_a_leader_that_is_elected_again_keeps_what_it_knows_of_the_logs() -> None:
    followers = Followers()
    followers.assign([A, B])
    for one in (A, B):
        followers.note_fetch(FetchingReplica(one, 77), 6, 2, 8, 100)
    followers.begin_term([A], 9, 200, is_new_leader=False)
    assert followers.states[A] == FollowerState(6, 2, 9, 200, 200, 77)
    assert followers.states[B] == FollowerState(6, 2, 9, NEVER_MS, NEVER_MS, 77)
    followers.note_fetch(FetchingReplica(B, 77), 9, 2, 12, 300)
    assert followers.states[B].caught_up_ms == NEVER_MS, "its time as the log end is not known"
    followers.begin_term([A], 12, 400, is_new_leader=True)
    assert followers.states[A] == FollowerState(caught_up_ms=400)
    assert followers.states[B] == FollowerState()


def test_a_reassignment_keeps_the_followers_that_stay() -> None:
    followers = Followers()
    followers.assign([A, B])
    for one in (A, B):
        followers.note_fetch(FetchingReplica(one), 3, 0, 3, 100)
    followers.assign([B, 4])
    assert (A in followers, B in followers, 4 in followers) == (False, True, True)
    assert (followers.states[B].end_offset, followers.states[4]) == (3, FollowerState())
    with pytest.raises(KeyError):
        followers.note_fetch(FetchingReplica(A), 3, 0, 3, 100)
    assert list(followers.states) == [B, 4]


def test_the_most_caught_up_follower_has_the_offset_the_most_records_the_latest_time_and_the_largest_id() -> None:
    followers = Followers()
    followers.assign([A, B, 4])
    assert followers.most_caught_up([A, B, 4], 0) is None, "none has fetched"
    followers.note_fetch(FetchingReplica(A), 9, 3, 9, 10)
    followers.note_fetch(FetchingReplica(B), 8, 0, 9, 20)
    assert followers.most_caught_up([A, B], 5) == A
    assert followers.most_caught_up([B], 5) == B
    assert followers.most_caught_up([A, B], 9) == A, "a follower that ends there will have the next record"
    assert followers.most_caught_up([A, B], 2) == B, "A begins later"
    assert followers.most_caught_up([B], 9) is None
    assert followers.most_caught_up([7], 5) is None
    followers.note_fetch(FetchingReplica(4), 9, 0, 9, 30)
    assert followers.most_caught_up([A, 4], 5) == 4, "it was caught up later"
    followers.note_fetch(FetchingReplica(A), 9, 0, 9, 30)
    assert followers.most_caught_up([4, A], 5) == 4
