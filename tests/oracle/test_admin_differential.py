"""Request by request: what odradek answers is what Apache Kafka 4.3 answered when the trace was recorded.

The traces are committed (``tests/oracle/traces``); ``python -m tests.oracle.record HOST:PORT`` records them anew.
Where odradek answers otherwise on purpose, ``DEVIATIONS`` says where and why; an entry that is no longer true fails.
"""

from __future__ import annotations

import pytest
import scenarios_admin
import scenarios_log
from recording import Scenario, compare, differences, load, run_scenario

SUITES = {"admin": scenarios_admin.SCENARIOS, "log": scenarios_log.SCENARIOS}
CASES = [(suite, scenario) for suite, scenarios in SUITES.items() for scenario in scenarios]

# Pattern of a difference's line, and why it may be.
_NAMES = (
    "Kafka keeps unknown broker settings for plug-ins it may load; here there are none, and a misspelt name is told."
)
DEVIATIONS: dict[str, list[tuple[str, str]]] = {
    "topic_configs_replaced": [(r"^10 .*(none\" found \"invalid_config|error_message)", _NAMES)],
    "broker_configs_altered": [(r"^9 .*(none\" found \"invalid_config|error_message)", _NAMES)],
    "loggers": [
        (r"^0 .*value: expected \"ERROR\" found", "The level of the recorded broker's own log4j configuration.")
    ],
    "records_refused": [
        (
            r"^7 .*unknown_server_error\" found \"invalid_record",
            "A codec that does not exist makes Kafka stumble; here it is refused like other records that cannot be.",
        )
    ],
}


@pytest.mark.claim(111, part=True)
@pytest.mark.behaviour(47, 48, 49, 55)
@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_answers_are_those_of_apache_kafka(bootstrap: str, suite: str, scenario: Scenario) -> None:
    # behaviours 47, 48, 49 (offsets_listed), 52 (leader_epochs_end, records_fetched), 53 (records_deleted),
    # behaviours 55 (sequences_are_checked), 56 (records_refused, timestamps_are_checked)
    # claim 111 (part) (settings_act_at_once: min.insync.replicas is capped)
    expected, found = load(suite)[scenario.__name__], run_scenario(bootstrap, scenario)
    compare(expected, found, [pattern for pattern, _ in DEVIATIONS.get(scenario.__name__, [])])


def test_a_different_answer_is_seen() -> None:
    theirs = {"topics": [{"name": "a", "error_code": "none"}], "code": 1}
    assert differences(theirs, {"topics": [{"name": "a", "error_code": "none"}], "code": 1}) == []
    assert len(differences(theirs, {"topics": [{"name": "a", "error_code": "unknown"}], "code": True})) == 2
    assert differences(theirs, {"topics": [], "code": 1}) != []
    assert differences(theirs, {"topics": theirs["topics"]}) == ['.code: expected 1 found "<absent>"']


def test_every_recorded_scenario_is_compared() -> None:
    for suite, scenarios in SUITES.items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in scenarios)
