"""Apache Kafka's tools at our broker with TLS and SASL: they log in, and make a user that logs in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.jvm import KafkaTools

import odradek
from odradek.cli.main import run

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
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


def test_one_file_with_variables_serves_kafkas_tools_and_our_commands(
    kafka_tools: KafkaTools, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The broker's own file has variables, too. The password is in a third file alone."""
    secrets, file, settings = (tmp_path / name for name in ("secrets", "client.properties", "broker.properties"))
    secrets.write_text("alice.password = secret-7f3a\n")
    provider = (
        "config.providers=file\n"
        "config.providers.file.class=org.apache.kafka.common.config.provider.FileConfigProvider\n"
        f"config.providers.file.param.allowed.paths={tmp_path}\n"
    )
    file.write_text(
        f"{provider}security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={PLAIN} required "
        f'username="alice" \\\n  password="${{file:{secrets}:alice.password}}";\n'
    )
    settings.write_text(
        f"{provider}security.inter.broker.protocol=SASL_PLAINTEXT\nsasl.enabled.mechanisms=PLAIN\n"
        f"listener.name.sasl_plaintext.plain.sasl.jaas.config={PLAIN} required "
        f'user_alice="${{file:{secrets}:alice.password}}";\n'
    )
    command = [sys.executable, "-m", "odradek.cli.main", "serve", "--data-dir", str(tmp_path / "data"), "--listen",
               "127.0.0.1:0", "--config-file", str(settings), "--exit-with-parent"]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        address = broker.stdout.readline().split()[1]
        options = ("--bootstrap-server", address, "--command-config", str(file))
        made = kafka_tools.run(TOPICS, *options, "--create", "--topic", "seen")
        assert made.returncode == 0, made.stderr[-2000:]
        assert run(["topics", "list", *options]) == 0
        assert "seen" in capsys.readouterr().out.split()
        file.write_text(file.read_text().replace("alice.password}", "bob.password}"))
        assert run(["topics", "list", *options]) == 2
        assert f"the file {secrets} has no key 'bob.password'" in capsys.readouterr().err
        broker.terminate()
