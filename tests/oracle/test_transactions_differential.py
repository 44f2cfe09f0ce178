"""Transactions: odradek's answers, records and markers equal those of Apache Kafka.

``DEVIATIONS`` lists intended differences with reasons; an entry without a difference fails. For Apache Kafka the
recording waited; here the clock is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import scenarios_transactions
import scenarios_transactions_expiry
import scenarios_transactions_fencing
import scenarios_transactions_log
import scenarios_transactions_offsets
import scenarios_transactions_restarts
import scenarios_transactions_states
import scenarios_transactions_timeouts
import scenarios_transactions_versions
from recording import Scenario, compare, load, run_scenario
from suite_brokers import brokers_of

import odradek
from odradek.broker.handlers import served
from odradek.wire.api_keys import TXN_OFFSET_COMMIT

SUITES = {
    "transactions": scenarios_transactions,
    "transactions_expiry": scenarios_transactions_expiry,
    "transactions_fencing": scenarios_transactions_fencing,
    "transactions_log": scenarios_transactions_log,
    "transactions_offsets": scenarios_transactions_offsets,
    "transactions_restarts": scenarios_transactions_restarts,
    "transactions_states": scenarios_transactions_states,
    "transactions_timeouts": scenarios_transactions_timeouts,
    "transactions_versions": scenarios_transactions_versions,
}
CASES = [(suite, scenario) for suite, module in SUITES.items() for scenario in module.SCENARIOS]
SERVED = {api.key for api in served()}
LOWER_LEVEL = "requests of transaction.version 2 at a lower level get UNSUPPORTED_VERSION in Apache Kafka"
OPEN = {
    "producers_expire": "DescribeProducers lists other producers after their expiry",
    "a_forgotten_producer_begins_a_transaction": "DescribeProducers lists other producers after their expiry",
    "aborted_transactions_after_a_restart": "a fetch after a restart lists other aborted transactions",
    "exhausted_epochs": "EndTxn at epoch 32,767 succeeds here",
    "exhausted_epochs_in_transactions": "EndTxn at epoch 32,767 succeeds here",
    "transactions_at_each_level": LOWER_LEVEL,
    "partitions_added_by_the_broker_at_each_level": LOWER_LEVEL,
    "empty_transactions_at_each_level": LOWER_LEVEL,
    "offsets_at_each_level": LOWER_LEVEL,
    "levels_changed_in_a_transaction": LOWER_LEVEL,
    "levels_changed_between_transactions": LOWER_LEVEL,
    "offsets_with_open_transactions": "ListOffsets -3 with read_committed ignores the last stable offset",
    "a_topic_with_pending_offsets_is_deleted": "the offsets topic gets other records than in Apache Kafka",
    "records_deleted_in_transactions": "the last stable offset does not stay below the log start offset",
}
"""Scenarios with a difference that is not intended. A scenario without one fails here."""


def case(suite: str, scenario: Scenario) -> object:
    """The parameters of a scenario. It is skipped while the broker does not serve one of its requests."""
    steps = load(suite).get(scenario.__name__, [])
    marks = []
    if TXN_OFFSET_COMMIT not in SERVED and any(step["api"] == "txn_offset_commit" for step in steps):
        marks.append(pytest.mark.skip(reason="the broker does not serve TxnOffsetCommit yet"))
    if scenario.__name__ in OPEN:
        marks.append(pytest.mark.xfail(strict=True, reason=OPEN[scenario.__name__]))
    return pytest.param(suite, scenario, marks=marks, id=f"{suite}-{scenario.__name__}")


# Pattern of a difference's line, and the reason for the difference.
DEVIATIONS: dict[str, list[tuple[str, str]]] = {}


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], odradek.Broker]]:
    """The broker with the settings of a suite. Tests move its clock."""
    with brokers_of(SUITES) as broker_for:
        yield broker_for


@pytest.mark.parametrize(("suite", "scenario"), [case(*each) for each in CASES])
def test_transactions_equal_those_of_apache_kafka(
    brokers: Callable[[str], odradek.Broker], suite: str, scenario: Scenario
) -> None:
    broker = brokers(suite)

    def pass_ms(ms: int) -> None:
        broker.clock.advance(milliseconds=ms)

    def restart() -> None:
        broker.stop()
        broker.start()

    known = [pattern for pattern, _ in DEVIATIONS.get(scenario.__name__, [])]
    found = run_scenario(broker.bootstrap_servers, scenario, pass_ms, restart)
    compare(load(suite)[scenario.__name__], found, known)


def test_every_recorded_scenario_is_compared() -> None:
    for suite, module in SUITES.items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in module.SCENARIOS)


def test_the_scenarios_with_deviations_exist() -> None:
    assert DEVIATIONS.keys() <= {scenario.__name__ for _, scenario in CASES}
