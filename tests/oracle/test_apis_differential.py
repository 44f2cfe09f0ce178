"""Every API in every version: each reply equals that of Apache Kafka 4.3, except those that ``compatibility`` lists
with reasons.

The traces are committed; ``python -m tests.oracle.record HOST:PORT apis catalog`` records them again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
import scenarios_apis
import scenarios_catalog
from api_requests import KEYS, empty, versions
from compatibility import DIFFERENCES, announced, keys_out
from recording import CLOSED, UNANSWERED, Run, Scenario, compare, load, run_scenario
from suite_brokers import brokers_of
from support.delayed_quorum import DelayedQuorum
from support.quorums import DELAYED, ONE_VOTER, chosen

import odradek
from odradek.wire import schemas

SUITES = {"apis": scenarios_apis, "catalog": scenarios_catalog}
CASES = [(suite, scenario) for suite, module in SUITES.items() for scenario in module.SCENARIOS]


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], odradek.Broker]]:
    with brokers_of(SUITES) as broker_for:
        yield broker_for


def only_served(steps: list[dict[str, Any]]) -> None:
    """Removes the APIs that odradek does not serve from Apache Kafka's ApiVersions replies."""
    for step in steps:
        rows = step["reply"].get("api_keys") if isinstance(step["reply"], dict) else None
        if rows:
            step["reply"]["api_keys"] = [row for row in rows if row["api_key"] not in keys_out()]


@pytest.mark.parametrize(("suite", "scenario"), CASES, ids=lambda case: getattr(case, "__name__", case))
def test_each_answer_equals_that_of_apache_kafka(
    brokers: Callable[[str], odradek.Broker], suite: str, scenario: Scenario
) -> None:
    broker = brokers(suite)

    def restart() -> None:
        broker.stop()
        broker.start()

    name = scenario.__name__
    expected = deepcopy(load(suite)[name])
    found = run_scenario(broker.bootstrap_servers, scenario, None, restart)
    if api_key(name) in keys_out():
        assert len(found) == len(expected), "the scenario changed: record it again"
        assert {step["reply"] for step in found} == {CLOSED}
        return
    only_served(expected)
    listed = [line for each in DIFFERENCES if each.scenario == name for line in each.lines]
    compare(expected, found, [f"^{re.escape(line)}$" for line in listed])


@pytest.mark.parametrize("scenario", scenarios_catalog.SCENARIOS, ids=lambda case: case.__name__)
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_the_catalogue_answers_alike_if_commits_come_later(
    seed: int, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change takes effect when it is committed, however late that is: as in a quorum of several nodes."""
    monkeypatch.setattr(DelayedQuorum, "seed", seed)
    with chosen(DELAYED):
        compare_catalogue(scenario)
    assert DelayedQuorum.delayed > 0 or scenario.__name__ == "updates_are_checked", "that scenario changes nothing"


@pytest.mark.parametrize("scenario", scenarios_catalog.SCENARIOS, ids=lambda case: case.__name__)
def test_the_catalogue_answers_alike_with_a_voter(scenario: Scenario) -> None:
    """Its log begins with the record of a leader epoch, and has another one after the restart."""
    with chosen(ONE_VOTER):
        compare_catalogue(scenario)


def compare_catalogue(scenario: Scenario) -> None:
    with odradek.Broker(config=scenarios_catalog.CONFIG, in_thread=True) as broker:
        found = run_scenario(broker.bootstrap_servers, scenario, None, lambda: (broker.stop(), broker.start()))
    name = scenario.__name__
    listed = [line for each in DIFFERENCES if each.scenario == name for line in each.lines]
    compare(load("catalog")[name], found, [f"^{re.escape(line)}$" for line in listed])


def api_key(scenario: str) -> int | None:
    found = re.match(r"k(\d\d)_", scenario)
    return int(found[1]) if found else None


ANNOUNCED = [(key, version) for key, (oldest, newest) in announced().items() for version in range(oldest, newest + 1)]
WITHOUT_SCHEMA = {(0, 0), (0, 1), (0, 2)}
"""API and version: the broker advertises these versions for old clients, and refuses their requests."""
WITHOUT_FIELDS = {(16, 0), (16, 1), (16, 2), (16, 3), (18, 0), (18, 1), (18, 2), (74, 0)}
"""API and version: these requests have no field, so only the empty request is possible."""
NO_BYTES = Run("").shown(b"")


def is_meaningful(value: Any) -> bool:
    """Whether a request differs from the empty one: it has an element, a character, or a number that is not 0."""
    if isinstance(value, dict):
        return any(map(is_meaningful, value.values()))
    return bool(value) and value != NO_BYTES


@pytest.fixture(scope="module")
def trace() -> dict[str, list[dict[str, Any]]]:
    return load("apis")


@pytest.mark.parametrize(("key", "version"), [each for each in ANNOUNCED if each not in WITHOUT_SCHEMA])
def test_each_advertised_version_has_an_empty_and_a_meaningful_request(
    trace: dict[str, list[dict[str, Any]]], key: int, version: int
) -> None:
    """Apache Kafka replied to the meaningful request, so the request was well formed."""
    name = schemas.api_name(key)
    nothing = Run("").shown(empty(key, version))
    assert (not nothing) == ((key, version) in WITHOUT_FIELDS)
    seen = set()
    for step in trace[f"k{key:02}_{name}"]:
        # ListGroups is recorded as a note with only the scenario's groups. The note's request has the API version.
        if step["api"] == name and step["request"].get("version", step["version"]) == version:
            said = {field: value for field, value in step["request"].items() if field in nothing}
            if said == nothing:
                seen.add("empty")
            elif is_meaningful(said) and step["reply"] not in (CLOSED, UNANSWERED, None):
                seen.add("meaningful")
    assert seen == ({"empty", "meaningful"} if nothing else {"empty"})


def test_the_schemas_have_every_advertised_api() -> None:
    assert announced().keys() <= set(KEYS)
    known = {(key, version) for key in announced() for version in versions(key)}
    assert set(ANNOUNCED) - known == WITHOUT_SCHEMA


def test_each_api_that_is_not_served_exists_in_apache_kafka() -> None:
    served_unannounced = {71, 72}
    assert keys_out() - announced().keys() == served_unannounced
    for key in keys_out():
        replies = [step["reply"] for step in load("apis")[f"k{key:02}_{schemas.api_name(key)}"]]
        assert any(isinstance(reply, dict) for reply in replies), "Apache Kafka serves it"


def test_every_recorded_scenario_is_compared() -> None:
    names = {scenario.__name__ for _, scenario in CASES}
    assert {each.scenario for each in DIFFERENCES} <= names
    for suite, module in SUITES.items():
        assert sorted(load(suite)) == sorted(scenario.__name__ for scenario in module.SCENARIOS)
