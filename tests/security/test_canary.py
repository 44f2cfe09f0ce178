"""Secrets appear nowhere: not in a broker's log at the lowest level, its errors, replies, files or command line, nor in
the output of our command line. Each secret of the test has the word ``canary``."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from oracle.token_requests import call, log_in_by_token
from security.test_oauth_logins import BEARER, HANDLER, URL, Bearer
from support.brokers import Wire
from support.certificates import PASSWORD, Authority
from support.forks import odradek_command
from support.issuer import Issuer, packed

from odradek.security.scram import salted_password
from odradek.security.secret import Secret
from odradek.testing.ports import reserve_ports

CANARY = "canary-7c21"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


class CanaryBroker:
    """``odradek serve`` with a secret in each setting that may have one. ``output`` is all that it has printed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.issuer = Issuer(folder)
        self.authority = Authority(folder / "ca")
        self.authority.issue("broker")
        self._ports = reserve_ports(2)
        self.inside, self.outside = (f"127.0.0.1:{one.port}" for one in self._ports)
        settings = {
            "listeners": f"INSIDE://{self.inside},OUTSIDE://{self.outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
            "listener.name.outside.plain.sasl.jaas.config": f'{PLAIN} required user_alice="{CANARY}-plain";',
            f"listener.name.outside.oauthbearer.{URL}": self.issuer.key_set.as_uri(),
            "listener.name.outside.oauthbearer.sasl.server.callback.handler.class": HANDLER,
            "listener.name.outside.oauthbearer.sasl.jaas.config":
                f'{BEARER} required ssl.truststore.password="{CANARY}-store";',
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "delegation.token.secret.key": f"${{file:{folder}/secrets:tokens}}",
            "ssl.keystore.password": f"{CANARY}-keystore",
            "ssl.key.password": f"{CANARY}-key",
            "log.dirs": str(folder / "data"),
        }  # fmt: skip
        file = folder / "broker.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (folder / "secrets").write_text(f"tokens={CANARY}-tokens\n")
        users = folder / "users"
        users.write_text(f"SCRAM-SHA-256=[name=carol,password={CANARY}-scram]\n")
        self._log = folder / "output"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "odradek.cli.main", "serve", "--config-file", str(file), "--add-scram", str(users)],
            stdout=self._log.open("wb"), stderr=subprocess.STDOUT, env={**os.environ, "ODRADEK_LOG_LEVEL": "DEBUG"},
        )  # fmt: skip
        deadline_s = time.monotonic() + 60
        while b"ready" not in self.output and str(self.outside).encode() not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline_s, self.output
            time.sleep(0.05)

    @property
    def output(self) -> bytes:
        return self._log.read_bytes()

    def wire(self) -> Wire:
        deadline_s = time.monotonic() + 30
        while True:
            try:
                return Wire(self.outside)
            except OSError:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CanaryBroker]:
    made = CanaryBroker(tmp_path_factory.mktemp("canary"))
    yield made
    made.process.terminate()
    made.process.wait(30)


def plain(wire: Wire, password: str, user: str = "alice") -> Any:
    assert wire.call(17, 1, {"mechanism": "PLAIN"}).error_code == 0
    return wire.call(36, 2, {"auth_bytes": f"\0{user}\0{password}".encode()})


def logins(broker: CanaryBroker) -> list[str]:
    """Good and bad logins. Returns what the broker has replied to the bad ones."""
    shown = []
    with broker.wire() as wire:
        assert plain(wire, f"{CANARY}-plain").error_code == 0
        made = call(wire, 38, 2, {"renewers": [], "max_lifetime": -1})
        assert made.error_code == 0
        salted = salted_password("SCRAM-SHA-256", Secret(f"{CANARY}-altered"), b"s" * 16, 4096)
        row = {"name": "dave", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": salted}
        wire.call(51, 0, {"deletions": [], "upsertions": [row]})
    for user, password in (("alice", f"{CANARY}-wrong"), (f"\0{CANARY}", "x"), ("zoe", f"{CANARY}-unknown")):
        with broker.wire() as wire:
            shown.append(repr(plain(wire, password, user)))
    with broker.wire() as wire:
        assert isinstance(log_in_by_token(wire, made.token_id, made.hmac, "SCRAM-SHA-256"), int)
    with broker.wire() as wire:
        shown.append(str(log_in_by_token(wire, made.token_id, f"{CANARY}-hmac".encode(), "SCRAM-SHA-256")))
    head, claims, _ = broker.issuer.token().split(".")
    forged = f"{head}.{claims}.{packed(f'{CANARY}-signature'.encode() * 20)}"
    for token in (forged, f"{CANARY}-token", f"{packed(f'{CANARY}-header'.encode())}.{claims}.x"):
        with Bearer(broker.outside) as bearer:
            bearer.log_in(token)
            shown.append(repr(bearer.step(b"\x01")))
    with Bearer(broker.outside) as bearer:
        shown.append(repr(bearer.log_in(f"{CANARY} two words")))
    return shown


def settings_replies(broker: CanaryBroker) -> list[str]:
    """DescribeConfigs, and changes of settings that are refused."""
    shown = []
    with Wire(broker.inside) as wire:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        shown.append(repr(wire.call(32, 4, {"resources": [resource], "include_synonyms": True,
                                            "include_documentation": True})))  # fmt: skip
        for name, value in (
            ("listener.name.outside.plain.sasl.jaas.config", f"{CANARY}-jaas"),
            ("listener.name.outside.plain.sasl.jaas.config", f'{PLAIN} required user_x="{CANARY}'),
            ("listener.name.inside.ssl.keystore.password", f"{CANARY}-x"),
            ("listener.name.outside.ssl.keystore.key", f"{CANARY}-pem"),
            ("delegation.token.secret.key", f"{CANARY}-y"),
            ("sasl.jaas.config", f"{CANARY}-z"),
        ):
            change = {"name": name, "config_operation": 0, "value": value}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [change]}
            shown.append(repr(wire.call(44, 1, {"resources": [resource], "validate_only": True})))
    return shown


def commands(broker: CanaryBroker) -> list[str]:
    """What our command line prints with good, wrong and broken files of settings."""
    shown = []
    for jaas in (
        f'{PLAIN} required username="alice" password="{CANARY}-plain";',
        f'{PLAIN} required username="alice" password="{CANARY}-wrong";',
        f'{PLAIN} required username="alice" password="{CANARY}-open;',
        f'{SCRAM} required username="alice" password="{CANARY}-module";',
    ):
        file = broker.folder / "client.properties"
        file.write_text(f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config={jaas}\n")
        command = [*odradek_command(), "topics", "list", "-b", broker.outside, "--command-config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "ODRADEK_LOG_LEVEL": "DEBUG"})  # fmt: skip
        assert (done.returncode == 0) == ("-plain" in jaas), done.stderr
        shown.append(done.stdout + done.stderr)
    return shown


def test_no_secret_is_shown(broker: CanaryBroker) -> None:
    replies = logins(broker) + settings_replies(broker) + commands(broker)
    assert len(replies) > 15
    assert [text for text in replies if CANARY in text] == []
    output = broker.output.decode()
    assert "the login of 'alice' by PLAIN" in output, "the log has the failed logins"
    secret_forms = [CANARY, base64.b64encode(CANARY.encode()).decode()[:12]]
    found = [line for line in output.splitlines() if any(form in line for form in secret_forms)]
    assert [line for line in found if f"the login of {CANARY!r}" not in line and f"\\x00{CANARY}" not in line] == []
    for name in ("cmdline", "environ"):
        assert CANARY.encode() not in Path(f"/proc/{broker.process.pid}/{name}").read_bytes()
    kept = {broker.folder / name for name in ("broker.properties", "secrets", "users", "client.properties", "output")}
    files = [path for path in broker.folder.rglob("*") if path.is_file() and path not in kept]
    assert len(files) > 5
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(("settings", "words"), [
    ({"ssl.keystore.location": "{broker}", "ssl.keystore.password": f"{CANARY}-1"}, "wrong"),
    ({"ssl.keystore.key": f"{CANARY}-2", "ssl.keystore.certificate.chain": f"{CANARY}-3", "ssl.keystore.type": "PEM"},
     "ssl.keystore"),
    ({"listener.name.out.plain.sasl.jaas.config": f"{CANARY}-4"}, "sasl.jaas.config"),
    ({"listener.name.out.plain.sasl.jaas.config": f'{PLAIN} required user_a="{CANARY}-5" ='}, "sasl.jaas.config"),
    ({"delegation.token.secret.key": f"{CANARY}-6", "delegation.token.max.lifetime.ms": "0"}, "at least 1"),
    ({"ssl.key.password": f"{CANARY}-7", "ssl.key.pasword": f"{CANARY}-8"}, "ssl.key.pasword"),
])  # fmt: skip
def test_a_start_that_fails_shows_no_secret(
    broker: CanaryBroker, tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    config = {
        "listeners": "OUT://127.0.0.1:0", "listener.security.protocol.map": "OUT:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN", "ssl.keystore.type": "PKCS12", "ssl.keystore.password": PASSWORD,
        "ssl.keystore.location": "{broker}",
        "listener.name.out.plain.sasl.jaas.config": f'{PLAIN} required user_a="{CANARY}-0";', **settings,
        "log.dirs": str(tmp_path / "data"),
    }  # fmt: skip
    if "ssl.keystore.key" in settings:
        del config["ssl.keystore.location"], config["ssl.keystore.password"]
    place = str(broker.authority.directory / "broker.p12")
    file = tmp_path / "broker.properties"
    file.write_text("".join(f"{name}={value.replace('{broker}', place)}\n" for name, value in config.items()))
    done = subprocess.run(
        [*odradek_command(), "serve", "--config-file", str(file)],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "ODRADEK_LOG_LEVEL": "DEBUG"},
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode != 0
    assert words in printed
    assert CANARY not in printed
    assert "Traceback" not in printed
