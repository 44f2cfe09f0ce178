"""Transactions whose coordinator moves: what each broker answers equals what brokers of Apache Kafka 4.3 answer.

``record_clusters`` has recorded the conversations. ``KNOWN`` lists the differences.
"""

from __future__ import annotations

from typing import Any

import pytest
from cluster_scenarios import base_of
from cluster_scenarios_transactions import SCENARIOS, every_request_during_a_load_of_transactions
from cluster_transaction_run import SETTINGS, Scenario, run_transaction_conversation
from recording import compare, load
from support.simulated_conversation import SimulatedNodes, delay_loads

_IDS = ("producer", "producer_id")
_RETENTION = "the records have old times, and Apache Kafka has deleted them within the scenario: log.retention.hours"
_UNDONE = "Apache Kafka keeps the open transaction in memory, and aborts it although its decision is replicated later"
KNOWN: dict[str, dict[str, str]] = {
    "a_transaction_over_a_new_leader": {
        r"^7 produce .*\.log_start_offset: expected 2 found 0": _RETENTION,
        r"^9 read v0\.reply\.": _RETENTION,
    },
    "every_request_during_a_load_of_transactions": {
        r"^13 produce .*\.log_start_offset: expected 1 found 0": _RETENTION,
        r"^19 read v0\.reply\.": _RETENTION,
    },
    "an_end_waits_for_replicas": {
        r"^3 read v0\.reply\.aborted_transactions: ": _UNDONE,
        r'^4 describe_transactions .*expected "CompleteAbort" found "CompleteCommit"': _UNDONE,
    },
}
"""Scenario → pattern of a difference → its reason."""


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.__name__ for scenario in SCENARIOS])
def test_a_conversation_equals_that_of_apache_kafka(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    if scenario is every_request_during_a_load_of_transactions:
        delay_loads(monkeypatch)
    found = run_transaction_conversation(SimulatedNodes(SETTINGS), scenario, base_of(scenario))
    expected = load("moving_transactions")[scenario.__name__]
    compare(with_ids_in_order(expected), with_ids_in_order(found), KNOWN.get(scenario.__name__, ()))


def test_every_recorded_conversation_is_compared() -> None:
    assert sorted(load("moving_transactions")) == sorted(scenario.__name__ for scenario in SCENARIOS)
    assert KNOWN.keys() <= load("moving_transactions").keys()


def with_ids_in_order(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a trace in which each producer id without a name is its number in the order of appearance: the blocks of
    ids differ from run to run."""
    numbers: dict[int, str] = {}

    def named(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: named(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [named(one) for one in value]
        if key in _IDS and isinstance(value, int) and value > 0:
            return numbers.setdefault(value, f"id {len(numbers)}")
        return value

    made: list[dict[str, Any]] = named(steps)
    return made
