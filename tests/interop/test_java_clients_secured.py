"""Java's producer and consumer at our broker: each protocol and mechanism, good and bad credentials, group commits, and
logins again every two seconds under load."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from security.test_clients_of_a_secured_broker import KINDS, MECHANISMS, SECRET, USER, SecuredBroker
from support.certificates import Authority
from support.issuer import AUDIENCE, ISSUER, Issuer
from support.jvm import java_classes, kafka_command

BEARER = "OAUTHBEARER"
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    BEARER: "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECONDS = 7


class Result(NamedTuple):
    sent: int
    received: int
    committed: int
    reauthentications: int
    error: str


class JavaClients:
    """``settings`` makes those of a client; ``run`` runs clients with the settings by topic, at the same time."""

    def __init__(self, folder: Path, kafka_cp: str) -> None:
        self._folder, self._cp = folder, kafka_cp
        self.issuer = Issuer(folder)
        self._token = folder / "token"
        self.secured = SecuredBroker(folder, {
            "sasl.enabled.mechanisms": ",".join((*MECHANISMS, BEARER)),
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.key_set.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        })  # fmt: skip

    def settings(self, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, str]:
        settings = {"bootstrap.servers": self.secured.address(protocol), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            trust = str(self.secured.authority.pem)
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": trust}
        if mechanism == BEARER:
            settings |= {
                "sasl.login.callback.handler.class":
                    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.oauthbearer.token.endpoint.url": self._token.as_uri(),
                "sasl.oauthbearer.jwt.retriever.class":
                    "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever",
                "sasl.jaas.config": f"{MODULES[BEARER]} required;",
            }  # fmt: skip
        elif mechanism:
            module = MODULES.get(mechanism, SCRAM)
            settings["sasl.jaas.config"] = f'{module} required username="{USER}" password="{password}";'
        return settings | ({"sasl.mechanism": mechanism} if mechanism else {})

    def run(
        self, seconds: int, clients: Mapping[str, Mapping[str, str]], audience: str = AUDIENCE
    ) -> dict[str, Result]:
        self._token.write_text(self.issuer.token(USER, aud=audience))
        files = []
        for topic, settings in clients.items():
            path = self._folder / f"{topic}.properties"
            path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
            files.append(f"{topic}={path}")
        java, *options = kafka_command(self._cp, java_classes(self._cp), heap="512m")
        allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed."
        command = [java, f"{allowed}urls={self._token.as_uri()}", f"{allowed}files={self._token}", *options]
        done = subprocess.run(
            [*command, "SecuredClients", str(seconds), *files], capture_output=True, text=True, timeout=180, check=True
        )
        found = {}
        for line in done.stdout.splitlines():
            topic, *numbers, error = line.split()
            found[topic] = Result(*map(int, numbers), error)
        assert found.keys() == clients.keys(), done.stderr[-4000:]
        return found


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory, kafka_cp: str) -> Iterator[JavaClients]:
    made = JavaClients(tmp_path_factory.mktemp("java"), kafka_cp)
    yield made
    made.secured.broker.stop()


@pytest.mark.slow
def test_each_protocol_and_mechanism(java: JavaClients) -> None:
    kinds = [*KINDS, ("SASL_PLAINTEXT", BEARER), ("SASL_SSL", BEARER)]
    found = java.run(SECONDS, {f"{one}-{two}".lower(): java.settings(one, two) for one, two in kinds})
    for kind, result in found.items():
        assert result.error == "-", (kind, result)
        assert result.sent == result.received == result.committed > 10, (kind, result)
        # Java logs in again after 85 to 95 % of a session of two seconds.
        assert (result.reauthentications >= 2) == kind.startswith("sasl_ssl"), (kind, result)


@pytest.mark.slow
def test_bad_credentials(java: JavaClients, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    wrong = {
        f"{one}-{two}".lower(): java.settings(one, two, "wrong")
        for one in ("SASL_PLAINTEXT", "SASL_SSL") for two in (*MECHANISMS, BEARER)
    }  # fmt: skip
    wrong["ssl-stranger"] = java.settings("SSL", "") | {"ssl.truststore.location": str(stranger.pem)}
    for kind, result in java.run(1, wrong, audience="other").items():
        expected = "SslAuthenticationException" if kind.startswith("ssl") else "SaslAuthenticationException"
        assert result == Result(0, 0, 0, 0, expected), kind
