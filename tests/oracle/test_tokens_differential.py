"""Our broker's replies about delegation tokens beside those that Apache Kafka 4.3 gave (``record_tokens.py``)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.brokers import Wire
from token_requests import CONFIG, TRACE, USERS, Connect, TokenRun, run, without_key

from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@contextmanager
def token_broker(directory: Path, config: dict[str, str]) -> Iterator[Connect]:
    kept = reserve_ports(2)
    inside, outside = (one.port for one in kept)
    users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
    settings = config | {
        "listeners": f"INSIDE://127.0.0.1:{inside},USER://127.0.0.1:{outside}",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,USER:SASL_PLAINTEXT",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.user.plain.sasl.jaas.config": f"{PLAIN} {users};",
        "connection.failed.authentication.delay.ms": "1",
    }
    broker = BrokerThread(directory, config=settings).start()
    try:
        yield lambda user: Wire(f"127.0.0.1:{inside if user == 'ANONYMOUS' else outside}")
    finally:
        broker.stop()
        del kept


@pytest.mark.parametrize("name", ["with a key", "without a key"])
def test_replies_equal_those_of_kafka(tmp_path: Path, name: str) -> None:
    expected = json.loads(TRACE.read_text())[name]
    with token_broker(tmp_path, CONFIG if name == "with a key" else {}) as connect:
        found = run(connect) if name == "with a key" else without_key(TokenRun(connect))
    assert [row[0] for row in found] == [row[0] for row in expected]
    assert [pair for pair in zip(found, expected, strict=True) if json.loads(json.dumps(pair[0])) != pair[1]] == []
