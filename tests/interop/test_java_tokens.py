"""Java's clients at our broker with tokens: ``kafka-delegation-tokens.sh``, logins by such tokens, OAUTHBEARER."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracle.token_requests import USERS
from security.test_delegation_tokens import PLAIN, SCRAM, BrokerWithTokens
from security.test_oauth_logins import BEARER, OauthBroker
from support.issuer import Issuer
from support.jvm import KafkaTools, kafka_command

pytestmark = pytest.mark.slow
TOPICS = "org.apache.kafka.tools.TopicCommand"
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"


class JavaTokens:
    """``run(user, …)`` runs Kafka's tool for tokens, with a login by PLAIN."""

    def __init__(self, folder: Path, tools: KafkaTools) -> None:
        self.broker = BrokerWithTokens(folder / "data")
        self._folder, self._tools = folder, tools

    def properties(self, name: str, mechanism: str, jaas: str) -> Path:
        path = self._folder / f"{name}.properties"
        path.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\nsasl.jaas.config={jaas}\n")
        return path

    def run(self, user: str, *arguments: str, code: int = 0) -> str:
        jaas = f'{PLAIN} username="{user}" password="{USERS[user]}";'
        file = self.properties(user, "PLAIN", jaas)
        words = ("--bootstrap-server", self.broker.address, "--command-config", str(file), *arguments)
        done = self._tools.run(TOKENS, *words)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def lists_topics(self, token_id: str, secret: str, mechanism: str) -> bool:
        jaas = f'{SCRAM} required username="{token_id}" password="{secret}" tokenauth="true";'
        file = self.properties("token", mechanism, jaas)
        done = self._tools.run(
            TOPICS, "--list", "--bootstrap-server", self.broker.address, "--command-config", str(file)
        )
        assert done.returncode == 0 or "invalid credentials" in done.stdout + done.stderr
        return done.returncode == 0

    def dump(self) -> str:
        segment = self._folder / "data" / "__cluster_metadata-0" / f"{0:020d}.log"
        done = self._tools.run(
            "org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(segment)
        )
        return done.stdout


@pytest.fixture
def java(tmp_path: Path, kafka_tools: KafkaTools) -> Iterator[JavaTokens]:
    made = JavaTokens(tmp_path, kafka_tools)
    yield made
    made.broker.stop()


def test_the_tool_of_kafka_creates_renews_and_ends_tokens(java: JavaTokens) -> None:
    created = java.run("alice", "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    row = next(line for line in created.splitlines() if "User:alice" in line)
    token_id, secret = row.split()[:2]
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        assert java.lists_topics(token_id, secret, mechanism)
        assert not java.lists_topics(token_id, secret[::-1], mechanism)
    assert token_id in java.run("alice", "--describe", "--owner-principal", "User:alice")
    assert token_id not in java.run("alice", "--describe", "--owner-principal", "User:carol")
    assert "Completed renew operation" in java.run("bob", "--renew", "--hmac", secret, "--renew-time-period", "-1")
    assert "DelegationTokenOwnerMismatch" in java.run(
        "carol", "--renew", "--hmac", secret, "--renew-time-period", "-1", code=1
    )
    assert "Completed expire operation" in java.run("alice", "--expire", "--hmac", secret, "--expiry-time-period", "-1")
    assert not java.lists_topics(token_id, secret, "SCRAM-SHA-256")
    for_bob = java.run("alice", "--create", "--max-life-time-period", "60000", "--owner-principal", "User:bob")
    assert re.search(r"User:bob\s+User:alice", for_bob)
    dump = java.dump()
    assert dump.count('"type":"DELEGATION_TOKEN_RECORD"') == 3, "two new ones and a renewal"
    assert dump.count('"type":"REMOVE_DELEGATION_TOKEN_RECORD"') == 1
    assert f'"tokenId":"{token_id}"' in dump
    assert secret not in dump


def test_javas_client_logs_in_by_oauthbearer(tmp_path: Path, kafka_cp: str) -> None:
    issuer = Issuer(tmp_path)
    broker = OauthBroker(tmp_path / "data", issuer.key_set.as_uri())
    token, config = tmp_path / "token", tmp_path / "client.properties"
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
    config.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\nsasl.jaas.config={BEARER} required;\n"
        f"sasl.login.callback.handler.class={handler}\nsasl.oauthbearer.token.endpoint.url={token.as_uri()}\n"
    )
    allowed = "org.apache.kafka.sasl.oauthbearer.allowed"
    options = f"-D{allowed}.urls={token.as_uri()} -D{allowed}.files={token}"
    command = [*kafka_command(kafka_cp), TOPICS, "--list", "--bootstrap-server", broker.bootstrap, "--command-config",
               str(config)]  # fmt: skip
    try:
        for text, is_valid in ((issuer.token(), True), (issuer.token(aud="other"), False)):
            token.write_text(text)
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False,
                env={**os.environ, "JAVA_TOOL_OPTIONS": options},
            )  # fmt: skip
            printed = done.stdout + done.stderr
            assert (done.returncode == 0) == is_valid, printed
            assert is_valid or "invalid_token" in printed
            assert text not in printed
    finally:
        broker.broker.stop()
