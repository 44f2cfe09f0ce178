"""The roles of a node and its voters: Kafka's settings, with one line for each that cannot work."""

from __future__ import annotations

import pytest
from support.node_settings import (
    BROKER,
    CLUSTER,
    CONTRADICTIONS,
    CONTROLLER,
    FORMS,
    KAFKAS_PROPERTIES,
    NOT_YET,
    OF_LISTENERS,
    OF_LOGINS,
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
    assert node.protocols == {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT"}
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


def test_the_nodes_of_a_cluster_with_one_controller_are_accepted() -> None:
    broker, controller = BrokerConfig(BROKER), BrokerConfig(CONTROLLER)
    assert broker.roles is not None
    assert controller.roles is not None
    assert (broker.roles.roles, controller.roles.roles) == ({"broker"}, {"controller"})
    assert broker.roles.controller == controller.roles.controller == (100, VoterAddress("localhost", 9093))
    assert [str(one) for one in broker.listeners_at(None)] == ["PLAINTEXT://:9092"]
    assert [str(one) for one in controller.listeners_at(None)] == ["CONTROLLER://:9093"]
    assert BrokerConfig(KAFKAS_PROPERTIES).roles is None
    assert BrokerConfig().roles is None


def test_the_listener_of_controllers_needs_no_protocol() -> None:
    for texts in (BROKER, CONTROLLER):
        BrokerConfig(without(texts, "listener.security.protocol.map"))


def test_the_times_of_a_cluster_have_kafkas_defaults() -> None:
    config = BrokerConfig()
    assert config.broker_heartbeat_interval_ms == 2000
    assert config.broker_session_timeout_ms == 9000
    assert config.initial_broker_registration_timeout_ms == 60_000
    assert config.metadata_max_idle_interval_ms == 500


@pytest.mark.parametrize(("texts", "line"), [*OF_LISTENERS, *NOT_YET, *OF_LOGINS])
def test_a_node_that_cannot_work_is_refused_with_a_remedy(texts: dict[str, str], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BrokerConfig(texts)
    assert str(refused.value) == line


def test_a_node_with_both_roles_and_another_voter_is_refused() -> None:
    line = refusal(CLUSTER | {"controller.quorum.voters": "2@h:1"})
    assert line.startswith("controller.quorum.voters: 2@h:1 is without this controller, node.id=1: add 1@HOST:PORT")


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
