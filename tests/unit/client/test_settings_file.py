"""``connection_settings``: what every client takes from a file that several programs share."""

from __future__ import annotations

import difflib
import logging
from dataclasses import fields
from pathlib import Path

import pytest

from odradek.client import ClientConfig, ConfigError, connection_settings
from odradek.client.group.config import ConsumerConfig
from odradek.client.producer.config import ProducerConfig
from odradek.client.settings.settings_file import shared_settings

SHARED = """\
bootstrap.servers=a:1,b:2
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\
  username="alice" \\
  password="alice-secret";
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
request.timeout.ms=9000
group.id=billing
acks=all
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
schema.registry.url=https://r
"""


def test_a_shared_file_gives_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "client.properties"
    file.write_text(SHARED)
    with caplog.at_level(logging.INFO, logger="odradek.client"):
        found = connection_settings(file)
    assert found.keys() == {
        "bootstrap.servers", "security.protocol", "sasl.mechanism", "sasl.jaas.config", "ssl.truststore.type",
        "ssl.truststore.location", "request.timeout.ms",
    }  # fmt: skip
    assert ClientConfig.of(found).request_timeout_ms == 9000
    assert caplog.messages == [f"{file}: not used here: acks, group.id, schema.registry.url"]
    assert connection_settings(str(file)) == found


def test_what_would_protect_and_what_is_misspelt_reach_the_client(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nrequest.timeout.mss=9\n")
    with pytest.raises(ConfigError, match=r"request\.timeout\.mss; did you mean request\.timeout\.ms"):
        ClientConfig.of(connection_settings(file))
    file.write_text("bootstrap.servers=a:1\nssl.truststore.location=ca.pem\n")
    with pytest.raises(ConfigError, match=r"no effect without security\.protocol"):
        ClientConfig.of(connection_settings(file))
    file.write_text("sasl.password=s3cret-of-alice\nnonsense\n")
    with pytest.raises(ConfigError, match=r"client\.properties, line 2: expected NAME=VALUE$"):
        connection_settings(file)


def test_no_setting_of_a_consumer_or_producer_looks_like_a_misspelt_shared_one() -> None:
    """Such a setting would go to a client that refuses it."""
    shared = shared_settings()
    for config in (ConsumerConfig, ProducerConfig):
        for name in {one.name for one in fields(config)} - shared:
            assert not difflib.get_close_matches(name, [*shared, "security_protocol"], 1, 0.85), name
