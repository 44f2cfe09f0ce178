"""The log of a broker's own process: refused logins and refused requests are there by default."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.brokers import Wire

from odradek.broker.settings.protection import AUTHORIZER, STANDARD_AUTHORIZER
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess

AUDIT = "kafka.authorizer.logger"
USERS = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="a-secret" user_root="r-secret";'


def log_in(address: str, user: str, password: str) -> Wire:
    wire = Wire(address)
    wire.call(17, 1, {"mechanism": "PLAIN"})
    wire.call(36, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})
    return wire


def denied(address: str, topic: str) -> None:
    with log_in(address, "alice", "a-secret") as wire:
        wire.call(3, 5, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})


def set_level(address: str, level: str) -> None:
    row = {"name": AUDIT, "config_operation": 0, "value": level}
    resource = {"resource_type": 8, "resource_name": "1", "configs": [row]}
    with log_in(address, "root", "r-secret") as wire:
        (answer,) = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses
        assert not answer.error_code, answer.error_message


@pytest.mark.parametrize("level", ["", "ERROR"])
def test_refusals_are_in_the_log_by_default_and_their_level_is_altered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.delenv("ODRADEK_LOG_LEVEL", raising=False)
    (port,) = reserve_ports(1)
    address = f"127.0.0.1:{port.port}"
    config = {
        "listeners": f"OUTSIDE://{address}",
        "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.outside.plain.sasl.jaas.config": USERS,
        "connection.failed.authentication.delay.ms": "0",
        AUTHORIZER: STANDARD_AUTHORIZER,
        "super.users": "User:root",
    }
    with BrokerProcess(tmp_path, config=config, log_level=level) as broker:
        with log_in(address, "mallory", "guess"):
            pass
        with Wire(address) as stranger, pytest.raises(ConnectionError, match="closed"):
            stranger.call(3, 5, {"topics": [], "allow_auto_topic_creation": False})
        denied(address, "first")
        set_level(address, "WARN")
        denied(address, "second")
        set_level(address, "INFO")
        denied(address, "third")
        until = time.monotonic() + 10
        while "Topic:LITERAL:third" not in broker.log_path.read_text() and time.monotonic() < until:
            time.sleep(0.01)
        text = broker.log_path.read_text()
    is_default = not level
    assert ("the login of 'mallory' by PLAIN at the listener OUTSIDE failed" in text) is is_default
    assert ("no login at the listener OUTSIDE: unexpected request before the login: metadata v5" in text) is is_default
    assert ("Topic:LITERAL:first" in text) is is_default
    assert "Topic:LITERAL:second" not in text
    assert "Topic:LITERAL:third" in text
    assert "secret" not in text
