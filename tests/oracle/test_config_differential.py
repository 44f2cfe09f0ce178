"""Every setting by name: type, default, flags, synonyms and that it is documented, as Apache Kafka 4.3 has them."""

from __future__ import annotations

from typing import Any

import pytest
from recording import load, run_scenario
from scenarios_configs import all_settings

DEFAULT = 5
KINDS = ("broker", "topic", "group", "client metrics")

_ALONE = "One broker cannot meet Kafka's default."
_NO_CLASS = "No such class exists here, so none is claimed to be loaded."
# (kind, setting) -> (what differs, why)
DEVIATIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("broker", "offsets.topic.replication.factor"): ("default", _ALONE),
    ("broker", "group.initial.rebalance.delay.ms"): ("default", "A broker to develop with forms groups at once."),
    ("broker", "node.id"): ("default", "Kafka has none and does not start without; here it is 1."),
    ("broker", "broker.id"): ("default", "An older name of node.id, and so 1 too."),
    ("broker", "listeners"): ("default", "Set by --listen alone."),
    ("broker", "metric.reporters"): ("default", _NO_CLASS),
    ("broker", "principal.builder.class"): ("default", _NO_CLASS),
    ("broker", "remote.log.metadata.manager.class.name"): ("default", _NO_CLASS),
    ("broker", "sasl.oauthbearer.jwt.retriever.class"): ("default", _NO_CLASS),
    ("broker", "sasl.oauthbearer.jwt.validator.class"): ("default", _NO_CLASS),
}


def settings(trace: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """(kind, name) -> what a setting is, whatever it was set to."""
    found = {}
    for kind, step in zip(KINDS, trace, strict=True):
        (result,) = step["reply"]["results"]
        assert result["error_code"] == "none"
        for row in result["configs"]:
            defaults = [(twin["name"], twin["value"]) for twin in row["synonyms"] if twin["source"] == DEFAULT]
            default = row["value"] if row["config_source"] == DEFAULT else dict(defaults).get(row["name"])
            found[kind, row["name"]] = {
                "type": row["config_type"],
                "read only": row["read_only"],
                "sensitive": row["is_sensitive"],
                "default": default if kind == "broker" else [default, defaults],
                "documented": bool(row["documentation"]),
            }
    return found


@pytest.fixture(scope="module")
def both(bootstrap: str) -> tuple[dict[tuple[str, str], dict[str, Any]], dict[tuple[str, str], dict[str, Any]]]:
    return settings(load("configs")["all_settings"]), settings(run_scenario(bootstrap, all_settings))


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_are_kafkas(both, kind: str) -> None:
    theirs, ours = ({name for found, name in told if found == kind} for told in both)
    assert ours == theirs
    assert len(theirs) > {"broker": 300, "topic": 30, "group": 10, "client metrics": 2}[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_each_setting_is_what_it_is_in_kafka(both, kind: str) -> None:
    theirs, ours = both
    different = {}
    for key, expected in theirs.items():
        wrong = [what for what, value in expected.items() if ours[key][what] != value]
        allowed = [DEVIATIONS[key][0]] if key in DEVIATIONS else []
        if key[0] == kind and wrong != allowed:
            different[key[1]] = {what: (expected[what], ours[key][what]) for what in wrong} or "deviates no more"
    assert different == {}
