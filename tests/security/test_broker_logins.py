"""A broker with listeners with and without SASL: logins by our client, sessions, limits, what others see of them."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import pytest
from support.brokers import Wire

import odradek
from odradek.broker import process
from odradek.broker.handlers import k18_api_versions
from odradek.broker.logins import first_users
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.node.writer_role import StartChanges
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.cli.broker.serve import FirstChanges, serve
from odradek.core.errors import ConfigError
from odradek.net.errors import AuthenticationFailed
from odradek.security.scram import salted_password
from odradek.security.secret import Secret
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread
from odradek.wire import frames

SECRET = "al=ice, s3cret;"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SHA_256, SHA_512 = 1, 2
LISTENERS = ("INSIDE", "OUTSIDE", "SHORT")


class Setup:
    """A broker with a listener of each kind. ``address(name)`` is that of a listener."""

    def __init__(self, directory: Path) -> None:
        self._ports = dict(zip(LISTENERS, reserve_ports(len(LISTENERS)), strict=True))
        config = {
            "listeners": ",".join(f"{name}://127.0.0.1:{one.port}" for name, one in self._ports.items()),
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
            "advertised.listeners": ",".join(f"{name}://{self.address(name)}" for name in LISTENERS),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.outside.plain.sasl.jaas.config": f'{MODULE} required user_alice="{SECRET}";',
            "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.short.plain.sasl.jaas.config": f'{MODULE} required user_alice="{SECRET}" user_bob="b";',
            "listener.name.short.connections.max.reauth.ms": "1500",
            "connection.failed.authentication.delay.ms": "60",
            "sasl.server.max.receive.size": "2000",
            "group.initial.rebalance.delay.ms": "0",
        }
        self.broker = BrokerThread(directory, config=config).start()

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener].port}"

    def settings(self, mechanism: str = "PLAIN", user: str = "alice", password: str = SECRET) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.address("OUTSIDE"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def set_scram(self, user: str, password: str | None, *mechanisms: int) -> list[int]:
        """Sets or, without a password, deletes credentials, by the listener without a login."""
        names = {SHA_256: "SCRAM-SHA-256", SHA_512: "SCRAM-SHA-512"}
        rows = [
            {
                "name": user, "mechanism": number, "iterations": 4096, "salt": b"salt" * 8,
                "salted_password": salted_password(names[number], Secret(password or ""), b"salt" * 8, 4096),
            }
            for number in mechanisms
        ]  # fmt: skip
        gone = [{"name": user, "mechanism": number} for number in mechanisms]
        codes = []
        with Wire(self.address("INSIDE")) as wire:
            for one in range(len(mechanisms)):  # a request changes a user only once
                message = {"deletions": [], "upsertions": [rows[one]]} if password else {
                    "deletions": [gone[one]], "upsertions": []}  # fmt: skip
                codes += [int(row.error_code) for row in wire.call(51, 0, message).results]
        return codes


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    made = Setup(tmp_path_factory.mktemp("logins") / "data")
    yield made
    made.broker.stop()


def topics(settings: dict[str, Any]) -> list[str]:
    with odradek.Admin({"bootstrap_timeout_ms": 0, **settings}) as admin:
        return admin.topics()


# --- users ------------------------------------------------------------------------------------------------------------


def test_users_of_plain_log_in(setup: Setup) -> None:
    topics(setup.settings())
    for user, password in (("alice", "wrong"), ("mallory", SECRET)):
        begin_s = time.monotonic()
        with pytest.raises(AuthenticationFailed, match="Invalid username or password") as refused:
            topics(setup.settings("PLAIN", user, password))
        assert time.monotonic() - begin_s >= 0.06
        assert SECRET not in str(refused.value)


def test_credentials_of_scram_hold_for_the_next_login(setup: Setup) -> None:
    settings = {number: setup.settings(name, "carol", "c") for number, name in
                ((SHA_256, "SCRAM-SHA-256"), (SHA_512, "SCRAM-SHA-512"))}  # fmt: skip
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        topics(settings[SHA_256])
    assert setup.set_scram("carol", "c", SHA_256) == [0]
    topics(settings[SHA_256])
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        topics(settings[SHA_512])
    assert setup.set_scram("carol", "new", SHA_256) == [0]
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        topics(settings[SHA_256])
    assert setup.set_scram("carol", "c", SHA_512) == [0]
    topics(settings[SHA_512])
    assert setup.set_scram("carol", None, SHA_512) == [0]
    with pytest.raises(AuthenticationFailed, match="invalid credentials"):
        topics(settings[SHA_512])


def test_a_listener_has_its_own_users_and_mechanisms(setup: Setup) -> None:
    short = {"bootstrap.servers": setup.address("SHORT")}
    topics(setup.settings(user="bob", password="b") | short)
    with pytest.raises(AuthenticationFailed):
        topics(setup.settings(user="bob", password="b"))
    with pytest.raises(AuthenticationFailed, match="it supports PLAIN"):
        topics(setup.settings("SCRAM-SHA-256") | short)


def test_a_client_logs_in_at_a_server_that_has_later_versions(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the newest versions of SaslHandshake and SaslAuthenticate that it knows itself."""
    real = k18_api_versions._row
    offered: list[int] = []

    def row(api: Any) -> dict[str, int]:
        if api.key not in (17, 36):
            return real(api)
        offered.append(api.key)
        return real(api) | {"max_version": 100}

    monkeypatch.setattr(k18_api_versions, "_row", row)
    monkeypatch.setattr(k18_api_versions, "_PACKED", WeakKeyDictionary())
    assert setup.set_scram("dora", "d", SHA_512) == [0]
    topics(setup.settings("SCRAM-SHA-512", "dora", "d"))
    assert set(offered) == {17, 36}


def test_a_connection_has_the_principal_of_its_user(setup: Setup) -> None:
    server = setup.broker.server
    with Client(setup.address("OUTSIDE")) as alice, Wire(setup.address("INSIDE")) as other:

        def principals() -> list[str]:
            # By the port of the client's end: the broker may not have noticed yet that other clients went away.
            names = {one.transport.get_extra_info("peername"): str(one.principal) for one in tuple(server.connections)}
            return [names[client.socket.getsockname()] for client in (alice, other)]

        alice.call(17, 1, {"mechanism": "PLAIN"})
        other.call(3, 0, {"topics": []})
        assert principals() == ["User:ANONYMOUS", "User:ANONYMOUS"]
        alice.call(36, 2, {"auth_bytes": f"\0alice\0{SECRET}".encode()})
        assert principals() == ["User:alice", "User:ANONYMOUS"]


# --- addresses --------------------------------------------------------------------------------------------------------


def test_replies_have_the_address_of_the_listener_by_which_the_client_came(setup: Setup) -> None:
    port = int(setup.address("INSIDE").rpartition(":")[2])
    with Wire(setup.address("INSIDE")) as wire:
        assert [one.port for one in wire.call(3, 5, {"topics": [], "allow_auto_topic_creation": False}).brokers] == [
            port
        ]
    with Client(setup.address("OUTSIDE")) as alice:
        alice.log_in("alice", SECRET)
        port = int(setup.address("OUTSIDE").rpartition(":")[2])
        assert [one.port for one in alice.call(3, 5, {"topics": [], "allow_auto_topic_creation": False}).brokers] == [
            port
        ]
        assert [one.port for one in alice.call(60, 0, {"include_cluster_authorized_operations": False}).brokers] == [
            port
        ]
        assert alice.call(10, 0, {"key": "group"}).port == port


def test_settings_of_the_broker_show_listeners_and_no_password(setup: Setup) -> None:
    with Wire(setup.address("INSIDE")) as wire:
        resource = {"resource_type": 4, "resource_name": "1", "configuration_keys": None}
        message = {"resources": [resource], "include_synonyms": True, "include_documentation": False}
        reply = wire.call(32, 3, message)
    rows = {row.name: row for row in reply.results[0].configs}
    assert rows["listeners"].value == ",".join(f"{name}://{setup.address(name)}" for name in LISTENERS)
    users = rows["listener.name.outside.plain.sasl.jaas.config"]
    assert (users.value, users.is_sensitive) == (None, True)
    assert rows["listener.name.short.connections.max.reauth.ms"].value == "1500"
    assert SECRET not in repr(reply)


# --- sessions ---------------------------------------------------------------------------------------------------------


class Client(Wire):
    """A connection that logs in by PLAIN, with replies in raw form."""

    def log_in(self, user: str, password: str, version: int = 2) -> Any:
        assert self.call(17, 1, {"mechanism": "PLAIN"}).error_code == 0
        return self.call(36, version, {"auth_bytes": f"\0{user}\0{password}".encode()})


def test_a_session_ends_unless_the_client_logs_in_again(setup: Setup) -> None:
    with Client(setup.address("SHORT")) as client:
        assert client.log_in("alice", SECRET).session_lifetime.total_seconds() == 1.5
        assert client.call(17, 1, {"mechanism": "PLAIN"}).error_code == 0, "the first further login is allowed at once"
        assert client.call(36, 2, {"auth_bytes": f"\0alice\0{SECRET}".encode()}).error_code == 0
        assert client.call(17, 1, {"mechanism": "PLAIN"}).error_code == 34, "not twice in a second"
        assert client.call(3, 0, {"topics": []}).brokers
        time.sleep(1.6)
        with pytest.raises((OSError, EOFError, AssertionError, struct.error)):
            client.call(3, 0, {"topics": []})


def test_a_further_login_that_fails_is_logged_with_the_user_of_the_connection(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="odradek.broker.logins"), Client(setup.address("SHORT")) as client:
        client.log_in("alice", SECRET)
        assert client.call(17, 1, {"mechanism": "PLAIN"}).error_code == 0
        assert client.call(36, 2, {"auth_bytes": b"nothing"}).error_code == 58
    (line,) = [record.getMessage() for record in caplog.records]
    assert "the login of 'alice' by PLAIN at the listener SHORT failed" in line


def test_a_session_without_an_end_has_no_further_login(setup: Setup) -> None:
    with Client(setup.address("OUTSIDE")) as client:
        assert client.log_in("alice", SECRET).session_lifetime.total_seconds() == 0
        assert client.call(17, 1, {"mechanism": "PLAIN"}).error_code == 34
        assert client.call(36, 2, {"auth_bytes": b""}).error_code == 34
        assert client.call(3, 0, {"topics": []}).brokers


def test_no_record_is_lost_while_sessions_end(setup: Setup) -> None:
    base = setup.settings() | {"bootstrap.servers": setup.address("SHORT")}
    count = 40
    with odradek.Producer(base | {"linger.ms": 0}) as producer:
        for number in range(count):
            producer.send("renewed", value=str(number).encode())
            producer.flush()
            time.sleep(0.08)
    values: list[bytes] = []
    deadline_s = time.monotonic() + 20
    with odradek.Consumer(base | {"group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["renewed"])
        while len(values) < count and time.monotonic() < deadline_s:
            values += [record.value for record in consumer.poll(0.5).records()]
        consumer.commit()
    assert values == [str(number).encode() for number in range(count)]


# --- what is not a login ----------------------------------------------------------------------------------------------


def ended(address: str, data: bytes) -> bytes:
    """Sends bytes, and returns what the broker sends before it closes the connection."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), 5) as connection:
        connection.sendall(data)
        found = b""
        with suppress(ConnectionResetError):  # bytes that the broker has not read make its end a reset
            while data := connection.recv(4096):
                found += data
        return found


def test_bytes_that_are_no_login_close_the_connection_with_one_line(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = frames.encode_request(3, 0, 1, "x", {"topics": []})
    for data in (metadata, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"\0\0\x08\0" + b"x" * 100,
                 b"\0\0\0\4abcd", b"\0\0\0\0"):  # fmt: skip
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="odradek.broker"):
            assert ended(setup.address("OUTSIDE"), data) == b""
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 1, lines
        assert "closing the connection from /127.0.0.1" in lines[0]
        assert not caplog.records[0].exc_info


def test_a_failed_login_names_user_and_address_with_control_characters_escaped(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="odradek.broker"), Client(setup.address("OUTSIDE")) as client:
        assert client.log_in("eve\nINFO forged", "x").error_code == 58
    (line,) = [text for record in caplog.records if "login" in (text := record.getMessage())]
    assert line == (
        "closing the connection from /127.0.0.1: the login of 'eve\\nINFO forged' by PLAIN at the listener OUTSIDE "
        "failed: Authentication failed: Invalid username or password"
    )


def test_a_message_of_a_login_after_the_login_gets_kafkas_refusal(setup: Setup) -> None:
    text = "SaslAuthenticate request received after successful authentication"
    for listener in ("OUTSIDE", "INSIDE"):
        with Client(setup.address(listener)) as client:
            if listener == "OUTSIDE":
                client.log_in("alice", SECRET)
            reply = client.call(36, 2, {"auth_bytes": b"x"})
            assert (reply.error_code.name, reply.error_message) == ("illegal_sasl_state", text)
            reply = client.call(17, 1, {"mechanism": "PLAIN"})
            assert (reply.error_code.name, reply.mechanisms) == ("illegal_sasl_state", ())


def test_longer_requests_are_read_after_the_login_alone(setup: Setup) -> None:
    long = "x" * 3000
    with Client(setup.address("OUTSIDE")) as client:
        client.log_in("alice", SECRET)
        reply = client.call(3, 5, {"topics": [{"name": long}], "allow_auto_topic_creation": False})
        assert len(reply.topics) == 1
    with Client(setup.address("OUTSIDE")) as client:
        client.call(17, 1, {"mechanism": "PLAIN"})
        with pytest.raises((OSError, EOFError, AssertionError, struct.error)):
            client.call(36, 2, {"auth_bytes": long.encode()})


def test_a_login_ends_within_its_time(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("odradek.broker.logins.session.HANDSHAKE_S", 0.2)
    with caplog.at_level(logging.INFO, logger="odradek.broker"), Client(setup.address("OUTSIDE")) as idle:
        idle.call(17, 1, {"mechanism": "PLAIN"})
        time.sleep(0.5)
        with pytest.raises((OSError, EOFError, AssertionError, struct.error)):
            idle.call(36, 2, {"auth_bytes": b"\0alice\0x"})
    assert [text for record in caplog.records if "has not logged in" in (text := record.getMessage())] != []
    with Client(setup.address("OUTSIDE")) as client:
        client.log_in("alice", SECRET)
        time.sleep(0.4)
        assert client.call(3, 0, {"topics": []}).brokers, "the time ends with the login"


def test_a_listener_without_sasl_has_no_login(setup: Setup) -> None:
    with Wire(setup.address("INSIDE")) as wire:
        assert wire.call(17, 1, {"mechanism": "PLAIN"}).error_code == 34


def test_many_unfinished_logins_do_not_keep_others_out(setup: Setup) -> None:
    host, _, port = setup.address("OUTSIDE").rpartition(":")
    begun = [socket.create_connection((host, int(port)), 5) for _ in range(50)]
    try:
        for one in begun:
            one.sendall(b"\0\0\0\x20\0")
        topics(setup.settings())
    finally:
        for one in begun:
            one.close()


# --- the first user ---------------------------------------------------------------------------------------------------


def test_the_first_user_comes_from_a_file_and_keeps_a_later_password(tmp_path: Path) -> None:
    port = reserve_ports(1)[0]
    config = {"listeners": f"SASL_PLAINTEXT://127.0.0.1:{port.port}", "sasl.enabled.mechanisms": "SCRAM-SHA-512"}
    users = tmp_path / "users"
    users.write_text('# first users\n\nSCRAM-SHA-512=[name=admin,password="a,d]m\\"in",iterations=8192]\n')
    command = [sys.executable, "-m", "odradek.broker", str(tmp_path / "data"), "-", f"--add-scram={users}",
               *(f"{name}={value}" for name, value in config.items()), "--exit-with-parent"]  # fmt: skip
    login = {"bootstrap.servers": f"127.0.0.1:{port.port}", "security.protocol": "SASL_PLAINTEXT",
             "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "admin"}  # fmt: skip
    for number, password in enumerate(('a,d]m"in', "changed")):
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == f"ready 127.0.0.1:{port.port}\n".encode()
            with odradek.Admin(login | {"sasl.password": password}) as admin:
                admin.topics()
            if not number:
                with Scram(f"127.0.0.1:{port.port}") as wire:
                    wire.log_in_by_scram("admin", password)
                    wire.set_password("admin", "changed")
            process.stdin.close()
            written = process.stderr.read().decode()
            assert ("has a credential for SCRAM-SHA-512 already" in written) == bool(number)
            assert "in" not in written or 'a,d]m"in' not in written


def test_keys_are_derived_once_and_for_new_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = tmp_path / "users"
    users.write_text("SCRAM-SHA-512=[name=admin,password=secret]\nSCRAM-SHA-256=[name=admin,password=secret]\n")
    derived, given = [], []

    def derive(*arguments: Any) -> bytes:
        derived.append(arguments)
        return salted_password(*arguments)

    monkeypatch.setattr(first_users, "salted_password", derive)
    monkeypatch.setattr(process, "run", lambda *_, changes, **__: given.append(changes))
    monkeypatch.setattr(gc, "disable", lambda: None)
    options: dict[str, Any] = {"first": FirstChanges(users), "exit_with_parent": False}
    assert serve(tmp_path / "data", "127.0.0.1:0", [], **options) == 0
    assert derived == []
    users.unlink()  # as a pipe, it can be read only once
    assert "secret" not in repr(given)

    async def start() -> None:
        added = given[0].first_users
        new_role = partial(LoneRole, changes=StartChanges(first_users=added))
        broker = BrokerServer(BrokerConfig({}), tmp_path / "data", ("127.0.0.1", 0), new_role=new_role)
        await broker.start()
        await broker.stop()

    for _ in range(2):
        asyncio.run(start())
        assert len(derived) == 2


class Scram(Wire):
    def log_in_by_scram(self, user: str, password: str) -> None:
        from odradek.security.scram import ScramClient

        client = ScramClient("SCRAM-SHA-512", user, Secret(password), "clientnonce")
        self.call(17, 1, {"mechanism": "SCRAM-SHA-512"})
        first = bytes(self.call(36, 2, {"auth_bytes": client.first()}).auth_bytes)
        client.verify(bytes(self.call(36, 2, {"auth_bytes": client.final(first)}).auth_bytes))

    def set_password(self, user: str, password: str) -> None:
        salted = salted_password("SCRAM-SHA-512", Secret(password), b"salt" * 8, 4096)
        row = {"name": user, "mechanism": 2, "iterations": 4096, "salt": b"salt" * 8, "salted_password": salted}
        assert self.call(51, 0, {"deletions": [], "upsertions": [row]}).results[0].error_code == 0


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("", "users: it has no user: expected lines of SCRAM-SHA-512=["),
        ("# later\n\n", "users: it has no user: expected lines of SCRAM-SHA-512=["),
        ("SCRAM-SHA-1=[name=a,password=b]", "line 1: expected SCRAM-SHA-256=["),
        ("SCRAM-SHA-256=[password=b]", "line 1: name is missing"),
        ("SCRAM-SHA-256=[name=a]", "either password"),
        ("SCRAM-SHA-256=[name=a,password=hush,iterations=4095]", "iterations must be 4096 to 16384"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=aHVzaA==]", "needs salt"),
        ("SCRAM-SHA-256=[name=a,password=hush,pasword=x]", "expected iterations, name"),
        ("SCRAM-SHA-256=[name=a,password=hush,salt=!]", "salt is not valid base64"),
    ],
)
def test_a_wrong_line_of_first_users_is_named_without_its_text(tmp_path: Path, line: str, complaint: str) -> None:
    (tmp_path / "users").write_text(line)
    with pytest.raises(ConfigError, match=complaint.replace("[", r"\[")) as refused:
        first_users.read(tmp_path / "users")
    assert "hush" not in str(refused.value)


# --- a broker without listeners with SASL -----------------------------------------------------------------------------


def test_a_plain_broker_loads_no_module_of_logins(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.node.writer_role import StartChanges
async def run():
    broker = BrokerServer(BrokerConfig({"num.partitions": "2"}), Path(sys.argv[1]), ("127.0.0.1", 0))
    await broker.start()
    print(sorted(name for name in sys.modules if name.startswith(("odradek.broker.logins", "odradek.broker.tls",
          "odradek.security.s", "odradek.broker.settings.listener_settings", "odradek.broker.settings.prefixes"))))
    await broker.stop()
asyncio.run(run())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert eval(done.stdout) == []
