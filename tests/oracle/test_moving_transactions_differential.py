"""Transactions whose coordinator moves: what each broker answers equals what brokers of Apache Kafka 4.3 answer.

``record_clusters`` has recorded the conversations. ``OPEN`` lists those that brokers of Odradek cannot answer alike.
"""

from __future__ import annotations

import pytest
from cluster_scenarios import base_of
from cluster_scenarios_transactions import SCENARIOS
from cluster_transaction_run import SETTINGS, Scenario, run_transaction_conversation
from recording import compare, load
from support.simulated_conversation import SimulatedNodes

_NO_TRANSACTIONS = "a cluster has no transactions: InitProducerId gets COORDINATOR_NOT_AVAILABLE"
OPEN = {scenario.__name__: _NO_TRANSACTIONS for scenario in SCENARIOS}
"""Scenario → what is missing. A scenario that is answered alike has to leave this list: its test fails otherwise."""


def cases() -> list[object]:
    return [
        pytest.param(
            scenario,
            id=scenario.__name__,
            marks=[pytest.mark.xfail(reason=OPEN[scenario.__name__], strict=True, raises=AssertionError)]
            if scenario.__name__ in OPEN
            else [],
        )
        for scenario in SCENARIOS
    ]


@pytest.mark.parametrize("scenario", cases())
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario) -> None:
    found = run_transaction_conversation(SimulatedNodes(SETTINGS), scenario, base_of(scenario))
    compare(load("moving_transactions")[scenario.__name__], found, ())


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("moving_transactions")) == sorted(scenario.__name__ for scenario in SCENARIOS)
    assert OPEN.keys() <= load("moving_transactions").keys()
