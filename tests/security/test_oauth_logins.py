"""OAUTHBEARER at our broker: keys by file and by HTTP, rotation, expiry, refusals, and the settings of a start."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire
from support.certificates import Authority
from support.issuer import AUDIENCE, ISSUER, Issuer, Provider, provider
from support.secured_listeners import server

import odradek
from odradek.broker.logins.mechanisms import ListenerMechanisms, ScramUsers
from odradek.broker.logins.provider_keys import ProviderKeys
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.listener_settings import ListenerSettings
from odradek.core.errors import ConfigError
from odradek.net.errors import AuthenticationFailed
from odradek.security import key_fetch, oauth
from odradek.security.client_security import TokenSource
from odradek.security.key_fetch import FetchTimes, KeySetSource
from odradek.security.key_sets import KeySet, KeySetError, read_key_set
from odradek.security.oauth_server import INVALID_TOKEN, OauthServer, read_first
from odradek.security.sasl_server import LoggedIn, LoginFailed, LoginRefused
from odradek.security.secret import Secret
from odradek.security.web_tokens import TokenRefused, WebToken
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread

URL, CLASS = "sasl.oauthbearer.jwks.endpoint.url", "sasl.server.callback.handler.class"
HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
BEARER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"


class OauthBroker:
    """A broker with one listener, ``config``, and the issuer's tokens."""

    def __init__(self, directory: Path, url: str, **config: str) -> None:
        (self._port,) = reserve_ports(1)
        self.bootstrap = f"127.0.0.1:{self._port.port}"
        names = {name.replace("_", "."): value for name, value in config.items()}
        self.config = {
            "listeners": f"OUTSIDE://{self.bootstrap}",
            "listener.security.protocol.map": "OUTSIDE:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "connection.failed.authentication.delay.ms": "10",
            URL: url,
            **names,
        }
        self.broker = BrokerThread(directory, config=self.config).start()

    def settings(self, token: str, folder: Path) -> dict[str, Any]:
        path = folder / "token"
        path.write_text(token)
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
        }


class Bearer(Wire):
    def log_in(self, token: str, before: str = "n,,") -> Any:
        assert self.call(17, 1, {"mechanism": "OAUTHBEARER"}).error_code == 0
        return self.step(f"{before}\x01auth=Bearer {token}\x01\x01".encode())

    def step(self, data: bytes) -> Any:
        return self.call(36, 2, {"auth_bytes": data})


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def by_file(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OauthBroker]:
    made = OauthBroker(tmp_path_factory.mktemp("broker"), issuer.key_set.as_uri())
    yield made
    made.broker.stop()


def wait_for(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


# --- logins -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256"])
def test_our_client_logs_in(by_file: OauthBroker, issuer: Issuer, tmp_path: Path, algorithm: str) -> None:
    with odradek.Admin(by_file.settings(issuer.token("alice", algorithm), tmp_path)) as admin:
        assert admin.topics() == []


def test_an_invalid_token_gets_the_json_of_the_rfc(
    by_file: OauthBroker, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    token = issuer.token(aud="other")
    with caplog.at_level(logging.INFO, logger="odradek.broker"), Bearer(by_file.bootstrap) as client:
        reply = client.log_in(token)
        assert (reply.error_code, bytes(reply.auth_bytes)) == (0, b'{"status":"invalid_token"}')
        reply = client.step(b"\x01")
        assert (reply.error_code, reply.error_message) == (58, '{"status":"invalid_token"}')
    (line,) = [text for record in caplog.records if "login" in (text := record.getMessage())]
    assert line.endswith("failed: the token is not valid: its audience is 'other'")
    assert token.split(".")[2] not in caplog.text


def test_a_client_that_leaves_after_the_json_is_in_the_log(
    by_file: OauthBroker, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="odradek.broker"):
        with Bearer(by_file.bootstrap) as client:
            client.log_in(issuer.token(lifetime_s=-100))
        wait_for(lambda: "it ended 100 s ago" in caplog.text or "it ended 101 s ago" in caplog.text)
    assert "from /127.0.0.1 failed" in caplog.text


def test_our_client_and_librdkafka_say_why(by_file: OauthBroker, issuer: Issuer, tmp_path: Path) -> None:
    with (
        odradek.Admin(by_file.settings(issuer.token(iss="x"), tmp_path)) as admin,
        pytest.raises(AuthenticationFailed, match="invalid_token"),
    ):
        admin.topics()


def test_a_session_ends_with_its_token(by_file: OauthBroker, issuer: Issuer) -> None:
    with Bearer(by_file.bootstrap) as client:
        lifetime_s = client.log_in(issuer.token(lifetime_s=3)).session_lifetime.total_seconds()
        assert 1 < lifetime_s <= 3
        assert client.call(17, 1, {"mechanism": "OAUTHBEARER"}).error_code == 0
        token = issuer.token("mallory", lifetime_s=3)
        reply = client.step(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
        assert reply.error_code == 58
        assert "Cannot change principals" in reply.error_message
    with Bearer(by_file.bootstrap) as client:
        client.log_in(issuer.token(lifetime_s=2))
        time.sleep(2.2)
        with pytest.raises((OSError, EOFError, AssertionError)):
            client.call(3, 0, {"topics": []})


def test_confluent_kafka(by_file: OauthBroker, issuer: Issuer) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    calls: list[str] = []

    def settings(**claims: Any) -> dict[str, Any]:
        def fetch(_: str) -> tuple[str, float]:
            # The client asks for another token long before the end of this one, so that no session is so short that
            # two logins on a connection come within a second: the broker refuses the second, as Kafka does.
            calls.append("token")
            return issuer.token(lifetime_s=4, **claims), time.time() + 1

        return {"bootstrap.servers": by_file.bootstrap, "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER", "oauth_cb": fetch}  # fmt: skip

    producer = confluent.Producer(settings())
    deadline_s, sent = time.monotonic() + 5, 0
    while time.monotonic() < deadline_s:  # longer than a token lives
        producer.produce("oauth", b"%d" % sent)
        sent += 1
        assert producer.flush(20) == 0
        time.sleep(0.1)
    assert len(calls) > 1
    consumer = confluent.Consumer(settings() | {"group.id": "oauth", "auto.offset.reset": "earliest"})
    consumer.subscribe(["oauth"])
    values: list[bytes] = []
    deadline_s = time.monotonic() + 20
    while len(values) < sent and time.monotonic() < deadline_s:
        if (found := consumer.poll(0.5)) is not None and found.error() is None:
            values.append(found.value())
    consumer.close()
    assert values == [b"%d" % one for one in range(sent)]
    errors: list[str] = []
    refused = confluent.Producer(settings(aud="other") | {"error_cb": lambda error: errors.append(error.str())})
    deadline_s = time.monotonic() + 20
    while not any("invalid_token" in one for one in errors) and time.monotonic() < deadline_s:
        refused.poll(0.1)
    assert any("invalid_token" in one for one in errors)


def test_kafka_python(by_file: OauthBroker, issuer: Issuer) -> None:
    kafka = pytest.importorskip("kafka")
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def __init__(self, **claims: Any) -> None:
            self._claims = claims

        def token(self) -> str:
            return issuer.token(**self._claims)

    def settings(**claims: Any) -> dict[str, Any]:
        return {"bootstrap_servers": by_file.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider(**claims)}  # fmt: skip

    producer = kafka.KafkaProducer(**settings())
    producer.send("oauth-python", b"1").get(20)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "oauth-python", group_id="oauth-python", auto_offset_reset="earliest", consumer_timeout_ms=20_000, **settings()
    )
    assert next(consumer).value == b"1"
    consumer.commit()
    consumer.close()
    wrong = settings(aud="other")
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaProducer(bootstrap_timeout_ms=2000, max_block_ms=2000, **wrong).send("oauth-python", b"2").get(3)


def test_aiokafka(by_file: OauthBroker, issuer: Issuer) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):
        def __init__(self, **claims: Any) -> None:
            self._claims = claims

        async def token(self) -> str:
            return issuer.token(**self._claims)

    async def run(**claims: Any) -> bytes:
        settings = {"bootstrap_servers": by_file.bootstrap, "security_protocol": "SASL_PLAINTEXT",
                    "sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider(**claims)}  # fmt: skip
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
            await producer.send_and_wait("oauth-aio", b"1")
        finally:
            await producer.stop()
        async with aiokafka.AIOKafkaConsumer(
            "oauth-aio", group_id="oauth-aio", auto_offset_reset="earliest", **settings
        ) as consumer:
            found = await asyncio.wait_for(consumer.getone(), 20)
            await consumer.commit()
            return bytes(found.value)

    assert asyncio.run(run()) == b"1"
    with pytest.raises(aiokafka.errors.KafkaError):
        asyncio.run(run(aud="other"))


# --- keys -------------------------------------------------------------------------------------------------------------


def logs_in(broker: OauthBroker, token: str) -> bool:
    with Bearer(broker.bootstrap) as client:
        return bytes(client.log_in(token).auth_bytes) == b""


def test_a_rotated_key_is_fetched_when_a_token_needs_it(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    with provider(issuer) as server:
        names = {"sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": "300"}
        broker = OauthBroker(tmp_path / "data", server.url, **names)
        try:
            assert logs_in(broker, issuer.token())
            assert server.requests == 1
            former = issuer.token(lifetime_s=500)
            newer = Issuer(tmp_path, "k2")
            server.issuer = newer
            time.sleep(0.35)
            assert logs_in(broker, former), "no key is unknown, so the set is not read again"
            assert server.requests == 1
            assert not logs_in(broker, newer.token())
            wait_for(lambda: logs_in(broker, newer.token()))
            assert not logs_in(broker, former), "its key is no longer in the set"
            before, begin_s = server.requests, time.monotonic()
            for number in range(30):  # unknown keys cause few requests
                assert not logs_in(broker, issuer.token(header={"kid": f"x{number}"}))
            assert server.requests <= before + 1 + (time.monotonic() - begin_s) / 0.3
            server.status = 500
            time.sleep(0.35)
            assert not logs_in(broker, issuer.token(header={"kid": "y"}))
            wait_for(lambda: server.requests > before + 1)
            assert logs_in(broker, newer.token()), "after a failure the former keys stay"
        finally:
            broker.broker.stop()


def test_a_file_is_read_again(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    names = {"sasl_oauthbearer_jwks_endpoint_refresh_ms": "200"}
    broker = OauthBroker(tmp_path / "data", issuer.key_set.as_uri(), **names)
    try:
        newer = Issuer(tmp_path, "k2")
        wait_for(lambda: logs_in(broker, newer.token()))
        assert not logs_in(broker, issuer.token())
    finally:
        broker.broker.stop()


def test_a_broker_starts_without_its_provider_and_finds_it_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issuer = Issuer(tmp_path)
    with provider(issuer) as server:
        server.status = 503
        with caplog.at_level(logging.INFO, logger="odradek.broker"):
            broker = OauthBroker(tmp_path / "data", server.url)
            try:
                assert not logs_in(broker, issuer.token())
                wait_for(lambda: server.requests >= 3)
                server.status = 200
                wait_for(lambda: logs_in(broker, issuer.token()))
            finally:
                broker.broker.stop()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [
        f"the key set {server.url}: the server answered with status 503; logins by OAUTHBEARER are refused, and the "
        "broker tries again"
    ]
    assert "can be read again" in caplog.text


def test_a_slow_provider_holds_no_request_up(tmp_path: Path) -> None:
    """The provider accepts and never answers. Requests go on meanwhile, and the fetch ends within its time."""
    issuer = Issuer(tmp_path)
    with provider(issuer) as server:
        broker = OauthBroker(tmp_path / "data", server.url, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms="1")
        try:
            server.drip_s = 0.05
            token, before = issuer.token(), server.requests
            with Bearer(broker.bootstrap) as client:
                client.log_in(token)
                assert not logs_in(broker, issuer.token(header={"kid": "other"}))
                wait_for(lambda: server.requests > before)
                longest_s = 0.0
                for _ in range(50):
                    begin_s = time.monotonic()
                    assert client.call(3, 0, {"topics": []}).brokers
                    longest_s = max(longest_s, time.monotonic() - begin_s)
                assert longest_s < 1.0
        finally:
            broker.broker.stop()


# --- fetches ----------------------------------------------------------------------------------------------------------


def fetched(server: Provider) -> KeySet:
    return key_fetch.read(KeySetSource(server.url))


def test_a_fetch_has_limits(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    with provider(issuer) as server:
        assert [one.id for one in fetched(server).keys] == ["k1", "ES256", "ES384", "ES512"]
        server.status = 302
        with pytest.raises(KeySetError, match="status 302"):
            fetched(server)
        server.status, server.body = 200, b" " * (key_fetch.LARGEST_SET + 1)
        with pytest.raises(KeySetError, match="larger than 1 MiB"):
            fetched(server)
        server.body = b"<html>"
        with pytest.raises(KeySetError, match="not a set of JSON web keys"):
            fetched(server)
        server.body, server.drip_s = b"{" * 1000, 0.02
        begin_s = time.monotonic()
        with pytest.raises(KeySetError):
            key_fetch.read(KeySetSource(server.url), fetch_s=0.3)
        assert time.monotonic() - begin_s < 3, "each byte is in time, all of them are not"
    with pytest.raises(KeySetError, match="cannot be fetched"):
        fetched(server)


def test_a_provider_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        begin_s = time.monotonic()
        with pytest.raises(KeySetError, match="timed out"):
            key_fetch.read(KeySetSource(url), connect_s=0.2)
        assert time.monotonic() - begin_s < 3


def test_https_needs_a_trusted_certificate(tmp_path: Path) -> None:
    authority, issuer = Authority(tmp_path / "ca"), Issuer(tmp_path)
    authority.issue("broker")
    with provider(issuer, server(authority)) as running:
        with pytest.raises(KeySetError, match="certificate verify failed"):
            key_fetch.read(KeySetSource(running.url, key_fetch.Tls()))
        jaas = f'{BEARER} required ssl.truststore.type="PEM" ssl.truststore.location="{authority.pem}";'
        data = tmp_path / "data"
        broker = OauthBroker(data, running.url, **{"listener.name.outside.oauthbearer.sasl.jaas.config": jaas})
        try:
            assert logs_in(broker, issuer.token())
        finally:
            broker.broker.stop()


def test_pauses_after_failures_double_and_threads_do_not_pile_up() -> None:
    begun: list[float] = []
    release = threading.Event()

    def fetch(_: KeySetSource) -> KeySet:
        begun.append(time.monotonic())
        release.wait(5)
        raise KeySetError("no keys")

    async def run() -> None:
        keys = ProviderKeys(KeySetSource("file:///nothing"), FetchTimes(60_000, 20, 100), fetch)
        keys.begin()
        for _ in range(10):
            keys.miss()
            keys.begin()
        await asyncio.sleep(0.05)
        assert len(begun) == 1, "one fetch at a time"
        release.set()
        while len(begun) < 7:
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 10))
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun[1:])]
    assert [pause > least for pause, least in zip(pauses, (0.039, 0.079, 0.099, 0.099), strict=False)] == [True] * 4


def test_ignored_keys_are_logged_once_until_they_change(caplog: pytest.LogCaptureFixture) -> None:
    faults = [("key 2 ('weak') is invalid: it has 1,024 bits",)] * 3 + [(), ("key 1 is invalid",)]
    left = iter(faults)

    async def run() -> None:
        keys = ProviderKeys(KeySetSource("file:///k"), FetchTimes(60_000), lambda _: KeySet((), next(left)))
        for fault in faults:
            keys.begin()
            while keys.is_fetching:
                await asyncio.sleep(0.001)
            assert keys.keys.faults == fault

    asyncio.run(asyncio.wait_for(run(), 10))
    lines = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert lines == [f"the key set file:///k: {fault[0]}; the broker ignores this key" for fault in faults[2::2]]


# --- the exchange -----------------------------------------------------------------------------------------------------


def accepts(token: str) -> WebToken:
    if token != "good":
        raise TokenRefused("it is bad")
    return WebToken("alice", 5000)


def test_the_exchange() -> None:
    login = OauthServer(accepts)
    assert login.step(b"n,,\x01auth=Bearer good\x01traceparent=x\x01\x01") == b""
    assert login.login == LoggedIn("alice", 5000)
    with pytest.raises(LoginFailed):
        login.step(b"")
    for name in ("alice", ""):
        assert (
            OauthServer(accepts).step(f"n,{f'a={name}' if name else ''},\x01auth=bEARER  good\x01\x01".encode()) == b""
        )
    with pytest.raises(LoginRefused, match="different from the token's principal name"):
        OauthServer(accepts).step(b"n,a=bob,\x01auth=Bearer good\x01\x01")
    refused = OauthServer(accepts)
    assert refused.step(b"n,,\x01auth=Bearer bad\x01\x01") == INVALID_TOKEN.encode()
    with pytest.raises(LoginRefused) as error:
        refused.step(b"\x01")
    assert (str(error.value), error.value.reason) == (INVALID_TOKEN, "the token is not valid: it is bad")
    second = OauthServer(accepts)
    second.step(b"n,,\x01auth=Bearer bad\x01\x01")
    with pytest.raises(LoginFailed):
        second.step(b"n,,\x01auth=Bearer good\x01\x01")


@pytest.mark.parametrize("message", [
    b"", b"\x01", b"n,,", b"n,,\x01", b"n,,\x01\x01", b"y,,\x01auth=Bearer good\x01\x01",
    b"n,,\x01auth=Bearer good\x01",
    b"n,,auth=Bearer good\x01\x01", b"n,,\x01auth=Basic good\x01\x01", b"n,,\x01auth=Bearer\x01\x01",
    b"n,,\x01auth=Bearer go od\x01\x01", b"n,,\x01Auth=Bearer good\x01\x01", b"n,a=,\x01auth=Bearer good\x01\x01",
    b"n,a=x=2,\x01auth=Bearer good\x01\x01", b"n,,\x01au1=x\x01auth=Bearer good\x01\x01", b"\xff", b"p=x,,\x01\x01",
    "n,,\x01auth=Bearer gööd\x01\x01".encode(), b"n,,\x01auth=Bearer good\x01\x01\x01x",
])  # fmt: skip
def test_what_is_no_first_message(message: bytes) -> None:
    with pytest.raises(LoginFailed):
        OauthServer(accepts).step(message)


def test_a_long_message_is_read_in_linear_time() -> None:
    for body in (b"a=b\x01" * 100_000, b"\x01" * 400_000, b"auth=Bearer " + b"=" * 400_000, b"a" * 400_000):
        begin_s = time.process_time()
        with pytest.raises(LoginFailed):
            read_first(b"n,a=" + body[:1000].replace(b"=", b"") + b",\x01" + body + b"\x01x")
        with pytest.raises(LoginFailed):
            read_first(b"n,,\x01" + body + b"\x01x\x01")
        assert time.process_time() - begin_s < 1


@pytest.mark.parametrize(
    ("url", "is_warned"),
    [
        ("http://idp.example.com:81/keys", True),
        ("http://192.0.2.7/keys", True),
        ("https://idp.example.com/keys", False),
        ("http://127.0.0.1:1/keys", False),
        ("http://localhost:1/keys", False),
        ("http://[::1]:1/keys", False),
        ("file:", False),
    ],
)
def test_keys_that_come_from_another_host_without_tls_have_a_warning(
    url: str, is_warned: bool, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    config = BrokerConfig(
        {
            "listeners": "OUT://127.0.0.1:9092",
            "listener.security.protocol.map": "OUT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            URL: issuer.key_set.as_uri() if url == "file:" else url,
        }
    )
    settings = ListenerSettings(config, config.listeners_at(None)[0])
    sources = []

    def keys_of(source: KeySetSource, times: FetchTimes) -> Any:
        sources.append(source)

    ListenerMechanisms(settings, ScramUsers(dict, dict, b""), lambda: 0, keys_of)
    assert len(sources) == 1
    lines = [line for line in caplog.messages if "without TLS" in line]
    assert len(lines) == is_warned
    for line in lines:
        assert line.startswith(f"listener.name.out.oauthbearer.{URL}: the keys of the identity provider come from ")
        assert line.endswith("use https or a file")


@pytest.mark.parametrize(
    ("url", "is_warned"), [("http://idp.example.com/token", True), ("https://idp.example.com/token", False),
                           ("http://127.0.0.1:1/token", False)],
)  # fmt: skip
def test_a_client_is_warned_once_that_its_secret_goes_out_without_tls(
    url: str, is_warned: bool, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = oauth.Tokens(ask=lambda source: Secret(issuer.token()))
    for name in ("a", "a", "b"):
        tokens.token(TokenSource(url, name, Secret("hunter2-s3cr3t")))
    lines = [line for line in caplog.messages if "without TLS" in line]
    assert len(lines) == is_warned
    for line in lines:
        assert line.startswith("sasl.oauthbearer.token.endpoint.url: the client's secret goes to idp.example.com")
        assert "s3cr3t" not in line


def test_a_provider_that_does_not_answer_stops_no_other_source(issuer: Issuer) -> None:
    begun, release = threading.Event(), threading.Event()
    fetched: list[str] = []

    def fetch(source: TokenSource) -> Secret:
        fetched.append(source.client_id)
        if source.client_id == "slow":
            begun.set()
            assert release.wait(10)
        return Secret(issuer.token())

    tokens = oauth.Tokens(ask=fetch)
    slow, fast = (TokenSource("https://idp.example.com/token", name, Secret("s")) for name in ("slow", "fast"))
    waiting = [threading.Thread(target=tokens.token, args=(slow,), daemon=True) for _ in range(2)]
    try:
        for one in waiting:
            one.start()
        assert begun.wait(10)
        other = threading.Thread(target=tokens.token, args=(fast,), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), "the fetch of another source waits for the slow one"
        tokens.forget(fast)
    finally:
        release.set()
    for one in waiting:
        one.join(10)
    assert fetched == ["slow", "fast"], "one fetch for both threads"


# --- settings ---------------------------------------------------------------------------------------------------------


def fault(issuer: Issuer, **changes: str | None) -> str:
    settings: dict[str, str | None] = {
        "listeners": "OUT://127.0.0.1:9092", "listener.security.protocol.map": "OUT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER", URL: issuer.key_set.as_uri(), **changes,
    }  # fmt: skip
    with pytest.raises(ConfigError) as error:
        BrokerConfig({name: text for name, text in settings.items() if text is not None})
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_start_refuses_settings_that_cannot_work(issuer: Issuer, tmp_path: Path) -> None:
    assert "needs the public keys of the identity provider" in fault(issuer, **{URL: None})
    for url in ("jwks.json", "ftp://x/y", "file:jwks", "https://", "http://u:p@x/", "http://x:y/"):
        assert "expected file:///PATH" in fault(issuer, **{URL: url})
    assert "No such file" in fault(issuer, **{URL: (tmp_path / "missing").as_uri()})
    (tmp_path / "broken").write_text("{}")
    assert "no list of keys" in fault(issuer, **{URL: (tmp_path / "broken").as_uri()})
    assert "this broker has no class 'com.x.Y'" in fault(issuer, **{CLASS: "com.x.Y"})
    assert "name of a claim" in fault(issuer, **{"sasl.oauthbearer.sub.claim.name": ""})
    assert "at least 1 ms" in fault(issuer, **{"sasl.oauthbearer.jwks.endpoint.refresh.ms": "0"})
    jaas = "listener.name.out.oauthbearer.sasl.jaas.config"
    assert "OAuthBearerLoginModule" in fault(issuer, **{jaas: "x.PlainLoginModule required;"})
    assert "signed tokens only" in fault(issuer, **{jaas: f'{BEARER} required unsecuredValidatorScopeClaimName="x";'})
    https = {URL: "https://x/", jaas: f'{BEARER} required ssl.keystore.location="secret";'}
    assert "ssl.keystore.location of sasl.jaas.config is not supported" in fault(issuer, **https)


def test_settings_of_other_mechanisms(issuer: Issuer) -> None:
    only: dict[str, str | None] = {"sasl.enabled.mechanisms": "SCRAM-SHA-512", URL: None}
    name = f"listener.name.out.scram-sha-512.{URL}"
    assert "belongs to the mechanism OAUTHBEARER" in fault(issuer, **only, **{name: "https://x/"})
    assert "is not enabled" in fault(issuer, **only, **{f"listener.name.out.oauthbearer.{URL}": "https://x/"})
    assert BrokerConfig({"sasl.oauthbearer.clock.skew.seconds": "5", URL: "https://x/"}), "stored, as in Kafka"


def test_the_class_of_kafka_and_prefixes_are_accepted(issuer: Issuer) -> None:
    prefix = "listener.name.out.oauthbearer"
    BrokerConfig({
        "listeners": "OUT://127.0.0.1:9092", "listener.security.protocol.map": "OUT:SASL_PLAINTEXT",
        "listener.name.out.sasl.enabled.mechanisms": "OAUTHBEARER", f"{prefix}.{URL}": issuer.key_set.as_uri(),
        f"{prefix}.{CLASS}": HANDLER, f"{prefix}.sasl.jaas.config": f"{BEARER} required;",
    })  # fmt: skip


def test_a_running_broker_changes_no_provider(by_file: OauthBroker, issuer: Issuer) -> None:
    with Bearer(by_file.bootstrap) as client:
        client.log_in(issuer.token())
        for name in (URL, f"listener.name.outside.{URL}", f"listener.name.outside.oauthbearer.{URL}"):
            change = {"name": name, "config_operation": 0, "value": "https://mallory.test/"}
            resource = {"resource_type": 4, "resource_name": "1", "configs": [change]}
            (reply,) = client.call(44, 1, {"resources": [resource], "validate_only": False}).responses
            assert reply.error_code == 42, name


def test_the_file_of_keys_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(KeySetError, match="no RSA or EC key"):
        read_key_set(b'{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}')


@pytest.mark.parametrize("member", [{"key_ops": None}, {"key_ops": 5}, {"crv": []}, {"kty": {}}, {"n": None}])
def test_a_key_set_with_a_member_of_another_type_is_named_in_one_line(
    issuer: Issuer, tmp_path: Path, member: dict[str, Any]
) -> None:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": [{"kty": "EC", "crv": "P-256", "kid": "odd"} | member]}))
    start = f"listener.name.out.oauthbearer.{URL}: the key set {path.as_uri()}: "
    assert fault(issuer, **{URL: path.as_uri()}).startswith(start)
