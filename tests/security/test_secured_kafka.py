"""Our clients at the secured listeners of Apache Kafka 4.3 and of our broker: each client (the blocking one, asyncio,
the command line, Spark) at each protocol and mechanism, with good and bad credentials."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from security.test_oauth_logins import Bearer, OauthBroker
from support.certificates import PASSWORD, Authority
from support.issuer import AUDIENCE, Issuer, packed_json
from support.secured_kafka import (
    LISTENERS,
    SECRET,
    USER,
    SecuredBroker,
    SecuredKafka,
    SecuredOdradek,
    bearer_jaas,
    plain_jaas,
    scram_jaas,
)

import odradek
import odradek.aio
from bench.apache import Unavailable
from odradek.net.errors import AuthenticationFailed
from odradek.security.web_tokens import ALGORITHMS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    for name in ("broker", "client"):
        authority.issue(name)
    return authority


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    return Issuer(tmp_path_factory.mktemp("issuer"))


@pytest.fixture(scope="module")
def kafka(authority: Authority, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    try:
        kafka = SecuredKafka(tmp_path_factory.mktemp("kafka"), authority, issuer)
    except Unavailable as error:
        pytest.skip(str(error))
    kafka.start(120)
    yield kafka
    kafka.stop()


@pytest.fixture(scope="module")
def ours(authority: Authority, issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredOdradek]:
    broker = SecuredOdradek(tmp_path_factory.mktemp("ours"), authority, issuer)
    yield broker
    broker.stop()


@pytest.fixture(params=["Apache Kafka", "Odradek"])
def cluster(request: pytest.FixtureRequest) -> SecuredBroker:
    found: SecuredBroker = request.getfixturevalue("kafka" if request.param == "Apache Kafka" else "ours")
    return found


def trust(authority: Authority) -> dict[str, str]:
    return {
        "ssl.truststore.type": "PKCS12",
        "ssl.truststore.location": str(authority.p12),
        "ssl.truststore.password": PASSWORD,
    }


def login(mechanism: str, protocol: str, password: str = SECRET) -> dict[str, str]:
    jaas = plain_jaas if mechanism == "PLAIN" else scram_jaas
    return {
        "security.protocol": protocol, "sasl.mechanism": mechanism, "sasl.jaas.config": jaas(password=password)
    }  # fmt: skip


def use(bootstrap: str, settings: dict[str, Any], topic: str) -> None:
    """Produces, reads in a group, commits and lists the commit."""
    given = {"bootstrap.servers": bootstrap, **settings}
    with odradek.Producer(given) as producer:
        metadata = [producer.send(topic, value=b"%d" % number) for number in range(20)]
        producer.flush()
        assert sorted(one.result().offset for one in metadata) == list(range(20))
    with odradek.Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        values: list[bytes] = []
        deadline = time.monotonic() + 60
        while len(values) < 20:
            assert time.monotonic() < deadline
            values += [record.value for record in consumer.poll(0.5).records()]
        consumer.commit()
    with odradek.Admin(given) as admin:
        assert [commit.offset for commit in admin.list_group_offsets(topic).values()] == [20]
    assert sorted(values) == sorted(b"%d" % number for number in range(20))


# --- each client at each listener -------------------------------------------------------------------------------------

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
KINDS = [("TLS", ""), ("MTLS", ""), *((listener, one) for listener in ("SASL", "SASLTLS") for one in MECHANISMS)]


def refusal(mechanism: str) -> str:
    """A pattern of the message for wrong credentials."""
    return f"login by {mechanism}" if mechanism else "certificate"


class Access:
    """The settings of clients of one listener. ``wrong``: with other credentials, or without the certificate."""

    def __init__(self, authority: Authority, issuer: Issuer, folder: Path, listener: str, mechanism: str) -> None:
        has_tls = listener != "SASL"
        common = {"security.protocol": LISTENERS[listener], **(trust(authority) if has_tls else {})}
        if mechanism == "OAUTHBEARER":
            good, bad = folder / "token", folder / "wrong-token"
            good.write_text(issuer.token())
            bad.write_text(issuer.token(aud="another"))
            common |= {"sasl.mechanism": mechanism, "sasl.jaas.config": bearer_jaas()}
            url = "sasl.oauthbearer.token.endpoint.url"
            self.right, self.wrong = {url: good.as_uri()}, {url: bad.as_uri()}
        elif mechanism:
            self.right, self.wrong = (login(mechanism, LISTENERS[listener], one) for one in (SECRET, "wrong"))
        elif listener == "MTLS":
            own = str(authority.directory / "client.pem")
            self.right, self.wrong = {"ssl.keystore.type": "PEM", "ssl.keystore.location": own}, {}
        else:
            stranger = Authority(folder / "stranger", "stranger")
            self.right, self.wrong = {}, {"ssl.truststore.location": str(stranger.p12)}
        self.right, self.wrong = common | self.right, common | self.wrong


def use_aio(bootstrap: str, settings: dict[str, Any], topic: str) -> None:
    """As ``use``, with the clients of asyncio."""
    given = {"bootstrap.servers": bootstrap, **settings}

    async def work() -> None:
        async with odradek.aio.Admin(given) as admin:
            await admin.topics()  # the others try again; this fails at once
            async with odradek.aio.Producer(given) as producer:
                for number in range(20):
                    await producer.send_and_wait(topic, value=b"%d" % number)
            async with odradek.aio.Consumer({**given, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
                await consumer.subscribe([topic])
                values: list[bytes] = []
                while len(values) < 20:
                    values += [record.value for record in (await consumer.poll(0.5)).records()]
                await consumer.commit()
            assert [commit.offset for commit in (await admin.list_group_offsets(topic)).values()] == [20]
            assert values == [b"%d" % number for number in range(20)]

    asyncio.run(asyncio.wait_for(work(), 90))


class Refused(Exception):
    """A command has ended with an error."""


def use_commands(bootstrap: str, settings: dict[str, Any], topic: str, folder: Path) -> None:
    """As ``use``, with the commands. Raises Refused with what a command has written."""
    file, values = folder / "client.properties", folder / "values"
    patient = settings | {"default.api.timeout.ms": "60000"}  # other tests may keep the processors busy
    file.write_text("".join(f"{name}={value}\n" for name, value in patient.items()))
    values.write_text("".join(f"{number}\n" for number in range(20)))

    def run(*line: str) -> str:
        command = [sys.executable, "-m", "odradek", *line, "-b", bootstrap, "--command-config", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert SECRET not in done.stdout + done.stderr
        if done.returncode:
            raise Refused(done.stderr)
        return done.stdout

    run("produce", topic, "--file", str(values))
    assert run("consume", topic, "--group", topic) == values.read_text()
    assert topic in run("topics", "list")
    assert "20" in run("groups", "describe", "--group", topic)


@pytest.mark.parametrize("client", ["blocking", "asyncio", "commands"])
@pytest.mark.parametrize(("listener", "mechanism"), KINDS)
def test_each_client_at_each_listener(
    cluster: SecuredBroker,
    authority: Authority,
    issuer: Issuer,
    listener: str,
    mechanism: str,
    client: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    access = Access(authority, issuer, tmp_path, listener, mechanism)
    call: Callable[[str, dict[str, Any], str], None] = {
        "blocking": use,
        "asyncio": use_aio,
        "commands": lambda bootstrap, settings, topic: use_commands(bootstrap, settings, topic, tmp_path),
    }[client]
    address = cluster.address(listener)
    call(address, access.right, f"{client}-{listener}-{mechanism}")
    begin_s = time.monotonic()
    with pytest.raises((AuthenticationFailed, Refused), match=refusal(mechanism)):
        call(address, access.wrong, f"{client}-{listener}-{mechanism}-wrong")
    assert time.monotonic() - begin_s < 30, "it is tried no further"


@pytest.mark.parametrize(("listener", "mechanism"), KINDS)
def test_spark_at_each_listener(
    spark: Any,
    cluster: SecuredBroker,
    authority: Authority,
    issuer: Issuer,
    listener: str,
    mechanism: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    access = Access(authority, issuer, tmp_path, listener, mechanism)
    given = {"bootstrap.servers": cluster.address(listener), **access.right}
    name = f"spark-{listener}-{mechanism}"
    with odradek.Producer(given) as producer:
        for number in range(50):
            producer.send(name, value=b"%d" % number)
    options = {f"kafka.{setting}": value for setting, value in given.items()}
    source = spark.readStream.format("odradek").options(
        **options, subscribe=name, startingOffsets="earliest", commitOffsets="true", **{"kafka.group.id": name}
    )
    sink = source.load().select("key", "value").writeStream.format("odradek").options(**options, topic=f"{name}-out")
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.exception() is None
    assert spark.read.format("odradek").options(**options, subscribe=f"{name}-out").load().count() == 50
    with odradek.Admin(given) as admin:
        assert [row.offset for row in admin.list_group_offsets(name).values()] == [50]
    wrong = options | {f"kafka.{setting}": value for setting, value in access.wrong.items()}
    wrong = {setting: value for setting, value in wrong.items() if setting[6:] in {*access.wrong, "bootstrap.servers"}}
    with pytest.raises(Exception, match=refusal(mechanism)) as refused:
        spark.read.format("odradek").options(**wrong, subscribe=name).load().count()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("kind", ["pem", "p12", "encrypted"])
def test_certificates_of_clients(cluster: SecuredBroker, authority: Authority, kind: str) -> None:
    store = {
        "pem": {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(authority.directory / "client.pem")},
        "p12": {
            "ssl.keystore.location": str(authority.directory / "client.p12"), "ssl.keystore.password": PASSWORD
        },
        "encrypted": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.directory / "client-encrypted.pem"),
            "ssl.key.password": PASSWORD,
        },
    }[kind]  # fmt: skip
    use(cluster.address("MTLS"), {"security.protocol": "SSL", **trust(authority), **store}, f"mtls-{kind}")
    use(cluster.address("TLS"), {"security.protocol": "SSL", **trust(authority)}, f"tls-{kind}")
    given = {"bootstrap.servers": cluster.address("MTLS"), "security.protocol": "SSL", **trust(authority)}
    with pytest.raises(AuthenticationFailed, match="certificate"), odradek.Admin(given) as admin:
        admin.topics()


def test_tokens(cluster: SecuredBroker, issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": bearer_jaas(),
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
    }
    for token in (issuer.token(aud="another"), issuer.token(lifetime_s=-100), issuer.token()[:-4] + "AAAA"):
        path.write_text(token)
        given = {"bootstrap.servers": cluster.address("SASL"), **settings}
        with pytest.raises(AuthenticationFailed, match="OAUTHBEARER") as refused, odradek.Admin(given) as admin:
            admin.topics()
        assert token not in str(refused.value)
    path.write_text(issuer.token())
    use(cluster.address("SASL"), settings, "bearer")


def decisions(issuer: Issuer, other: Issuer) -> dict[str, str]:
    """Tokens, good and bad, by what is special about them."""
    now = int(time.time())
    head, claims, signature = issuer.token().split(".")
    none = f"{packed_json({'alg': 'none'})}.{claims}."
    return {
        **{f"algorithm {name}": issuer.token(algorithm=name) for name in ALGORITHMS},
        "no kid": issuer.token(header={"kid": None}),
        "kid of another kind": issuer.token(header={"kid": "ES256"}),
        "unknown kid": issuer.token(header={"kid": "k9"}),
        "key of another issuer": other.token(header={"kid": "k1"}),
        "none": none, "none with a signature": none + signature,
        "HS256": f"{packed_json({'alg': 'HS256', 'kid': 'k1'})}.{claims}.{signature}",
        "other claims": f"{head}.{packed_json(issuer.claims('mallory'))}.{signature}",
        "crit": issuer.token(header={"crit": ["x"], "x": True}),
        "two sections": f"{head}.{claims}", "four sections": f"{head}.{claims}.{signature}.x",
        "ended within the skew": issuer.token(lifetime_s=-10), "ended": issuer.token(lifetime_s=-40),
        "begins within the skew": issuer.token(nbf=now + 10), "begins later": issuer.token(nbf=now + 100),
        "issued later": issuer.token(iat=now + 100), "issued after its end": issuer.token(iat=now + 1000),
        "no iat": issuer.token(iat=None), "no exp": issuer.token(exp=None), "exp is a text": issuer.token(exp="x"),
        "exp with a fraction": issuer.token(exp=now + 100.5),
        "other issuer": issuer.token(iss="x"), "no issuer": issuer.token(iss=None),
        "audiences": issuer.token(aud=["x", AUDIENCE]), "no audience": issuer.token(aud=None),
        "empty audiences": issuer.token(aud=[]), "audience is a number": issuer.token(aud=5),
        "no subject": issuer.token(sub=None), "empty subject": issuer.token(sub=""), "blank": issuer.token(sub="  "),
        "subject is a number": issuer.token(sub=5), "subject with spaces": issuer.token(sub=" alice "),
        "scopes": issuer.token(scope=["a", "b"]), "scope": issuer.token(scope="a b"),
        "scope twice": issuer.token(scope=["a", "a"]), "empty scope": issuer.token(scope=""),
    }  # fmt: skip


def test_decisions_about_tokens_equal_those_of_kafka(kafka: SecuredKafka, issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    broker = OauthBroker(tmp_path / "data", issuer.key_set.as_uri())
    try:
        tokens = decisions(issuer, Issuer(tmp_path / "other", "k2"))
        found = {}
        for name, token in tokens.items():
            answers = []
            for address in (kafka.address("SASL"), broker.bootstrap):
                with Bearer(address) as client:
                    reply = client.log_in(token)
                    answers.append((int(reply.error_code), bytes(reply.auth_bytes)))
            found[name] = answers
    finally:
        broker.broker.stop()
    assert sum(ours == (0, b"") for _, ours in found.values()) >= 12
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}


def test_sessions_of_two_seconds_lose_no_record(cluster: SecuredBroker) -> None:
    given = {"bootstrap.servers": cluster.address("SHORT"), **login("SCRAM-SHA-256", "SASL_PLAINTEXT")}
    reading = {**given, "group.id": "short", "auto.offset.reset": "earliest"}
    values: list[bytes] = []
    with odradek.Producer({**given, "linger.ms": 0}) as producer, odradek.Consumer(reading) as consumer:
        consumer.subscribe(["short"])
        end_s = time.monotonic() + 12
        sent = 0
        while time.monotonic() < end_s or len(values) < sent:
            assert time.monotonic() < end_s + 60
            if time.monotonic() < end_s:
                for _ in range(20):
                    producer.send("short", value=b"%d" % sent)
                    sent += 1
            values += [record.value for record in consumer.poll(0.02).records()]
            consumer.commit()
    assert sorted(map(int, values)) == list(range(sent)), USER
