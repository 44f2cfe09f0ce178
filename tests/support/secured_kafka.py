"""Apache Kafka 4.3 with a listener of each kind: TLS, TLS with client certificates, SASL with and without TLS."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Protocol

from bench.apache import ApacheBroker, java, new_cluster_id
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread
from support.certificates import PASSWORD, Authority
from support.issuer import AUDIENCE, ISSUER, Issuer

USER, SECRET = "alice", "al=ice' s3cret;"
"""The only user, with a password that settings and SCRAM have to escape."""
LISTENERS = {"TLS": "SSL", "MTLS": "SSL", "SASL": "SASL_PLAINTEXT", "SASLTLS": "SASL_SSL", "SHORT": "SASL_PLAINTEXT"}
"""Listener → security protocol. MTLS requires a client's certificate; sessions of SHORT end after two seconds."""
SESSION_MS = 2000
_MODULES = "org.apache.kafka.common.security"
_PLAIN, _SCRAM = f"{_MODULES}.plain.PlainLoginModule", f"{_MODULES}.scram.ScramLoginModule"
_BEARER = f"{_MODULES}.oauthbearer.OAuthBearerLoginModule"
_VALIDATOR = f"{_MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"


def quoted(text: str) -> str:
    """A text as an option's value in ``sasl.jaas.config``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def jaas(module: str, **options: str) -> str:
    return " ".join([module, "required", *(f"{name}={quoted(value)}" for name, value in options.items())]) + ";"


def plain_jaas(user: str = USER, password: str = SECRET) -> str:
    return jaas(_PLAIN, username=user, password=password)


def scram_jaas(user: str = USER, password: str = SECRET) -> str:
    return jaas(_SCRAM, username=user, password=password)


def bearer_jaas() -> str:
    return jaas(_BEARER)


def listener_settings(authority: Authority, issuer: Issuer) -> dict[str, str]:
    """The settings of the listeners, the same for both brokers. The broker's certificate is ``broker``."""
    config = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(authority.directory / "broker.p12"),
        "ssl.keystore.password": PASSWORD,
        "ssl.key.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.p12),
        "ssl.truststore.password": PASSWORD,
        "listener.name.mtls.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.short.connections.max.reauth.ms": str(SESSION_MS),
        "group.initial.rebalance.delay.ms": "0",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.key_set.as_uri(),
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    for listener in ("sasl", "sasltls", "short"):
        prefix = f"listener.name.{listener}"
        config |= {
            f"{prefix}.plain.sasl.jaas.config": jaas(_PLAIN, **{f"user_{USER}": SECRET}),
            f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
            f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
            f"{prefix}.oauthbearer.sasl.jaas.config": f"{_BEARER} required;",
            f"{prefix}.oauthbearer.sasl.server.callback.handler.class": _VALIDATOR,
        }
    return config


class SecuredBroker(Protocol):
    """A broker with these listeners."""

    def address(self, listener: str) -> str: ...
    def stop(self) -> None: ...


class SecuredOdradek:
    """Our broker, in a thread, with the listeners and settings of ``SecuredKafka``."""

    def __init__(self, directory: Path, authority: Authority, issuer: Issuer) -> None:
        self._ports = dict(zip(LISTENERS, reserve_ports(len(LISTENERS)), strict=True))
        users = directory / "users"
        users.write_text("".join(f'SCRAM-SHA-{bits}=[name={USER},password="{SECRET}"]\n' for bits in (256, 512)))
        config = listener_settings(authority, issuer) | {
            "listeners": ",".join(f"{name}://{self.address(name)}" for name in LISTENERS),
            "listener.security.protocol.map": ",".join(f"{a}:{b}" for a, b in LISTENERS.items()),
            "inter.broker.listener.name": "SASL",
        }
        self._broker = BrokerThread(directory / "data", config=config, add_scram=users).start()

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener].port}"

    def stop(self) -> None:
        self._broker.stop()


class SecuredKafka(ApacheBroker):
    """``address`` names the listeners."""

    def __init__(self, directory: Path, authority: Authority, issuer: Issuer) -> None:
        self._more = dict(zip(LISTENERS, reserve_ports(len(LISTENERS)), strict=True))
        self._config = {name: text.replace("\\", "\\\\") for name, text in listener_settings(authority, issuer).items()}
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.key_set.as_uri()}"
        files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={issuer.key_set}"
        super().__init__(directory, self._config, heap="512m", java_options=(allowed, files))
        own = directory / "server.properties"
        text = own.read_text()
        controller = next(line for line in text.splitlines() if line.startswith("listeners=")).rpartition(":")[2]
        addresses = [f"{name}://127.0.0.1:{one.port}" for name, one in self._more.items()]
        mine = [f"PLAINTEXT://127.0.0.1:{self.port}", *addresses]
        kinds = ["CONTROLLER:PLAINTEXT", "PLAINTEXT:PLAINTEXT", *(f"{a}:{b}" for a, b in LISTENERS.items())]
        own.write_text(
            text
            + f"listeners={','.join([*mine, f'CONTROLLER://127.0.0.1:{controller}'])}\n"
            + f"advertised.listeners={','.join(mine)}\n"
            + f"listener.security.protocol.map={','.join(kinds)}\n"
        )

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._more[listener].port}"

    def format(self, cluster: str | None = None) -> None:
        """Formats the directory with the SCRAM credentials of the user."""
        command = [java(), "-cp", self._cp, "kafka.tools.StorageTool", "format", "-t", cluster or new_cluster_id()]
        command += ["-c", str(self.directory / "server.properties")]
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            command += ["--add-scram", f"{mechanism}=[name={USER},password={SECRET}]"]
        done = subprocess.run(command, check=False, capture_output=True, timeout=180, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
