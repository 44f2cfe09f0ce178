"""Every API in every version, answer by answer: as Apache Kafka 4.3, but for what ``compatibility`` lists with reasons.

The traces are committed; ``python -m tests.oracle.record HOST:PORT apis catalog`` records them anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import scenarios_apis
import scenarios_catalog
from api_requests import KEYS
from compatibility import DIFFERENCES, announced, keys_out
from recording import CLOSED, Scenario, compare, load, run_scenario
from suite_brokers import brokers_of

import odradek
from odradek.wire import schemas

SUITES = {"apis": scenarios_apis, "catalog": scenarios_catalog}
CASES = [(suite, scenario) for suite, module in SUITES.items() for scenario in module.SCENARIOS]


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], odradek.Broker]]:
    with brokers_of(SUITES) as broker_for:
        yield broker_for


def served_alone(steps: list[dict[str, Any]]) -> None:
    """Takes the APIs that are not served here out of what was announced."""
    for step in steps:
        rows = step["reply"].get("api_keys") if isinstance(step["reply"], dict) else None
        if rows:
            step["reply"]["api_keys"] = [row for row in rows if row["api_key"] not in keys_out()]


@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_each_answer_is_that_of_apache_kafka(
    brokers: Callable[[str], odradek.Broker], suite: str, scenario: Scenario
) -> None:
    broker = brokers(suite)

    def restart() -> None:
        broker.stop()
        broker.start()

    name = scenario.__name__
    expected, found = load(suite)[name], run_scenario(broker.bootstrap_servers, scenario, None, restart)
    if api_key(name) in keys_out():
        assert len(found) == len(expected), "the scenario changed: record it again"
        assert {step["reply"] for step in found} == {CLOSED}
        return
    served_alone(expected)
    compare(expected, found, [each.pattern for each in DIFFERENCES if each.scenario == name])


def api_key(scenario: str) -> int | None:
    found = re.match(r"k(\d\d)_", scenario)
    return int(found[1]) if found else None


def test_every_announced_api_is_asked_in_every_version_with_an_empty_and_a_meaningful_request() -> None:
    trace = load("apis")
    assert announced().keys() <= set(KEYS)
    for key, (oldest, newest) in announced().items():
        name = schemas.api_name(key)
        # Group listings are filtered before they come into the trace, and then they are notes.
        steps = [step for step in trace[f"k{key:02}_{name}"] if step["api"] == name]
        asked = [step["request"].get("version", step["version"]) for step in steps]
        known = schemas.known_versions(key)
        for version in range(max(oldest, known[0]), newest + 1):
            assert asked.count(version) >= (1 if name == "list_groups" else 2), (name, version)


def test_what_is_out_is_what_apache_kafka_has() -> None:
    served_unannounced = {71, 72}
    assert keys_out() - announced().keys() == served_unannounced
    for key in keys_out():
        replies = [step["reply"] for step in load("apis")[f"k{key:02}_{schemas.api_name(key)}"]]
        assert any(isinstance(reply, dict) for reply in replies), "Apache Kafka does not serve it either"


def test_every_recorded_scenario_is_compared() -> None:
    names = {scenario.__name__ for _, scenario in CASES}
    assert {each.scenario for each in DIFFERENCES} <= names
    for suite, module in SUITES.items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in module.SCENARIOS)
