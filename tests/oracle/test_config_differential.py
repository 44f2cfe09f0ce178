"""Every setting by name: value, source, synonyms, type and flags equal those of Apache Kafka 4.3, and the setting
has a documentation text if Kafka's setting has one. ``compatibility`` lists the exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from compatibility import CONFIGS
from recording import load, run_scenario
from scenarios_configs import all_settings
from support.brokers import RunningBroker

KINDS = ("broker", "all brokers", "topic", "group", "client metrics")
AS_KAFKA_WAS_STARTED = {
    "num_partitions": "4",
    "offsets_topic_replication_factor": "1",
    "transaction_state_log_replication_factor": "1",
    "transaction_state_log_min_isr": "1",
    "share_coordinator_state_topic_replication_factor": "1",
    "share_coordinator_state_topic_min_isr": "1",
    "group_initial_rebalance_delay_ms": "0",
}
Settings = dict[tuple[str, str], dict[str, Any]]


def settings(trace: list[dict[str, Any]]) -> Settings:
    """(kind, name) -> the description of the setting."""
    found = {}
    for kind, step in zip(KINDS, trace, strict=True):
        (result,) = step["reply"]["results"]
        assert result["error_code"] == "none"
        for row in result["configs"]:
            said = {name: value for name, value in row.items() if name not in ("name", "documentation")}
            found[kind, row["name"]] = {**said, "documented": bool(row["documentation"])}
    return found


@pytest.fixture(scope="module")
def theirs() -> Settings:
    return settings(load("configs")["all_settings"])


@pytest.fixture
def ours(own_broker: Callable[..., RunningBroker]) -> Settings:
    return settings(run_scenario(own_broker(**AS_KAFKA_WAS_STARTED).bootstrap, all_settings))


def test_each_setting_equals_that_of_kafka(theirs: Settings, ours: Settings) -> None:
    assert ours.keys() == theirs.keys()
    assert [sum(found == kind for found, _ in theirs) for kind in KINDS] == [340, 1, 33, 17, 3]
    differences = {(each.kind, each.name): each for each in CONFIGS}
    different = {}
    for key, expected in theirs.items():
        wrong = sorted(what for what, value in expected.items() if ours[key][what] != value)
        listed = sorted(differences[key].fields) if key in differences else []
        if wrong != listed:
            different[key] = {what: (expected[what], ours[key][what]) for what in {*wrong, *listed}}
    assert different == {}


def test_each_listed_difference_is_of_a_setting_that_exists(theirs: Settings) -> None:
    listed = [(each.kind, each.name) for each in CONFIGS]
    assert [key for key in listed if key not in theirs] == []
    assert len(set(listed)) == len(listed), "one entry for a setting"
    assert all(each.fields for each in CONFIGS)
