"""Transactions: odradek's replies, records and markers equal those of Apache Kafka.

``DEVIATIONS`` lists intended differences with reasons; an entry without a difference fails. To let time pass, the
recording waited, and these tests move the broker's clock."""

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

# Pattern of a difference's line, and the reason for the difference.
NEW_EPOCH_AT_LEVEL_0 = "Apache Kafka refuses each transactional id that has used version 2, as long as the level is 0"
DEVIATIONS: dict[str, list[tuple[str, str]]] = {
    "levels_changed_between_transactions": [
        (
            r'^49 init_producer_id v5\.reply\.error_code: expected "unsupported_version" found "none"',
            NEW_EPOCH_AT_LEVEL_0,
        ),
        (r"^49 init_producer_id v5\.reply\.producer_id: expected -1 found \"<producer 20>\"", NEW_EPOCH_AT_LEVEL_0),
        (r"^49 init_producer_id v5\.reply\.producer_epoch: expected -1 found 1$", NEW_EPOCH_AT_LEVEL_0),
        (r"^50 records v0\.reply: .*<producer 20>", NEW_EPOCH_AT_LEVEL_0),
    ]
}


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], odradek.Broker]]:
    """The broker with the settings of a suite. Tests move its clock."""
    with brokers_of(SUITES) as broker_for:
        yield broker_for


@pytest.mark.parametrize(
    ("suite", "scenario"), CASES, ids=[f"{suite}-{scenario.__name__}" for suite, scenario in CASES]
)
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
