"""Settings of listeners: names, addresses, protocols, mechanisms. What cannot work, or would protect nothing, is one
line that names the setting."""

from __future__ import annotations

import pytest

from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.listener import Listener
from odradek.broker.settings.listener_settings import ListenerSettings
from odradek.core.errors import ConfigError

PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
TWO = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:SASL_PLAINTEXT",
    "listener.name.external.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.external.plain.sasl.jaas.config": PLAIN,
}


def test_listeners_have_names_protocols_and_addresses() -> None:
    config = BrokerConfig(TWO | {"advertised.listeners": "PLAINTEXT://a:1, EXTERNAL://[::1]:2"})
    assert config.listeners_at(None) == (
        Listener("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 9092, ("a", 1)),
        Listener("EXTERNAL", "SASL_PLAINTEXT", "0.0.0.0", 9093, ("::1", 2)),
    )
    assert BrokerConfig(TWO).listeners_at(None)[1].advertised is None


def test_a_listener_without_a_host_listens_on_all_interfaces_and_ipv6_has_brackets() -> None:
    config = BrokerConfig({"listeners": "PLAINTEXT://:9092,SASL_PLAINTEXT://[::1]:0",
                           "sasl.enabled.mechanisms": "SCRAM-SHA-256"})  # fmt: skip
    assert [(one.host, one.port, str(one)) for one in config.listeners_at(None)] == [
        ("", 9092, "PLAINTEXT://:9092"),
        ("::1", 0, "SASL_PLAINTEXT://[::1]:0"),
    ]


def test_listeners_of_a_controller_are_left_out() -> None:
    """Kafka's server.properties names one, and one process is broker and controller here."""
    config = BrokerConfig({
        "process.roles": "broker,controller",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL",
    })  # fmt: skip
    assert [one.name for one in config.listeners_at(None)] == ["PLAINTEXT"]


def test_the_address_of_the_command_line_is_that_of_the_only_listener() -> None:
    assert BrokerConfig().listeners_at(("h", 1)) == (Listener("PLAINTEXT", "PLAINTEXT", "h", 1),)
    config = BrokerConfig({"advertised.listeners": "HOST://x:2", "listener.security.protocol.map": "HOST:PLAINTEXT"})
    assert config.listeners_at(("h", 1)) == (Listener("HOST", "PLAINTEXT", "h", 1, ("x", 2)),)
    with pytest.raises(ConfigError, match="listeners: --listen has an address, too"):
        BrokerConfig(TWO).listeners_at(("h", 1))


def test_a_setting_of_a_mechanism_goes_before_that_of_the_listener_and_that_of_all() -> None:
    config = BrokerConfig(
        TWO
        | {
            "connections.max.reauth.ms": "1",
            "listener.name.external.connections.max.reauth.ms": "2",
            "listener.name.external.plain.connections.max.reauth.ms": "3",
        }
    )
    other, external = (ListenerSettings(config, one) for one in config.listeners_at(None))
    name = "connections.max.reauth.ms"
    assert [external.value(name, "PLAIN"), external.value(name, "SCRAM-SHA-512"), other.value(name)] == [3, 2, 1]
    assert external.mechanisms == ("PLAIN", "SCRAM-SHA-512")


EXTERNAL = "listener.name.external"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"listeners": "EXTERNAL://127.0.0.1:9092"}, "listener.security.protocol.map: it has no protocol for"),
        ({"listeners": "PLAINTEXT://a:1,PLAINTEXT://a:2"}, "two listeners have the same name"),
        ({"listeners": "PLAINTEXT://a:1,B://a:1", "listener.security.protocol.map": "B:PLAINTEXT"}, "the same address"),
        ({"listeners": "PLAINTEXT://a"}, "listeners must be PLAINTEXT://host:port"),
        ({"listeners": "PLAINTEXT://a:70000"}, "listeners must be PLAINTEXT://host:port"),
        ({"listeners": "CONTROLLER://a:1", "controller.listener.names": "CONTROLLER"}, "names no listener for clients"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:9092"}, "with a host that clients can reach"),
        ({"advertised.listeners": "PLAINTEXT://a:1,B://b:1"}, "advertised.listeners: B is no listener"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "not 'TLS'"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, "sasl.enabled.mechanisms: no listener has SASL"),
        ({"sasl.jaas.config": PLAIN}, r"name the listener and the mechanism: listener\.name\.NAME\.plain"),
        ({"listener.name.inside.sasl.enabled.mechanisms": "PLAIN"}, "no listener has this name"),
        ({"listener.name.plaintext.sasl.enabled.mechanisms": "PLAIN"}, "is PLAINTEXT, so it would protect nothing"),
        ({"listener.name.plaintext.num.partitions": "1"}, "cannot be set for one listener alone"),
        ({"listener.name.plaintext.num.partition": "1"}, "unknown config"),
        (TWO | {f"{EXTERNAL}.sasl.enabled.mechanisms": "GSSAPI"}, r"GSSAPI \(Kerberos\), Kafka's default, is not"),
        (TWO | {f"{EXTERNAL}.sasl.enabled.mechanisms": "PLAIN,GSSAPI"}, r"GSSAPI \(Kerberos\) is not supported"),
        (TWO | {f"{EXTERNAL}.sasl.enabled.mechanisms": "PLAIN,CRAM-MD5"}, "'CRAM-MD5' is not supported"),
        (TWO | {f"{EXTERNAL}.sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "PLAIN is not enabled, so it would protect"),
        (TWO | {f"{EXTERNAL}.plain.sasl.enabled.mechanisms": "PLAIN"}, "cannot be set for one mechanism alone"),
        (TWO | {f"{EXTERNAL}.sasl.jaas.config": PLAIN}, "name the mechanism, too"),
        (TWO | {f"{EXTERNAL}.plain.sasl.jaas.config": ""}, "the mechanism PLAIN has no users"),
        (TWO | {f"{EXTERNAL}.plain.sasl.jaas.config": "x.PlainLoginModule required;"}, "it has no user"),
        (TWO | {f"{EXTERNAL}.plain.sasl.jaas.config": PLAIN.replace("Plain", "Scram")}, "not ScramLoginModule"),
        (TWO | {f"{EXTERNAL}.plain.sasl.jaas.config": PLAIN[:-1]}, "expected MODULE required"),
        (TWO | {"inter.broker.listener.name": "INSIDE"}, "inter.broker.listener.name: INSIDE is no listener"),
        (TWO | {"security.inter.broker.protocol": "SASL_SSL"}, "no listener is SASL_SSL"),
        ({"listeners": "SASL_PLAINTEXT://:1"}, "GSSAPI"),
    ],
)
def test_settings_that_cannot_work_are_one_line_that_names_them(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        BrokerConfig(settings)
    assert "\n" not in str(refused.value)
    assert "alice-secret" not in str(refused.value)


def test_a_change_at_run_time_is_checked_like_the_start() -> None:
    config = BrokerConfig(TWO)
    name = f"{EXTERNAL}.plain.sasl.jaas.config"
    after = config.after({name: PLAIN.replace("alice", "bob")}, cluster_wide=False)
    assert "user_bob" in (ListenerSettings(after, after.listeners_at(None)[1]).text("sasl.jaas.config", "PLAIN") or "")
    with pytest.raises(ConfigError, match="it has no user"):
        config.after({name: "x.PlainLoginModule required;"}, cluster_wide=False)
    with pytest.raises(ConfigError, match="no listener has this name"):
        config.after({"listener.name.inside.plain.sasl.jaas.config": PLAIN}, cluster_wide=False)
