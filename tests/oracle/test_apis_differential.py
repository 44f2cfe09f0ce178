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
from api_requests import KEYS, empty, versions
from compatibility import DIFFERENCES, announced, keys_out
from recording import CLOSED, UNANSWERED, Run, Scenario, compare, load, run_scenario
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
    listed = [line for each in DIFFERENCES if each.scenario == name for line in each.lines]
    compare(expected, found, [f"^{re.escape(line)}$" for line in listed])


def api_key(scenario: str) -> int | None:
    found = re.match(r"k(\d\d)_", scenario)
    return int(found[1]) if found else None


ANNOUNCED = [(key, version) for key, (oldest, newest) in announced().items() for version in range(oldest, newest + 1)]
WITHOUT_SCHEMA = {(0, 0), (0, 1), (0, 2)}
"""API, version: announced for old clients, and refused."""
WITHOUT_FIELDS = {(16, 0), (16, 1), (16, 2), (16, 3), (18, 0), (18, 1), (18, 2), (74, 0)}
"""API, version: a request has no field, so the empty one is the only one."""
NO_BYTES = Run("").shown(b"")


def means_something(value: Any) -> bool:
    """Whether a request says more than the empty one: an element, a character, a number that is not 0."""
    if isinstance(value, dict):
        return any(map(means_something, value.values()))
    return bool(value) and value != NO_BYTES


@pytest.fixture(scope="module")
def trace() -> dict[str, list[dict[str, Any]]]:
    return load("apis")


@pytest.mark.parametrize(("key", "version"), [each for each in ANNOUNCED if each not in WITHOUT_SCHEMA])
def test_each_announced_version_is_asked_an_empty_request_and_one_that_means_something(
    trace: dict[str, list[dict[str, Any]]], key: int, version: int
) -> None:
    """Apache Kafka answered the latter: it was well formed."""
    name = schemas.api_name(key)
    nothing = Run("").shown(empty(key, version))
    assert (not nothing) == ((key, version) in WITHOUT_FIELDS)
    seen = set()
    for step in trace[f"k{key:02}_{name}"]:
        # Group listings are filtered before they come into the trace, and then they are notes.
        if step["api"] == name and step["request"].get("version", step["version"]) == version:
            said = {field: value for field, value in step["request"].items() if field in nothing}
            if said == nothing:
                seen.add("empty")
            elif means_something(said) and step["reply"] not in (CLOSED, UNANSWERED, None):
                seen.add("meaningful")
    assert seen == ({"empty", "meaningful"} if nothing else {"empty"})


def test_the_schemas_know_every_announced_api() -> None:
    assert announced().keys() <= set(KEYS)
    known = {(key, version) for key in announced() for version in versions(key)}
    assert set(ANNOUNCED) - known == WITHOUT_SCHEMA


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
