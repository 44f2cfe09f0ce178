"""Each reply of odradek equals the reply of Apache Kafka 4.3 in the recorded trace.

The traces are committed (``tests/oracle/traces``); ``python -m tests.oracle.record HOST:PORT`` records them again.
``DEVIATIONS`` lists intended differences with reasons; an entry without a difference fails.
"""

from __future__ import annotations

import pytest
import scenarios_admin
import scenarios_log
from recording import Scenario, compare, differences, load, run_scenario

SUITES = {"admin": scenarios_admin.SCENARIOS, "log": scenarios_log.SCENARIOS}
claim, behaviour = pytest.mark.claim, pytest.mark.behaviour
SHOWN = {
    "settings_act_at_once": [claim(111, part="c"), behaviour(56, part="bc")],
    "offsets_listed": [behaviour(47, 48), behaviour(49, part=True)],
    "leader_epochs_end": [behaviour(52, part=True)],
    "records_fetched": [behaviour(52, part=True)],
    "records_deleted": [behaviour(53, part=True)],
    "sequences_are_checked": [behaviour(55, part="ad")],
    "records_refused": [behaviour(56, part="c")],
}
"""The claims and behaviours that each scenario shows."""
CASES = [
    pytest.param(suite, scenario, marks=SHOWN.get(scenario.__name__, []))
    for suite, scenarios in SUITES.items()
    for scenario in scenarios
]

# Pattern of a difference's line, and the reason for the difference.
DEVIATIONS: dict[str, list[tuple[str, str]]] = {
    "loggers": [
        (r"^0 .*value: expected \"ERROR\" found", "The level of the recorded broker's own log4j configuration.")
    ],
    "records_refused": [
        (
            r"^7 .*unknown_server_error\" found \"invalid_record",
            "An unknown codec is an internal error in Kafka; this broker refuses it like other invalid records.",
        )
    ],
}


@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_answers_equal_those_of_apache_kafka(bootstrap: str, suite: str, scenario: Scenario) -> None:
    expected, found = load(suite)[scenario.__name__], run_scenario(bootstrap, scenario)
    compare(expected, found, [pattern for pattern, _ in DEVIATIONS.get(scenario.__name__, [])])


def test_a_different_answer_is_detected() -> None:
    theirs = {"topics": [{"name": "a", "error_code": "none"}], "code": 1}
    assert differences(theirs, {"topics": [{"name": "a", "error_code": "none"}], "code": 1}) == []
    assert len(differences(theirs, {"topics": [{"name": "a", "error_code": "unknown"}], "code": True})) == 2
    assert differences(theirs, {"topics": [], "code": 1}) != []
    assert differences(theirs, {"topics": theirs["topics"]}) == ['.code: expected 1 found "<absent>"']


def test_every_recorded_scenario_is_compared() -> None:
    for suite, scenarios in SUITES.items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in scenarios)


def test_the_scenarios_that_show_claims_exist() -> None:
    assert SHOWN.keys() <= {case.values[1].__name__ for case in CASES}
