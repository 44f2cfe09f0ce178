"""Clients at listeners with TLS and SASL: good and bad certificates, passwords and tokens, sessions that end."""

from __future__ import annotations

import base64
import json
import pickle
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.certificates import PASSWORD, Authority
from support.secured_listeners import SCRAM, SECRET, USER, Listeners, server
from support.secured_proxy import SecuredProxy, Users

import odradek
from odradek.client.config import ClientConfig
from odradek.core.errors import ConfigError, OdradekError
from odradek.net.errors import AuthenticationFailed, BrokerUnreachable

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
LOGIN = {"sasl.username": USER, "sasl.password": SECRET}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    for name in ("broker", "client"):
        authority.issue(name)
    authority.issue("old", expired=True)
    authority.issue("elsewhere", ["kafka.example.com", "10.0.0.1"])
    return authority


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    for name in ("broker", "client"):
        authority.issue(name)
    return authority


@pytest.fixture(scope="module")
def listeners() -> Iterator[Listeners]:
    made = Listeners()
    yield made
    made.broker.close()


def tls(authority: Authority, **more: str) -> dict[str, str]:
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.pem)}
    return {"security.protocol": "SSL", **trust, **{name.replace("_", "."): value for name, value in more.items()}}


def topics(proxy: SecuredProxy, settings: dict[str, str]) -> list[str]:
    given: dict[str, Any] = {"bootstrap_servers": proxy.address, "bootstrap_timeout_ms": 0, **settings}
    with odradek.Admin(given) as admin:
        return admin.topics()


def refusal(proxy: SecuredProxy, settings: dict[str, str], kind: type[Exception] = AuthenticationFailed) -> str:
    begin_s = time.monotonic()
    with pytest.raises(kind) as refused:
        topics(proxy, settings)
    assert time.monotonic() - begin_s < 20, "a refused client does not try again until its call times out"
    text = str(refused.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_trusted_broker_is_used_by_each_kind_of_store(listeners: Listeners, authority: Authority) -> None:
    pem = authority.pem.read_text()
    with listeners.secured(context=server(authority)) as proxy:
        for settings in (
            tls(authority),
            {"security.protocol": "ssl", "ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem},
            tls(authority) | {
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.location": str(authority.p12),
                "ssl.truststore.password": PASSWORD,
            },
            {"security.protocol": "SSL", "ssl.ca.location": str(authority.pem)},
            {"security.protocol": "SSL", "ssl.ca.pem": pem},
            {"security_protocol": "SSL", "ssl_ca_location": str(authority.pem), "ssl_enabled_protocols": "TLSv1.2"},
            {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"},
        ):  # fmt: skip
            assert isinstance(topics(proxy, settings), list)
        chosen = {
            "ssl.enabled.protocols": "TLSv1.2",
            "ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_RSA_WITH_AES_128_CBC_SHA256",
        }
        assert isinstance(topics(proxy, tls(authority) | chosen), list)


def test_a_certificate_that_is_not_trusted_is_refused(
    listeners: Listeners, authority: Authority, stranger: Authority
) -> None:
    with listeners.secured(context=server(stranger)) as proxy:
        text = refusal(proxy, tls(authority))
        assert text.endswith("set ssl.truststore.location to the certificate of its authority")
        assert proxy.address in text
        assert "certificate" in refusal(proxy, {"security.protocol": "SSL"}), "the system does not know the authority"
    with listeners.secured(context=server(authority, "old")) as proxy:
        assert "certificate has expired: the broker needs a valid certificate" in refusal(proxy, tls(authority))
        assert "expired" in refusal(proxy, tls(authority) | {"ssl.endpoint.identification.algorithm": ""})


def test_a_certificate_for_another_host_is_refused_unless_names_are_not_checked(
    listeners: Listeners, authority: Authority
) -> None:
    with listeners.secured(context=server(authority, "elsewhere")) as proxy:
        assert "connect to a name of the certificate" in refusal(proxy, tls(authority))
        for value in ("", "none"):
            assert isinstance(topics(proxy, tls(authority) | {"ssl.endpoint.identification.algorithm": value}), list)


def test_no_name_is_looked_up_for_an_address(listeners: Listeners, authority: Authority) -> None:
    """The certificate is for ``localhost``, the client connects to 127.0.0.1."""
    authority.issue("named", ["localhost"])
    with listeners.secured(context=server(authority, "named")) as proxy:
        assert proxy.address.startswith("127.0.0.1:")
        assert "connect to a name of the certificate" in refusal(proxy, tls(authority))


@pytest.mark.parametrize("store", ["ssl.truststore", "ssl.keystore"])
def test_a_wrong_password_of_a_store_is_named(listeners: Listeners, authority: Authority, store: str) -> None:
    file = authority.p12 if store == "ssl.truststore" else authority.directory / "client.p12"
    wrong = {f"{store}.type": "PKCS12", f"{store}.location": str(file), f"{store}.password": "invalid"}
    with listeners.secured(context=server(authority)) as proxy:
        text = refusal(proxy, tls(authority) | wrong, ConfigError)
    assert f"it is damaged, or {store}.password is wrong" in text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_login_without_a_user_or_a_password_makes_no_client(mechanism: str) -> None:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    settings = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
    for options, missing in (('password="p"', "user name"), ('username="u"', "password"), ("", "user name")):
        for make in (odradek.Admin, odradek.Producer, odradek.Consumer):
            with pytest.raises(ConfigError, match=f"{mechanism} needs a {missing}: set sasl.jaas.config"):
                make(settings | {"sasl.jaas.config": f"{module} required {options};"})


def test_a_broker_that_asks_for_a_certificate_gets_it(
    listeners: Listeners, authority: Authority, stranger: Authority
) -> None:
    folder = authority.directory
    stores = (
        {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(folder / "client.pem")},
        {"ssl.keystore.location": str(folder / "client.p12"), "ssl.keystore.password": PASSWORD},
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "client-encrypted.pem"),
            "ssl.key.password": PASSWORD,
        },
        {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": (folder / "client-key.pem").read_text(),
            "ssl.keystore.certificate.chain": (folder / "client-certificate.pem").read_text(),
        },
        {
            "ssl.certificate.location": str(folder / "client-certificate.pem"),
            "ssl.key.location": str(folder / "client-key.pem"),
        },
    )
    with listeners.secured(context=server(authority, asks=authority)) as proxy:
        for store in stores:
            assert isinstance(topics(proxy, tls(authority) | store), list)
        # asyncio's server may close the connection before it sends the alert that a broker sends.
        either: Any = (AuthenticationFailed, BrokerUnreachable)
        assert "certificate of the client" in refusal(proxy, tls(authority), either)
        foreign = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(stranger.directory / "client.pem")}
        assert "certificate of the client" in refusal(proxy, tls(authority) | foreign, either)


def test_a_replaced_trust_store_holds_for_the_next_connection(
    listeners: Listeners, authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    trusted = tmp_path / "ca.pem"
    trusted.write_bytes(authority.pem.read_bytes())
    settings = {"security.protocol": "SSL", "ssl.ca.location": str(trusted), "bootstrap_timeout_ms": "0"}
    with listeners.secured(context=server(authority)) as proxy:
        topics(proxy, settings)
        proxy.context = server(stranger)
        refusal(proxy, settings)
        trusted.write_bytes(stranger.pem.read_bytes() + b"\n")
        assert isinstance(topics(proxy, settings), list), "the same settings, another file"


def test_the_wrong_protocol_is_named(listeners: Listeners, authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        alert = b"\x15\x03\x03\x00\x02\x02\x46"  # how OpenSSL and Java answer bytes that are not TLS

        def answer() -> None:
            peer = listener.accept()[0]
            peer.recv(1000)
            peer.sendall(alert)

        threading.Thread(target=answer, daemon=True).start()
        given = {"bootstrap_servers": f"127.0.0.1:{listener.getsockname()[1]}", "bootstrap_timeout_ms": 0}
        named = "is a listener with TLS: set security.protocol to SSL or SASL_SSL"
        with pytest.raises(BrokerUnreachable, match=named), odradek.Admin(given) as admin:
            admin.topics()
    plain = {"bootstrap_servers": listeners.broker.bootstrap_servers, "bootstrap_timeout_ms": 0, **tls(authority)}
    named = "set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
    with pytest.raises(OdradekError, match=named), odradek.Admin(plain) as admin:
        admin.topics()
    with listeners.secured(users=Users(USER, SECRET)) as proxy:
        config = ClientConfig.of({"bootstrap_servers": proxy.address, "default_api_timeout_ms": 2000})
        with pytest.raises(OdradekError, match="is it a listener with SASL"), odradek.Admin(config) as admin:
            admin.topics()


# --- SASL -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_a_login_by_name_and_password(
    listeners: Listeners, authority: Authority, mechanism: str, has_tls: bool
) -> None:
    trust = {"ssl.ca.location": str(authority.pem)} if has_tls else {}
    base = {"security.protocol": "SASL_SSL" if has_tls else "SASL_PLAINTEXT", "sasl.mechanism": mechanism, **trust}
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    context = server(authority) if has_tls else None
    with listeners.secured(context=context, users=Users(USER, SECRET)) as proxy:
        topics(proxy, base | LOGIN)
        topics(proxy, base | {"sasl.jaas.config": f'{module} required\n username="{USER}" password="{SECRET}";'})
        assert set(proxy.logins) == {USER}
        assert proxy.refused == []
        remedy = "check user and password (sasl.jaas.config, or sasl.username and sasl.password)"
        assert remedy in refusal(proxy, base | {"sasl.username": USER, "sasl.password": "wrong"})
        assert "refused the login by" in refusal(proxy, base | {"sasl.username": "bob", "sasl.password": SECRET})
        other = "SCRAM-SHA-256" if mechanism == "PLAIN" else "PLAIN"
        wrong = {"sasl.jaas.config": f'{PLAIN if other == "PLAIN" else SCRAM} required username="a" password="b";'}
        assert "needs" in refusal(proxy, base | wrong, ConfigError)


def test_a_delegation_token_logs_in_by_scram(listeners: Listeners) -> None:
    config = f'{SCRAM} required username="{USER}" password="{SECRET}" tokenauth="true";'
    base = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": config}
    with listeners.secured(users=Users(USER, SECRET)) as proxy:
        topics(proxy, base)
        assert proxy.extensions[0] == "tokenauth"


def test_a_server_that_asks_for_too_much_or_does_not_know_the_password_is_refused(listeners: Listeners) -> None:
    base = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", **LOGIN}
    with listeners.secured(users=Users(USER, SECRET, iterations=1_000_001)) as proxy:
        assert "asks for 1,000,001 iterations" in refusal(proxy, base)
    with listeners.secured(users=Users(USER, SECRET, iterations=1000)) as proxy:
        assert "asks for 1,000 iterations" in refusal(proxy, base)


def test_a_token_from_a_file_logs_in_until_the_broker_refuses_it(listeners: Listeners, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 600}).encode()).decode().rstrip("=")
    good, bad = f"e30.{claims}.c2ln", f"e30.{claims}.YmFk"
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    path = tmp_path / "token"
    base = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": f'{module} required extension_cluster="blue";',
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
    }
    with listeners.secured(users=Users(USER, SECRET), tokens=(good,)) as proxy:
        assert "No such file" in refusal(proxy, base)
        path.write_text(bad + "\n")
        text = refusal(proxy, base)
        assert "invalid_token" in text
        assert bad not in text
        path.write_text(good + "\n")
        topics(proxy, base)
        assert "cluster=blue" in proxy.extensions
        path.write_text("no token")
        topics(proxy, base)  # the first token is good for most of its life


def test_sessions_that_end_are_renewed_without_a_lost_or_repeated_record(listeners: Listeners) -> None:
    base = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", **LOGIN}
    listeners.broker.create_topic("renewed")
    with listeners.secured(users=Users(USER, SECRET), session_s=0.6) as proxy:
        sending = {"bootstrap_servers": proxy.address, "linger_ms": 0, **base}
        reading = {"bootstrap_servers": proxy.address, "group_id": "renewed", "auto_offset_reset": "earliest", **base}
        values: list[bytes] = []
        sent = 0
        with odradek.Producer(sending) as producer, odradek.Consumer(reading) as consumer:
            consumer.subscribe(["renewed"])
            end_s = time.monotonic() + 3
            while time.monotonic() < end_s or len(values) < sent:
                assert time.monotonic() < end_s + 30
                if time.monotonic() < end_s:
                    producer.send("renewed", value=b"%d" % sent)
                    sent += 1
                values += [record.value for record in consumer.poll(0.01).records()]
                consumer.commit()
        assert values == [b"%d" % number for number in range(sent)]
        assert len(proxy.logins) >= 8, "each connection has logged in several times"
        assert proxy.refused == [], "no request came after the end of a session, or between the requests of a login"


# --- other clients ----------------------------------------------------------------------------------------------------


def said(stderr: str) -> list[str]:
    """The lines of a command, except that it waits: a login on a busy machine may take more than a second."""
    return [line for line in stderr.splitlines() if "no answer yet; waiting" not in line]


def test_the_command_line_takes_a_properties_file(listeners: Listeners, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={SCRAM} required \\\n  username="{USER}" \\\n  password="{SECRET}";\n'
        f"ssl.truststore.type=PEM\nssl.truststore.location={authority.pem}\n"
    )
    listeners.broker.create_topic("seen")
    with listeners.secured(context=server(authority), users=Users(USER, SECRET)) as proxy:
        command = [
            sys.executable,
            "-m",
            "odradek",
            "topics",
            "list",
            "-b",
            proxy.address,
            "--command-config",
            str(file),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, said(done.stderr)) == (0, [])
        assert "seen" in done.stdout
        file.write_text(file.read_text().replace(SECRET, SECRET + "x"))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode != 0
        (line,) = said(done.stderr)
        assert "refused the login by SCRAM-SHA-512" in line
        assert SECRET not in done.stdout + done.stderr


def test_settings_show_no_secret_and_travel_to_other_processes() -> None:
    config = ClientConfig.of({
        "bootstrap_servers": "127.0.0.1:1", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **LOGIN,
        "ssl.keystore.type": "PEM", "ssl.keystore.key": "KEY-TEXT", "ssl.truststore.password": "TRUST-TEXT",
        "ssl.truststore.location": "/nowhere", "ssl.key.password": "KEY-PASSWORD",
    })  # fmt: skip
    shown = repr(config) + str(config) + f"{config.security}"
    for secret in (SECRET, "KEY-TEXT", "TRUST-TEXT", "KEY-PASSWORD"):
        assert secret not in shown
    assert "[hidden]" in shown
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert hash(copy) == hash(config)


# --- a server that leaves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("moment", ["before the hello", "after the hello", "within the answer"])
def test_a_server_that_leaves_within_the_handshake_is_no_refusal(
    authority: Authority, moment: str, is_reset: bool
) -> None:
    """The client tries other brokers, and this one again, as after every lost connection."""

    def leave(connection: socket.socket) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        if moment != "before the hello":
            incoming.write(connection.recv(1 << 16))
        if moment == "within the answer":
            with suppress(ssl.SSLWantReadError):
                server(authority).wrap_bio(incoming, outgoing, server_side=True).do_handshake()
            answer = outgoing.read()
            connection.sendall(answer[: len(answer) // 2])
        if is_reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()

    def serve() -> None:
        with suppress(OSError):
            while True:
                leave(listening.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        settings = {
            "bootstrap.servers": f"127.0.0.1:{listening.getsockname()[1]}", "security.protocol": "SSL",
            "ssl.ca.location": str(authority.pem), "bootstrap_timeout_ms": 300,
        }  # fmt: skip
        with odradek.Admin(settings) as admin, pytest.raises(OdradekError) as error:
            admin.topics()
        assert not isinstance(error.value, AuthenticationFailed)
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
