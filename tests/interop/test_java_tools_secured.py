"""Apache Kafka's tools at our broker with TLS and SASL: they log in, and make a user that logs in."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.jvm import KafkaTools

import odradek

TOPICS, CONFIGS = "org.apache.kafka.tools.TopicCommand", "kafka.admin.ConfigCommand"


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
def test_kafkas_tools_use_a_secured_broker(kafka_tools: KafkaTools, tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "client.properties"
    with odradek.Broker(security=protocol) as broker:
        broker.create_topic("seen")
        address = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file))
        file.write_text("".join(f"{name}={value}\n" for name, value in broker.java_settings.items()))
        done = kafka_tools.run(TOPICS, *address, "--list")
        assert (done.returncode, done.stdout.split()) == (0, ["seen"]), done.stderr[-2000:]
        if protocol != "SASL_SSL":
            return
        new = ("--entity-type", "users", "--entity-name", "bob", "--add-config", "SCRAM-SHA-512=[password=bob-secret]")
        assert kafka_tools.run(CONFIGS, *address, "--alter", *new).returncode == 0
        bob = broker.client_settings | {"sasl.username": "bob", "sasl.password": "bob-secret"}
        with odradek.Admin(bob) as admin:
            assert admin.topics() == ["seen"]
        file.write_text(file.read_text().replace(broker.client_settings["sasl.password"], "wrong"))
        refused = kafka_tools.run(TOPICS, *address, "--list")
        assert refused.returncode != 0
        assert "invalid credentials" in refused.stdout + refused.stderr
