"""The broker's listeners with TLS: certificates, principals, changed files, long replies, what is no handshake."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire
from support.certificates import PASSWORD, Authority
from support.last_requests import create_topic, log_end, unacknowledged

import odradek
from odradek.core.errors import ConfigError
from odradek.net.errors import AuthenticationFailed, BrokerUnreachable
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread
from odradek.wire import frames

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
LISTENERS = {"INSIDE": "PLAINTEXT", "TLS": "SSL", "MUTUAL": "SSL", "ASKED": "SSL", "LOGIN": "SASL_SSL", "P12": "SSL",
             "BOTH": "SASL_SSL", "WISHED": "SASL_SSL", "CLEAR": "SASL_PLAINTEXT"}  # fmt: skip


class Setup:
    """A broker with a listener of each kind. ``store`` is the key store of the listener TLS, which tests replace."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ca")
        self.stranger = Authority(directory / "stranger", "stranger")
        for authority in (self.authority, self.stranger):
            for name in ("broker", "client"):
                authority.issue(name)
        self.authority.issue("far", ["no-such-host.example"])
        self.authority.issue("second")
        self.authority.issue("third", ["localhost"])
        self.store = directory / "store.pem"
        shutil.copy(self.authority.directory / "broker.pem", self.store)
        self._ports = dict(zip(LISTENERS, reserve_ports(len(LISTENERS)), strict=True))
        self.directory = directory
        self.broker = BrokerThread(directory / "data", config=self._config()).start()

    def _config(self) -> dict[str, str]:
        folder = self.authority.directory
        return {
            "listeners": ",".join(f"{name}://127.0.0.1:{one.port}" for name, one in self._ports.items()),
            "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "broker.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.pem),
            "listener.name.tls.ssl.keystore.location": str(self.store),
            "listener.name.tls.ssl.allow.dn.changes": "true",
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.principal.mapping.rules": "RULE:^.*CN=(.*?)$/$1/U",
            "listener.name.asked.ssl.client.auth": "requested",
            "listener.name.p12.ssl.keystore.type": "PKCS12",
            "listener.name.p12.ssl.keystore.location": str(folder / "broker.p12"),
            "listener.name.p12.ssl.keystore.password": PASSWORD,
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.login.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
            "listener.name.both.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.both.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
            "listener.name.both.ssl.client.auth": "required",
            "listener.name.wished.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.wished.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
            "listener.name.wished.ssl.client.auth": "requested",
            "listener.name.clear.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.clear.plain.sasl.jaas.config": f'{MODULE} required user_alice="secret";',
            "listener.name.both.ssl.keystore.location": str(folder / "broker-encrypted.pem"),
            "listener.name.both.ssl.key.password": PASSWORD,
            "connection.failed.authentication.delay.ms": "10",
        }

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener].port}"

    def settings(self, listener: str, authority: Authority | None = None, **more: str) -> dict[str, Any]:
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str((authority or self.authority).pem)}
        protocol = LISTENERS[listener]
        return {"bootstrap.servers": self.address(listener), "security.protocol": protocol, **trust, **more}

    def context(self, client: Path | None = None, **options: Any) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.pem))
        for name, value in options.items():
            setattr(context, name, value)
        if client is not None:
            context.load_cert_chain(client)
        return context

    def connect(self, listener: str, client: Path | None = None, **options: Any) -> ssl.SSLSocket:
        return self.connect_by(self.context(client, **options), listener)

    def connect_by(
        self, context: ssl.SSLContext, listener: str, session: ssl.SSLSession | None = None
    ) -> ssl.SSLSocket:
        host, _, port = self.address(listener).rpartition(":")
        connection = socket.create_connection((host, int(port)), 10)
        return context.wrap_socket(connection, server_hostname="127.0.0.1", session=session)

    def principals(self) -> list[str]:
        return sorted(str(one.principal) for one in self.broker.server.connections)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    made = Setup(tmp_path_factory.mktemp("tls"))
    yield made
    made.broker.stop()


def topics(settings: dict[str, Any]) -> list[str]:
    with odradek.Admin({"bootstrap_timeout_ms": 0, **settings}) as admin:
        return admin.topics()


def settled(setup: Setup) -> None:
    """Waits until the broker has noticed the ends of earlier connections."""
    deadline_s = time.monotonic() + 10
    while setup.broker.server.connections and time.monotonic() < deadline_s:
        time.sleep(0.01)


# --- certificates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["TLS", "ASKED", "P12"])
def test_a_client_that_trusts_the_authority_connects(setup: Setup, listener: str) -> None:
    topics(setup.settings(listener))
    with pytest.raises(AuthenticationFailed, match="certificate is refused"):
        topics(setup.settings(listener, setup.stranger))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_of_tls_are_there_and_no_older_one(setup: Setup, version: ssl.TLSVersion) -> None:
    with setup.connect("TLS", minimum_version=version, maximum_version=version) as connection:
        assert connection.version() == version.name.replace("_", ".")


VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff"
"""A request of ApiVersions 0. After its reply a client has the tickets that a server of TLS 1.3 sends."""


def session_of(connection: ssl.SSLSocket) -> ssl.SSLSession:
    connection.sendall(VERSIONS)
    assert connection.recv(4)
    assert connection.session is not None
    return connection.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_there_are_no_tickets_and_only_a_session_of_tls_1_2_is_resumed(setup: Setup, version: ssl.TLSVersion) -> None:
    """A resumed session has the principal of the certificate with which it began."""
    own = setup.authority.directory / "client.pem"
    context = setup.context(own, minimum_version=version, maximum_version=version)
    with setup.connect_by(context, "MUTUAL") as connection:
        session = session_of(connection)
        assert not session.has_ticket
        assert not connection.session_reused
    settled(setup)
    with setup.connect_by(context, "MUTUAL", session) as connection:
        session_of(connection)
        assert connection.session_reused is (version is ssl.TLSVersion.TLSv1_2)
        assert setup.principals() == ["User:CLIENT"]
    settled(setup)


def client(authority: Authority) -> dict[str, str]:
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority.directory / "client.pem")}


def test_a_listener_that_requires_a_certificate_refuses_clients_without_a_trusted_one(setup: Setup) -> None:
    topics(setup.settings("MUTUAL", **client(setup.authority)))
    for more in ({}, client(setup.stranger)):
        with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
            topics(setup.settings("MUTUAL", **more))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("has_certificate", "alert"), [(True, "unknown ca"), (False, "certificate required|handshake fail")]
)
def test_a_client_gets_the_alert_that_says_why_its_certificate_is_refused(
    setup: Setup, version: ssl.TLSVersion, has_certificate: bool, alert: str
) -> None:
    own = setup.stranger.directory / "client.pem" if has_certificate else None
    with (
        pytest.raises(ssl.SSLError, match=alert.replace(" ", ".")),
        setup.connect("MUTUAL", own, minimum_version=version, maximum_version=version) as connection,
    ):
        connection.recv(1)  # in TLS 1.3 the handshake of the client has ended before the broker sees its certificate


def test_the_certificate_makes_the_principal(setup: Setup) -> None:
    own = setup.authority.directory / "client.pem"
    settled(setup)
    for listener, file, principal in (
        ("MUTUAL", own, "User:CLIENT"),
        ("MUTUAL", setup.authority.directory / "far.pem", "User:FAR"),  # its host name is not looked at
        ("ASKED", own, "User:O=Tests,CN=client"),
        ("ASKED", None, "User:ANONYMOUS"),
        ("TLS", own, "User:ANONYMOUS"),
        ("TLS", setup.stranger.directory / "client.pem", "User:ANONYMOUS"),
    ):
        with setup.connect(listener, file) as connection:
            session_of(connection)
            assert setup.principals() == [principal]
        settled(setup)


LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "secret"}


def test_a_login_over_tls(setup: Setup) -> None:
    login = LOGIN
    for own in ({}, client(setup.authority), client(setup.stranger)):  # the listener asks for no certificate
        topics(setup.settings("LOGIN", **login, **own))
    with pytest.raises(AuthenticationFailed, match="Invalid username or password"):
        topics(setup.settings("LOGIN", **login | {"sasl.password": "x"}))


def test_a_login_where_a_certificate_is_requested(setup: Setup) -> None:
    for own in ({}, client(setup.authority)):
        topics(setup.settings("WISHED", **LOGIN, **own))
    with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
        topics(setup.settings("WISHED", **LOGIN, **client(setup.stranger)))


@pytest.mark.parametrize("handshake_version", [0, 1])
@pytest.mark.parametrize("listener", ["LOGIN", "CLEAR"])
def test_api_versions_before_a_login(setup: Setup, listener: str, handshake_version: int) -> None:
    """The client asks for the versions first. After SaslHandshake 0 it sends PLAIN's bare message."""
    message = b"\0alice\0secret"
    host, _, port = setup.address(listener).rpartition(":")
    with (
        setup.connect(listener)
        if listener == "LOGIN"
        else socket.create_connection((host, int(port)), 10) as connection
    ):
        versions = asked(connection, 18, 3, {"client_software_name": "a", "client_software_version": "1"})
        offered = {row.api_key: (row.min_version, row.max_version) for row in versions.api_keys}
        assert (offered[17], offered[36]) == ((0, 1), (0, 2))
        handshake = asked(connection, 17, handshake_version, {"mechanism": "PLAIN"})
        assert (handshake.error_code, "PLAIN" in handshake.mechanisms) == (0, True)
        if handshake_version:
            assert asked(connection, 36, 2, {"auth_bytes": message}).error_code == 0
        else:
            connection.sendall(len(message).to_bytes(4, "big") + message)
            assert connection.recv(4) == bytes(4), "an empty message: the login is accepted"
        assert asked(connection, 3, 12, {"topics": [], "allow_auto_topic_creation": False,
                                         "include_topic_authorized_operations": False}).brokers  # fmt: skip


def asked(connection: socket.socket, api_key: int, version: int, message: dict[str, Any]) -> Any:
    connection.sendall(frames.encode_request(api_key, version, 1, "test", message))
    reader = frames.FrameReader()
    while not (found := list(reader.feed(connection.recv(1 << 16)))):
        pass
    return frames.decode_reply(api_key, version, found[0])[1]


def test_a_listener_needs_no_certificate_if_its_own_setting_says_so(setup: Setup, tmp_path: Path) -> None:
    ports = reserve_ports(2)
    strict, open_ = (f"127.0.0.1:{one.port}" for one in ports)
    config = {
        "listeners": f"STRICT://{strict},OPEN://{open_}",
        "listener.security.protocol.map": "STRICT:SSL,OPEN:SSL",
        "inter.broker.listener.name": "OPEN",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(setup.authority.directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(setup.authority.pem),
        "ssl.client.auth": "required",
        "listener.name.open.ssl.client.auth": "none",
    }
    broker = BrokerThread(tmp_path / "data", config=config).start()
    try:
        given = setup.settings("TLS")
        topics(given | {"bootstrap.servers": open_})
        topics(given | {"bootstrap.servers": strict} | client(setup.authority))
        with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
            topics(given | {"bootstrap.servers": strict})
    finally:
        broker.stop()


def test_a_login_may_need_a_certificate_too(setup: Setup) -> None:
    login = LOGIN
    own = client(setup.authority)
    topics(setup.settings("BOTH", **login, **own))
    encrypted = own["ssl.keystore.location"].replace(".pem", "-encrypted.pem")
    topics(setup.settings("BOTH", **login, **own | {"ssl.keystore.location": encrypted, "ssl.key.password": PASSWORD}))
    with pytest.raises((AuthenticationFailed, BrokerUnreachable)):
        topics(setup.settings("BOTH", **login))


def test_a_client_without_a_common_cipher_suite_is_refused(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    """The certificate has an elliptic key, so suites for RSA keys cannot be used."""
    host, _, port = setup.address("TLS").rpartition(":")
    context = ssl.create_default_context(cafile=str(setup.authority.pem))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    with (
        caplog.at_level(logging.INFO, logger="odradek.broker"),
        socket.create_connection((host, int(port)), 10) as plain,
        pytest.raises(ssl.SSLError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")
    assert "no shared cipher" in caplog.text


# --- records ----------------------------------------------------------------------------------------------------------


def test_records_of_any_size_arrive_whole(setup: Setup) -> None:
    """Replies of more than 64 KiB have file parts, which are read and encrypted piece by piece."""
    sizes = [1, 100, 70_000, 300_000, 900_000, 5]
    values = [os.urandom(size) for size in sizes] * 4
    settings = setup.settings("TLS")
    with odradek.Producer(settings | {"max.request.size": 2_000_000}) as producer:
        for value in values:
            producer.send("sizes", value=value)
    for listener in ("TLS", "INSIDE"):
        reading = setup.settings(listener) if listener == "TLS" else {"bootstrap.servers": setup.address(listener)}
        found: list[bytes] = []
        given = reading | {"group.id": f"g-{listener}", "auto.offset.reset": "earliest"}
        with odradek.Consumer(given | {"fetch.max.bytes": 50_000_000}) as consumer:
            consumer.subscribe(["sizes"])
            deadline_s = time.monotonic() + 30
            while len(found) < len(values) and time.monotonic() < deadline_s:
                found += [record.value for record in consumer.poll(0.5).records()]
        assert found == values


def test_requests_are_served_that_came_before_the_client_left(setup: Setup) -> None:
    with Wire(setup.address("INSIDE")) as wire:
        create_topic(wire, "left")
        end = 0
        for count in (300, 20, 1):
            with setup.connect("TLS") as connection:
                connection.sendall(unacknowledged("left", count))
            end += count
            wait_for(lambda: log_end(wire, "left") == end, 5)  # noqa: B023


def test_a_client_that_reads_slowly_costs_little_memory(setup: Setup) -> None:
    with odradek.Producer(setup.settings("TLS")) as producer:
        for _ in range(30):
            producer.send("slow", value=os.urandom(900_000))
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 40_000_000}
    request = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 40_000_000, "isolation_level": 0,
               "topics": [{"topic": "slow", "partitions": [partition]}]}  # fmt: skip
    from odradek.wire import frames

    with setup.connect("TLS") as connection:
        connection.sendall(frames.encode_request(1, 4, 1, "slow", request))
        size = int.from_bytes(connection.recv(4), "big")
        assert size > 20_000_000
        (served,) = [one for one in setup.broker.server.connections if one.unsent_bytes > 1 << 20]
        time.sleep(0.3)
        assert served.transport.get_write_buffer_size() < 2 << 20
        left = size
        while left:
            left -= len(connection.recv(min(left, 1 << 20)))


# --- changes ----------------------------------------------------------------------------------------------------------


def serial(setup: Setup, listener: str = "TLS") -> str:
    with setup.connect(listener) as connection:
        return str(connection.getpeercert()["serialNumber"])


def test_a_changed_file_holds_for_new_connections_and_a_broken_one_does_not(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    first = serial(setup)
    with setup.connect("TLS") as before, caplog.at_level(logging.INFO, logger="odradek.broker"):
        replace(setup.store, b"-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")
        wait_for(lambda: "keeps its former certificates" in caplog.text, 5)
        assert serial(setup) == first
        replace(setup.store, (setup.authority.directory / "third.pem").read_bytes())
        wait_for(lambda: "lacks alternative names of the former one" in caplog.text, 5)
        assert serial(setup) == first
        assert "set listener.name.tls.ssl.allow.san.changes=true" in caplog.text
        replace(setup.store, (setup.authority.directory / "second.pem").read_bytes())
        wait_for(lambda: serial(setup) != first, 5)
        before.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff")
        assert before.recv(4), "a present connection goes on"


def test_a_changed_trust_store_refuses_and_accepts_other_clients(
    setup: Setup, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A revoked authority: its clients are refused from then on, a present connection goes on."""
    (port,) = reserve_ports(1)
    trust = tmp_path / "trust.pem"
    trust.write_bytes(setup.authority.pem.read_bytes())
    config = {
        "listeners": f"MUTUAL://127.0.0.1:{port.port}",
        "listener.security.protocol.map": "MUTUAL:SSL",
        "inter.broker.listener.name": "MUTUAL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(setup.authority.directory / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(trust),
        "ssl.client.auth": "required",
    }
    broker = BrokerThread(tmp_path / "data", config=config).start()
    given = setup.settings("TLS") | {"bootstrap.servers": f"127.0.0.1:{port.port}"}

    def enters(authority: Authority) -> bool:
        try:
            topics(given | client(authority))
        except (AuthenticationFailed, BrokerUnreachable):
            return False
        return True

    try:
        assert (enters(setup.authority), enters(setup.stranger)) == (True, False)
        context = setup.context(setup.authority.directory / "client.pem")
        with (
            socket.create_connection(("127.0.0.1", port.port), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as before,
            caplog.at_level(logging.INFO, logger="odradek.broker"),
        ):
            session_of(before)
            replace(trust, b"-----BEGIN CERTIFICATE-----\nbroken\n-----END CERTIFICATE-----\n")
            wait_for(lambda: "keeps its former certificates" in caplog.text, 5)
            assert enters(setup.authority)
            replace(trust, setup.stranger.pem.read_bytes())
            wait_for(lambda: not enters(setup.authority), 5)
            assert enters(setup.stranger)
            session_of(before)
            assert "the listener MUTUAL use its changed certificates" in caplog.text
    finally:
        broker.stop()


def test_the_log_of_a_changed_setting_of_tls_names_no_certificates(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    row = {"name": "listener.name.wished.ssl.client.auth", "value": "none"}
    with caplog.at_level(logging.INFO, logger="odradek.broker"), Wire(setup.address("INSIDE")) as wire:
        for operation in (0, 1):  # set, delete
            caplog.clear()
            resource = {"resource_type": 4, "resource_name": "1", "configs": [row | {"config_operation": operation}]}
            (reply,) = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses
            assert not reply.error_code, reply.error_message
            wait_for(lambda: "the listener WISHED use its changed" in caplog.text, 5)
            assert "use its changed settings of TLS" in caplog.text


def test_no_session_from_before_a_change_is_resumed(setup: Setup) -> None:
    """Else a client whose authority is not trusted any more could come back."""
    context = setup.context(maximum_version=ssl.TLSVersion.TLSv1_2)
    first = serial(setup)
    with setup.connect_by(context, "TLS") as connection:
        session = session_of(connection)
    with setup.connect_by(context, "TLS", session) as connection:
        assert connection.session_reused
    other = (
        "second" if setup.store.read_bytes() != (setup.authority.directory / "second.pem").read_bytes() else "broker"
    )
    replace(setup.store, (setup.authority.directory / f"{other}.pem").read_bytes())
    wait_for(lambda: serial(setup) != first, 5)
    with setup.connect_by(context, "TLS", session) as connection:
        assert not connection.session_reused


def replace(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    path.with_suffix(".new").replace(path)


def wait_for(check: Any, most_s: float) -> None:
    """A changed file has to hold within five seconds: this waits longer only on a busy machine."""
    deadline_s = time.monotonic() + 4 * most_s
    while not check():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_client_may_change_the_certificates_of_a_listener(setup: Setup) -> None:
    name = "listener.name.asked.ssl.keystore.location"
    first = serial(setup, "ASKED")

    def alter(value: str) -> tuple[int, str]:
        row = {"name": name, "value": value, "config_operation": 0}
        resource = {"resource_type": 4, "resource_name": "1", "configs": [row]}
        with Wire(setup.address("INSIDE")) as wire:
            reply = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses[0]
        return int(reply.error_code), reply.error_message or ""

    code, text = alter(str(setup.directory / "missing.pem"))
    assert code == 42
    assert "ssl.keystore.location" in text
    assert "missing.pem: No such file" in text
    code, text = alter(str(setup.authority.directory / "second.pem"))
    assert code == 42
    assert "the subject of the certificate changes from 'O=Tests,CN=broker' to 'O=Tests,CN=second'" in text
    assert "ssl.allow.dn.changes=true" in text
    renewed = setup.authority.issue("renewed", ["localhost", "127.0.0.1", "kafka.test"], subject="broker")
    assert alter(str(renewed)) == (0, "")
    wait_for(lambda: serial(setup, "ASKED") != first, 5)


# --- what is no handshake ---------------------------------------------------------------------------------------------


def drain(connection: socket.socket) -> None:
    """Reads until the broker closes the connection; bytes that it has not read make that a reset."""
    with suppress(ConnectionResetError):
        while connection.recv(4096):
            pass


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0\0\0\x0a\0\x12\0\0\0\0\0\1\xff\xff",
        b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00",
        b"\x15\x03\x03\x00\x02\x02\x28",
        b"\x16\x03\x01\xff\xff" + b"\xff" * 2000,
    ],
)
def test_bytes_that_are_no_handshake_close_the_connection_with_one_line(
    setup: Setup, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    host, _, port = setup.address("TLS").rpartition(":")
    address = (host, int(port))
    with caplog.at_level(logging.INFO, logger="odradek.broker"), socket.create_connection(address, 10) as connection:
        connection.sendall(data)
        drain(connection)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("closing the connection from /127.0.0.1: the TLS handshake at the listener TLS failed: ")
    assert all(record.exc_info is None for record in caplog.records)


def hello(setup: Setup) -> bytes:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=str(setup.authority.pem))
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_client_that_leaves_within_its_handshake_is_one_line(
    setup: Setup, caplog: pytest.LogCaptureFixture, share: float, is_reset: bool
) -> None:
    """It has sent nothing, a part of its first message, or all of it: then the broker writes its answer."""
    host, _, port = setup.address("TLS").rpartition(":")
    first = hello(setup)
    admissions = setup.broker.server.admissions
    settled(setup)
    before = admissions.count
    with caplog.at_level(logging.INFO, logger="odradek.broker"):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(first[: int(len(first) * share)])
            wait_for(lambda: admissions.count > before, 5)
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line = "the connection from /127.0.0.1 ended within the TLS handshake at the listener TLS"
        wait_for(lambda: line in caplog.text, 5)
        wait_for(lambda: admissions.count == before, 5)
    # A client of another broker that had this port before may connect.
    records = [one for one in caplog.records if one.name == "odradek.broker"]
    of_this = [one for one in records if "wrong version number" not in one.getMessage()]
    assert [one.getMessage() for one in of_this] == [line]
    assert all(one.exc_info is None for one in caplog.records)


def test_a_client_without_tls_gets_the_alert_by_which_it_knows_the_listener(setup: Setup) -> None:
    address = setup.address("TLS")
    with pytest.raises(BrokerUnreachable) as error:
        topics({"bootstrap.servers": address})
    named = "it is a listener with TLS: set security.protocol to SSL or SASL_SSL"
    assert str(error.value) == f"cannot reach {address}: {named}"


def test_handshakes_that_do_not_end_are_closed_and_counted(
    setup: Setup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odradek.broker.tls.transport.HANDSHAKE_S", 0.3)
    host, _, port = setup.address("LOGIN").rpartition(":")
    with caplog.at_level(logging.INFO, logger="odradek.broker"):
        begun = [socket.create_connection((host, int(port)), 10) for _ in range(20)]
        for one in begun:
            one.sendall(b"\x16\x03\x01\x02\x00\x01\x00")
            drain(one)
            one.close()
    assert caplog.text.count("has not ended within") == 20
    server = setup.broker.server
    settled(setup)
    wait_for(lambda: not server.admissions.count, 5)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ssl.keystore.location": ""}, "the listener has TLS and no certificate"),
        ({"ssl.keystore.location": "missing.pem"}, r"ssl\.keystore\.location missing\.pem: No such file"),
        ({"ssl.keystore.location": "CA/ca.pem"}, "it has no private key"),
        ({"ssl.keystore.type": "PKCS12", "ssl.keystore.location": "CA/broker.p12", "ssl.keystore.password": "x"},
         "it is damaged, or ssl.keystore.password is wrong"),
        ({"ssl.truststore.type": "PKCS12", "ssl.truststore.location": "CA/ca.p12", "ssl.truststore.password": "x"},
         "it is damaged, or ssl.truststore.password is wrong"),
        ({"ssl.keystore.location": "CA/broker-encrypted.pem", "ssl.key.password": "x"}, "private key cannot be read"),
        ({"ssl.client.auth": "required", "ssl.truststore.location": ""}, "ssl.client.auth=required needs the cert"),
        ({"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "the suites of TLS 1.3 cannot be chosen"),
        ({"ssl.enabled.protocols": "TLSv1.1"}, "TLSv1.2 and TLSv1.3 are supported"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "invalid rule 'RULE:x'"),
        ({"ssl.keystore.type": "JKS", "ssl.keystore.location": "CA/jks"}, "keytool -importkeystore -srckeystore jks"),
        ({"listeners": "SASL_SSL://127.0.0.1:0", "ssl.client.auth": "required",
          "sasl.enabled.mechanisms": "SCRAM-SHA-256"}, "the listeners with TLS have SASL, too"),
        ({"listeners": "PLAINTEXT://127.0.0.1:0", "ssl.client.auth": "required"},
         "no listener has TLS, so it would protect nothing"),
        ({"ssl.engine.factory.class": "x"}, "this broker has no such part of TLS"),
    ],
)  # fmt: skip
def test_a_listener_that_cannot_have_tls_stops_the_start_with_one_line(
    setup: Setup, tmp_path: Path, settings: dict[str, str], complaint: str
) -> None:
    folder = setup.authority.directory
    (folder / "jks").write_bytes(b"\xfe\xed\xfe\xed" + bytes(20))
    config = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(setup.authority.pem),
    } | {name: value.replace("CA/", f"{folder}/") for name, value in settings.items()}
    with pytest.raises(ConfigError, match=complaint) as refused:
        BrokerThread(tmp_path / "data", config=config).start()
    assert "\n" not in str(refused.value)
