"""Addresses and settings: the accepted forms, and the error messages for other forms."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from odradek.client.config import Address, ClientConfig, as_config, parse_address, parse_addresses
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig, split_settings
from odradek.core.errors import ConfigError
from odradek.spark.options import client_config as spark_client_config


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:9092", Address("localhost", 9092)),
        (" 10.0.0.1:1 ", Address("10.0.0.1", 1)),
        ("[::1]:9092", Address("::1", 9092)),
        ("PLAINTEXT://broker-1:9092", Address("broker-1", 9092)),
    ],
)
def test_an_address_is_parsed_and_formatted(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":9092", "a:-1", "a:b", "a:９０９２"])
def test_a_bad_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="expected HOST:PORT, for example 127"):
        parse_address(text)


@pytest.mark.parametrize("text", ["a:0", "a:65536"])
def test_a_port_out_of_range_is_refused_with_the_range(text: str) -> None:
    with pytest.raises(ConfigError, match=f"'{text}': a port is a number from 1 to 65535"):
        parse_address(text)


def test_an_address_with_another_protocol_than_the_clients_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"is PLAINTEXT; set security\.protocol=SASL_SSL"):
        parse_address("SASL_SSL://a:9092")
    with pytest.raises(ConfigError, match="is SSL"):
        ClientConfig.of({"bootstrap.servers": "PLAINTEXT://a:1", "security.protocol": "SSL"})
    given = {"bootstrap.servers": "ssl://a:1", "security.protocol": "SSL"}
    assert ClientConfig.of(given).addresses == (Address("a", 1),)


def test_several_addresses_keep_their_order() -> None:
    assert parse_addresses("b:2,a:1,,b:2,") == (Address("b", 2), Address("a", 1))
    with pytest.raises(ConfigError, match="at least one"):
        parse_addresses(" , ")


def test_names_may_have_dots_or_underscores_and_values_may_be_text() -> None:
    config = ClientConfig.of(
        {"bootstrap.servers": "a:1", "request.timeout.ms": "500", "check_crcs": "false", "client.id": "me"}
    )
    assert config == ClientConfig("a:1", client_id="me", request_timeout_ms=500, check_crcs=False)


@pytest.mark.claim(31, 45, part="d")
@pytest.mark.claim(70, 71, 72, part="b")
def test_defaults_are_kafkas() -> None:
    config = ClientConfig("a:1")
    assert (config.request_timeout_ms, config.default_api_timeout_ms) == (30_000, 60_000)
    assert (config.retry_backoff_ms, config.metadata_max_age_ms, config.fetch_max_wait_ms) == (100, 300_000, 500)
    consumer = ConsumerConfig("a:1")
    assert (consumer.session_timeout_ms, consumer.heartbeat_interval_ms) == (45_000, 3_000)
    assert (consumer.max_poll_interval_ms, consumer.max_poll_records) == (300_000, 500)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "bootstrap_servers is required"),
        (
            {"bootstrap.servers": "a:1", "request.timeout": "5"},
            "unknown setting request.timeout; did you mean request.timeout.ms",
        ),
        (
            {"bootstrap.servers": "a:1", "xyz": "5"},
            "^unknown setting xyz; docs.reference.client-settings.md lists all settings$",
        ),
        ({"bootstrap.servers": "a:1", "request.timeout.ms": "soon"}, "request.timeout.ms: expected a whole number"),
        ({"bootstrap.servers": "a:1", "request.timeout.ms": -1}, "request_timeout_ms: expected a whole number of at"),
        ({"bootstrap.servers": "a:1", "request.timeout.ms": True}, "request_timeout_ms: expected a whole number"),
        ({"bootstrap.servers": "a:1", "request.timeout.ms": 0}, "must be at least 1"),
        ({"bootstrap.servers": "a:1", "check.crcs": "maybe"}, "check.crcs: expected true or false"),
        ({"bootstrap.servers": "a:1", "check.crcs": 1}, "check.crcs: expected true or false"),
        ({"bootstrap.servers": "a:1", "client.id": 5}, "client.id: expected text"),
    ],
)
def test_errors_name_the_setting(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ClientConfig.of(settings)


def test_a_config_can_be_hashed_and_pickled() -> None:
    config = ClientConfig("a:1", retry_backoff_ms=7)
    assert pickle.loads(pickle.dumps(config)) == config
    assert len({config, ClientConfig("a:1", retry_backoff_ms=7)}) == 1


def test_as_config_adds_settings() -> None:
    config = as_config("a:1", client_id="x")
    assert as_config(config) is config
    assert as_config(config, fetch_max_wait_ms=9) == ClientConfig("a:1", client_id="x", fetch_max_wait_ms=9)


ASKS_FOR_NOTHING = [
    {"security.protocol": "PLAINTEXT"},
    {"security.protocol": "plaintext", "sasl.mechanism": "PLAIN", "ssl.ca.location": "/ca.pem"},
    {"ssl.endpoint.identification.algorithm": ""},
    {"ssl.endpoint.identification.algorithm": "https", "sasl.mechanism": "GSSAPI", "ssl.protocol": "TLSv1.3"},
    {"sasl.jaas.config": "", "ssl.truststore.location": ""},
    {
        "sasl.kerberos.min.time.before.relogin": "58000",
        "sasl.login.connect.timeout.ms": "",
        "ssl.enabled.protocols": "",
    },
    {"interceptor.classes": "", "metric.reporters": "", "client.dns.lookup": "use_all_dns_ips"},
    {"value.deserializer": "org.apache.kafka.common.serialization.ByteArrayDeserializer"},
    {"key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer", "partitioner.class": ""},
    {"security_protocol": "PLAINTEXT", "connections_max_idle_ms": 540_000, "enable_metrics_push": True},
]
WOULD_PROTECT = [
    {"security.protocol": "SSL", "sasl.jaas.config": "secret-login"},
    {"security.protocol": "SSL", "ssl.engine.factory.class": "com.example.Engine"},
    {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "GSSAPI"},
    {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"},
    {"sasl.mechanism": "SCRAM-SHA-512"},
    {"ssl.truststore.location": "/trust.jks"},
    {"sasl.jaas.config": "secret-login"},
    {"ssl.endpoint.identification.algorithm": "", "ssl.keystore.location": "/keys"},
]


@pytest.mark.parametrize("given", ASKS_FOR_NOTHING)
def test_settings_that_ask_for_nothing_are_accepted_by_every_client(given: dict[str, Any]) -> None:
    settings = given | {"bootstrap.servers": "h:1"}
    assert ClientConfig.of(settings) == ClientConfig("h:1")
    assert ConsumerConfig.of(settings) == ConsumerConfig("h:1")
    assert split_settings(settings, {})[0] == ProducerConfig()
    dotted = {f"kafka.{name.replace('_', '.')}": str(value) for name, value in settings.items()}
    if not dotted.keys() & {"kafka.interceptor.classes", "kafka.value.deserializer"}:  # Spark refuses their names
        assert spark_client_config({name[6:]: value for name, value in dotted.items()}) == ClientConfig("h:1")


@pytest.mark.parametrize("given", WOULD_PROTECT)
def test_settings_that_would_protect_are_never_ignored(given: dict[str, Any]) -> None:
    settings = given | {"bootstrap.servers": "h:1"}
    for make in (ClientConfig.of, ConsumerConfig.of, lambda one: split_settings(one, {}), spark_client_config):
        with pytest.raises(ConfigError) as refused:
            make(settings)
        assert "secret-login" not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_an_unknown_setting_is_refused_even_if_it_is_empty() -> None:
    with pytest.raises(ConfigError, match="unknown setting secruity"):
        ClientConfig.of({"bootstrap.servers": "h:1", "secruity.protocol": ""})
