"""The table of a broker's states at the controller. Kafka's decisions are in tests/oracle/test_controller_decisions."""

from __future__ import annotations

from itertools import product

import pytest

from odradek.cluster.nodes.sessions import TRANSITIONS, BrokerHeartbeat, BrokerSessions, BrokerState, HeartbeatCondition

REGISTERED_AT, SHUTDOWN_AT = 5, 20
OPPOSITES = (
    (HeartbeatCondition.WANTS_FENCE, HeartbeatCondition.WANTS_NO_FENCE),
    (HeartbeatCondition.LEADS, HeartbeatCondition.LEADS_NOTHING),
)


def in_state(state: BrokerState, *, is_seen: bool) -> BrokerSessions:
    """Broker 1 in a state. Broker 2 is active and has, or has not, the records of a controlled shutdown of broker 1."""
    sessions = BrokerSessions(9_000)
    sessions.register(1, is_fenced=state is BrokerState.FENCED)
    if state is BrokerState.CONTROLLED_SHUTDOWN:
        sessions.begin_shutdown(1, SHUTDOWN_AT)
    sessions.register(2, is_fenced=False)
    sessions.touch(2, is_fenced=False, metadata_offset=SHUTDOWN_AT if is_seen else SHUTDOWN_AT - 1)
    return sessions


def conditions(fence: bool, shutdown: bool, caught_up: bool, leads: bool, seen: bool) -> set[HeartbeatCondition]:
    true = {pair[0] if holds else pair[1] for pair, holds in zip(OPPOSITES, (fence, leads), strict=True)}
    others = (
        (HeartbeatCondition.WANTS_SHUTDOWN, shutdown),
        (HeartbeatCondition.IS_CAUGHT_UP, caught_up),
        (HeartbeatCondition.IS_SEEN, seen),
    )
    return true | {condition for condition, holds in others if holds}


def test_a_heartbeat_goes_where_the_table_says() -> None:
    taken = set()
    for state, facts in product(
        (BrokerState.FENCED, BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN), product((False, True), repeat=5)
    ):
        fence, shutdown, caught_up, leads, seen = facts
        true = conditions(*facts)
        rows = [row for row in TRANSITIONS[state] if true.issuperset(row[0])]
        wanted = rows[0][1] if rows else state
        taken.update((state, row) for row in rows[:1])
        request = BrokerHeartbeat(1, 0, REGISTERED_AT if caught_up else REGISTERED_AT - 1, fence, shutdown)
        after = in_state(state, is_seen=seen).next_state(request, REGISTERED_AT, lambda leads=leads: leads)
        assert after == (state, wanted), (state, true)
    assert taken == {(state, row) for state, rows in TRANSITIONS.items() for row in rows}, (
        "a row that no heartbeat takes"
    )


def test_the_table_has_every_state_and_ends_in_one() -> None:
    assert TRANSITIONS.keys() == set(BrokerState)
    assert [state for state, rows in TRANSITIONS.items() if not rows] == [BrokerState.SHUTDOWN_NOW]


@pytest.mark.parametrize("state", [BrokerState.FENCED, BrokerState.UNFENCED])
def test_an_ordinary_heartbeat_does_not_ask_for_leaders(state: BrokerState) -> None:
    def leads() -> bool:
        raise AssertionError("looked at every partition")

    request = BrokerHeartbeat(1, 0, REGISTERED_AT, False, False)
    assert in_state(state, is_seen=True).next_state(request, REGISTERED_AT, leads)[1] is BrokerState.UNFENCED
