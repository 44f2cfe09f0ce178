"""The state table of transactional ids is what its functions allow."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from odradek.codecs.transaction_state import Transaction, TransactionState
from odradek.core.effects import IllegalTransition
from odradek.transactions import transitions
from odradek.transactions.transitions import NEXT, PREPARED

EVENTS: dict[str, Callable[[Transaction], Transaction]] = {
    "InitProducerId": lambda current: transitions.initialized(current, 1, 1, 60_000, 5),
    "AddPartitions": lambda current: transitions.with_partitions(current, [("t", 0)], 2, 5),
    "commit": lambda current: transitions.prepared(
        current, commit=True, epoch=1, next_producer_id=-1, client_version=2, now_ms=5
    ),
    "abort": lambda current: transitions.prepared(
        current, commit=False, epoch=1, next_producer_id=-1, client_version=2, now_ms=5
    ),
    "markers written": lambda current: transitions.completed(current, 5),
}


def _in(state: TransactionState) -> Transaction:
    return transitions.new_transaction(1, 60_000, 0)._replace(state=state)


def _after(event: str, before: TransactionState) -> TransactionState | None:
    try:
        return EVENTS[event](_in(before)).state
    except IllegalTransition:
        return None


def test_the_table_is_what_the_functions_allow() -> None:
    reached: dict[TransactionState, set[TransactionState]] = {}
    for event in EVENTS:
        for before in TransactionState:
            after = _after(event, before)
            if after is not None:
                reached.setdefault(before, set()).add(after)
    assert reached == {state: set(after) for state, after in NEXT.items()}


@pytest.mark.parametrize("state", [state for state in TransactionState if state not in PREPARED])
def test_only_a_prepared_transaction_is_completed(state: TransactionState) -> None:
    with pytest.raises(IllegalTransition, match="producer 1: "):
        transitions.completed(_in(state), 5)


def test_a_decision_cannot_change() -> None:
    for prepared in PREPARED:
        assert {_after(event, prepared) for event in EVENTS if event != "markers written"} == {None}
