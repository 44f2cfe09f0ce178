"""Our clients at the secured listeners of Apache Kafka 4.3: each protocol and mechanism, good and bad credentials."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.certificates import PASSWORD, Authority
from support.issuer import Issuer
from support.secured_kafka import SECRET, USER, SecuredKafka, bearer_jaas, plain_jaas, scram_jaas

import odradek
from bench.apache import Unavailable
from odradek.net.errors import AuthenticationFailed

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


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL", "SASLTLS"])
def test_logins(kafka: SecuredKafka, authority: Authority, mechanism: str, listener: str) -> None:
    protocol = "SASL_PLAINTEXT" if listener == "SASL" else "SASL_SSL"
    more = trust(authority) if listener == "SASLTLS" else {}
    use(kafka.address(listener), login(mechanism, protocol) | more, f"t-{mechanism}-{listener}")
    given = {"bootstrap.servers": kafka.address(listener), **login(mechanism, protocol, "wrong"), **more}
    begin_s = time.monotonic()
    with pytest.raises(AuthenticationFailed, match=r"refused the login by .*nvalid"), odradek.Admin(given) as admin:
        admin.topics()
    assert time.monotonic() - begin_s < 20


@pytest.mark.parametrize("kind", ["pem", "p12", "encrypted"])
def test_certificates_of_clients(kafka: SecuredKafka, authority: Authority, kind: str) -> None:
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
    use(kafka.address("MTLS"), {"security.protocol": "SSL", **trust(authority), **store}, f"mtls-{kind}")
    use(kafka.address("TLS"), {"security.protocol": "SSL", **trust(authority)}, f"tls-{kind}")
    given = {"bootstrap.servers": kafka.address("MTLS"), "security.protocol": "SSL", **trust(authority)}
    with pytest.raises(AuthenticationFailed, match="certificate"), odradek.Admin(given) as admin:
        admin.topics()


def test_tokens(kafka: SecuredKafka, issuer: Issuer, tmp_path: Path) -> None:
    path = tmp_path / "token"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": bearer_jaas(),
        "sasl.oauthbearer.token.endpoint.url": path.as_uri(),
    }
    for token in (issuer.token(audience="another"), issuer.token(lifetime_s=-100), issuer.token()[:-4] + "AAAA"):
        path.write_text(token)
        given = {"bootstrap.servers": kafka.address("SASL"), **settings}
        with pytest.raises(AuthenticationFailed, match="OAUTHBEARER") as refused, odradek.Admin(given) as admin:
            admin.topics()
        assert token not in str(refused.value)
    path.write_text(issuer.token())
    use(kafka.address("SASL"), settings, "bearer")


def test_sessions_of_two_seconds_lose_no_record(kafka: SecuredKafka) -> None:
    given = {"bootstrap.servers": kafka.address("SHORT"), **login("SCRAM-SHA-256", "SASL_PLAINTEXT")}
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
