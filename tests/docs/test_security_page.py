"""docs/security.md is correct: its file of settings, commands and Python work at a listener with TLS and SCRAM."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import admin as confluent
from support.pages import DOCS, examples
from support.secured_listeners import SecuredListener, secured_listener
from support.secured_proxy import Users

import odradek
from odradek.net.errors import AuthenticationFailed
from odradek.spark.options import client_config
from odradek.testing.ports import reserve_ports

PAGE = DOCS / "security.md"
TEXT = PAGE.read_text()
ADDRESS = "localhost:9094"


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredListener]:
    users = Users("alice", "alice-secret")
    (file,) = re.findall(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    with secured_listener(tmp_path_factory.mktemp("authority"), "orders", users=users) as listener:
        (listener.folder / "client.properties").write_text(file)
        yield listener


def test_the_file_serves_the_commands(listener: SecuredListener) -> None:
    commands = [line for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 2
    for line in commands:
        program, *arguments = shlex.split(line.replace(ADDRESS, listener.proxy.address))
        assert program == "odradek"
        done = subprocess.run(
            [sys.executable, "-m", "odradek", *arguments],
            cwd=listener.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        # A busy machine may take a second for the first connection, which is then a line of its own.
        errors = [one for one in done.stderr.splitlines() if "no answer yet" not in one]
        assert (done.returncode, errors) == (0, []), line
        assert "orders" in done.stdout or "groups" in line
    assert set(listener.proxy.logins) == {"alice"}


def test_the_python_of_the_page_runs(
    listener: SecuredListener, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(listener.folder)
    namespace: dict[str, Any] = {"__name__": "page"}
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == len(examples(PAGE)) == 2
    for block in blocks:
        exec(block.replace(ADDRESS, listener.proxy.address), namespace)
    assert "orders" in capsys.readouterr().out
    options = {name.removeprefix("kafka."): value for name, value in namespace["spark_options"].items()}
    assert client_config(options).security.mechanism == "SCRAM-SHA-512"


@pytest.mark.parametrize("part", re.findall(r"^\| `([^`]*)` \|", TEXT.partition("## Failures")[2], re.MULTILINE))
def test_messages_of_the_page_are_those_of_the_code(part: str) -> None:
    sources = Path(os.path.dirname(PAGE)).parent / "src" / "odradek"
    names = ("net/connection.py", "net/failure_texts.py", "client/authentication.py")
    code = "".join((sources / name).read_text() for name in names)
    for words in re.split(r"[…:;=]", part):
        assert words.strip() in code


# --- the broker -------------------------------------------------------------------------------------------------------

BROKER = TEXT.partition("\n## Secure the broker\n")[2].partition("\n## ")[0]


class TrialBroker:
    """The broker of the page with the certificates of the page, in a folder and on free ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings, commands = re.findall(r"^```\n(.*?)^```", BROKER, re.DOTALL | re.MULTILINE)[:2]
        self.commands = commands
        subprocess.run(["bash", "-ec", commands], cwd=folder, check=True, capture_output=True, timeout=60)
        self._ports = reserve_ports(2)
        self.inside, self.outside = (f"127.0.0.1:{one.port}" for one in self._ports)
        places = {"/etc/kafka/broker.pem": str(folder / "broker.pem"), "/var/lib/kafka": str(folder / "data"),
                  "127.0.0.1:9092": self.inside, "localhost:9092": self.inside, "0.0.0.0:9093": self.outside,
                  "kafka.example.com:9093": self.outside}  # fmt: skip
        for there, here in places.items():
            assert there in settings
            settings = settings.replace(there, here)
        # A client of another test may still look for a broker on a port that is this broker's now.
        (folder / "broker.properties").write_text(f"{settings}auto.create.topics.enable=false\n")
        (command,) = re.findall(r"`(odradek serve [^`]*)`", BROKER)
        (first_user,) = re.findall(r"`(SCRAM-SHA-512=\[name=[^`]*)`", BROKER)
        (folder / "users").write_text(first_user)
        program, *self.arguments = shlex.split(command)
        assert program == "odradek"

    def start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "odradek", *self.arguments, "--exit-with-parent"]
        running = subprocess.Popen(
            command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert running.stdout is not None
        assert running.stdout.readline() == f"ready {self.inside} {self.outside}\n"
        return running

    def settings(self, user: str, password: str, mechanism: str) -> dict[str, str]:
        return {"bootstrap.servers": self.outside, "security.protocol": "SASL_SSL", "sasl.mechanism": mechanism,
                "ssl.ca.location": str(self.folder / "ca.pem"), "sasl.username": user,
                "sasl.password": password}  # fmt: skip


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates")
def test_the_broker_of_the_page_runs_and_its_certificate_is_replaced(tmp_path: Path) -> None:
    trial = TrialBroker(tmp_path)

    def topics(*login: str) -> list[str]:
        with odradek.Admin(trial.settings(*login)) as admin:
            return admin.topics()

    with trial.start() as running:
        try:
            assert topics("alice", "alice-secret", "PLAIN") == topics("admin", "admin-secret", "SCRAM-SHA-512") == []
            with odradek.Admin({"bootstrap.servers": trial.inside}) as admin:
                assert admin.topics() == []
            with pytest.raises(AuthenticationFailed):
                topics("admin", "admin-secret", "PLAIN")
            users = confluent.AdminClient(trial.settings("admin", "admin-secret", "SCRAM-SHA-512"))
            new = confluent.ScramCredentialInfo(confluent.ScramMechanism.SCRAM_SHA_512, 4096)
            change = confluent.UserScramCredentialUpsertion("bob", new, b"bob-secret")
            users.alter_user_scram_credentials([change])["bob"].result(20)
            assert topics("bob", "bob-secret", "SCRAM-SHA-512") == []
            before = served(trial.outside)
            subprocess.run(["bash", "-ec", trial.commands], cwd=tmp_path, check=True, capture_output=True, timeout=60)
            deadline_s = time.monotonic() + 20
            while served(trial.outside) == before:
                assert time.monotonic() < deadline_s
                time.sleep(0.2)
            assert topics("bob", "bob-secret", "SCRAM-SHA-512") == []
        finally:
            running.terminate()


def served(address: str) -> str:
    """The certificate of a listener."""
    host, _, port = address.rpartition(":")
    return ssl.get_server_certificate((host, int(port)))


def test_the_broker_without_tls_lets_the_users_of_the_file_in(tmp_path: Path) -> None:
    settings = re.findall(r"^```\n(.*?)^```", BROKER, re.DOTALL | re.MULTILINE)[2]
    (port,) = reserve_ports(1)
    assert "127.0.0.1:9092" in settings
    (tmp_path / "broker.properties").write_text(settings.replace("127.0.0.1:9092", f"127.0.0.1:{port.port}"))
    (first_user,) = re.findall(r"`(SCRAM-SHA-512=\[name=[^`]*)`", BROKER)
    (tmp_path / "users").write_text(first_user)
    (command,) = re.findall(r"`(odradek serve [^`]*)`", BROKER)
    words = [sys.executable, "-m", *shlex.split(command), "--exit-with-parent"]
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin"}
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            address = running.stdout.readline().removeprefix("ready ").strip()
            with odradek.Admin({"bootstrap.servers": address, "sasl.password": "admin-secret", **login}) as admin:
                assert admin.topics() == []
            with (
                pytest.raises(AuthenticationFailed),
                odradek.Admin({"bootstrap.servers": address, "sasl.password": "another", **login}) as admin,
            ):
                admin.topics()
        finally:
            running.kill()
