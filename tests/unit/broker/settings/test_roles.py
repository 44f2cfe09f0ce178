"""The roles of a node and its voters: Kafka's settings, with one line for each that cannot work."""

from __future__ import annotations

import pytest
from support.node_settings import (
    BROKER_ONLY,
    CLUSTER,
    CONTRADICTIONS,
    CONTROLLER_ONLY,
    FORMS,
    KAFKAS_PROPERTIES,
    without,
)

from odradek.broker.settings import roles
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.roles import VoterAddress
from odradek.core.errors import ConfigError


def read(texts: dict[str, str]) -> roles.NodeRoles:
    return roles.read(texts, int(texts["node.id"]) if "node.id" in texts else None)


def refusal(texts: dict[str, str]) -> str:
    with pytest.raises(ConfigError) as refused:
        roles.check(read(texts))
    line = str(refused.value)
    assert "\n" not in line
    return line


def test_the_settings_of_a_node_are_read() -> None:
    node = read(CLUSTER | {"controller.quorum.bootstrap.servers": "c:1, [::2]:2"})
    assert node.roles == {"broker", "controller"}
    assert node.voters == {1: VoterAddress("a", 9093), 2: VoterAddress("b", 9093), 3: VoterAddress("::1", 9093)}
    assert node.servers == (VoterAddress("c", 1), VoterAddress("::2", 2))
    assert node.controller_listeners == ("CONTROLLER",)
    assert node.listeners == ("PLAINTEXT", "CONTROLLER")
    assert node.mapped_listeners == {"CONTROLLER", "PLAINTEXT"}
    assert not node.is_lone


@pytest.mark.parametrize(
    "texts",
    [
        {},
        KAFKAS_PROPERTIES,
        without(KAFKAS_PROPERTIES, "listeners"),
        without(KAFKAS_PROPERTIES, "node.id") | {"controller.quorum.voters": "4@h:1"},
        without(KAFKAS_PROPERTIES, "controller.quorum.voters") | {"controller.quorum.bootstrap.servers": "h:1"},
        {"controller.quorum.voters": "1@h:1", "node.id": "1"},
        {"controller.quorum.voters": "1@:1"},
        {"controller.listener.names": "CONTROLLER"},
    ],
)
def test_a_lone_broker_is_accepted(texts: dict[str, str]) -> None:
    assert read(texts).is_lone
    roles.check(read(texts))
    BrokerConfig(texts)


@pytest.mark.parametrize("texts", [CLUSTER, BROKER_ONLY, CONTROLLER_ONLY, {"controller.quorum.voters": "1@h:1,2@h:2"}])
def test_the_node_of_a_cluster_is_refused(texts: dict[str, str]) -> None:
    line = refusal(texts)
    assert ": clusters are not supported yet. Leave out process.roles and controller.quorum.voters: " in line
    with pytest.raises(ConfigError, match="clusters are not supported yet"):
        BrokerConfig(texts)


def test_the_line_names_the_setting_that_makes_a_cluster() -> None:
    assert refusal(CLUSTER).startswith("controller.quorum.voters: it names node 2, 3, and this is node 1: clusters")
    assert refusal(BROKER_ONLY).startswith("process.roles=broker: clusters")
    assert refusal(CONTROLLER_ONLY).startswith("process.roles=controller: clusters")
    other = {"controller.quorum.voters": "2@h:1", "node.id": "1"}
    assert refusal(other).startswith("controller.quorum.voters: it names node 2, and this is node 1: clusters")


TWICE = {"controller.quorum.voters": "1@a:1,1@b:2"}, "controller.quorum.voters: it has node 1 twice"
"""Apache Kafka takes the last one."""


@pytest.mark.parametrize(("texts", "line"), [*FORMS, TWICE])
def test_a_value_of_another_form_is_named(texts: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read(texts)
    assert str(refused.value) == line
    with pytest.raises(ConfigError):
        BrokerConfig(texts)


@pytest.mark.parametrize(("texts", "line"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_named_before_that(texts: dict[str, str], line: str) -> None:
    """They are those that Apache Kafka 4.3 refuses, too."""
    assert refusal(texts) == line


def test_the_default_node_is_that_of_the_broker() -> None:
    assert BrokerConfig().node_id == roles.FIRST_NODE
