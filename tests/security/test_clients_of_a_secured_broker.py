"""confluent-kafka, kafka-python, aiokafka and our clients at our broker: each protocol and mechanism, good and bad."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from security.test_broker_tls import MODULE
from support.certificates import Authority

import odradek
from odradek.core.errors import OdradekError
from odradek.testing.ports import reserve_ports
from odradek.testing.thread import BrokerThread

USER, SECRET = "alice", "al=ice, s3cret"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
SHA_512 = "SCRAM-SHA-512"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", SHA_512)
KINDS = [("PLAINTEXT", ""), ("SSL", ""),
         *((protocol, one) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for one in MECHANISMS)]  # fmt: skip


class SecuredBroker:
    """A broker with a listener of each protocol, named like it. ``more``: further settings."""

    def __init__(self, directory: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
        self.authority = Authority(directory / "ca")
        own = self.authority.issue("broker")
        ports = dict(zip(PROTOCOLS, reserve_ports(len(PROTOCOLS)), strict=True))
        self._ports = {name: one.port for name, one in ports.items()}
        self._kept = ports
        users = directory / "users"
        users.write_text("".join(f'{one}=[name={USER},password="{SECRET}"]\n' for one in MECHANISMS[1:]))
        jaas = f'{MODULE} required user_{USER}="{SECRET}";'
        config = {
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.connections.max.reauth.ms": "2000",
            "group.initial.rebalance.delay.ms": "0",
            "connection.failed.authentication.delay.ms": "10",
            **more,
        }
        self.broker = BrokerThread(directory / "data", config=config, add_scram=users).start()

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self._ports[protocol]}"

    def settings(self, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, str]:
        """By librdkafka's names, which our clients have, too."""
        settings = {"bootstrap.servers": self.address(protocol), "security.protocol": protocol}
        if protocol.endswith("SSL"):
            settings["ssl.ca.location"] = str(self.authority.pem)
        if mechanism:
            settings |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
        return settings


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    made = SecuredBroker(tmp_path_factory.mktemp("secured"))
    yield made
    made.broker.stop()


@pytest.mark.parametrize(("protocol", "mechanism"), KINDS)
def test_our_clients(secured: SecuredBroker, protocol: str, mechanism: str) -> None:
    topic = f"ours-{protocol}-{mechanism}"
    settings: dict[str, Any] = secured.settings(protocol, mechanism)
    with odradek.Producer(settings) as producer:
        producer.send(topic, value=b"1")
    found: list[bytes] = []
    with odradek.Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + 20
        while not found and time.monotonic() < deadline_s:
            found += [one.value for one in consumer.poll(0.5).records()]
        consumer.commit()
    assert found == [b"1"]
    with odradek.Admin(settings) as admin:
        assert [one.offset for one in admin.list_group_offsets(topic).values()] == [1]
    if mechanism:
        wrong = secured.settings(protocol, mechanism, "wrong")
        with odradek.Admin(wrong) as admin, pytest.raises(OdradekError, match="refused the login"):
            admin.topics()


@pytest.mark.parametrize(("protocol", "mechanism"), KINDS)
def test_confluent_kafka(secured: SecuredBroker, protocol: str, mechanism: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    topic = f"confluent-{protocol}-{mechanism}"
    settings: dict[str, Any] = secured.settings(protocol, mechanism)
    producer = confluent.Producer(settings)
    producer.produce(topic, b"1")
    assert producer.flush(20) == 0
    consumer = confluent.Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    deadline_s, found = time.monotonic() + 20, None
    while found is None and time.monotonic() < deadline_s:
        found = consumer.poll(0.5)
    assert found is not None
    assert found.value() == b"1"
    (committed,) = consumer.commit(asynchronous=False)
    assert committed.offset == 1
    consumer.close()
    if mechanism:
        errors: list[str] = []
        wrong = secured.settings(protocol, mechanism, "wrong") | {"error_cb": lambda error: errors.append(error.name())}
        refused = confluent.Producer(wrong)
        deadline_s = time.monotonic() + 20
        while "_AUTHENTICATION" not in errors and time.monotonic() < deadline_s:
            refused.poll(0.1)
        assert "_AUTHENTICATION" in errors


def of_python(secured: SecuredBroker, protocol: str, mechanism: str, password: str = SECRET) -> dict[str, Any]:
    settings: dict[str, Any] = {"bootstrap_servers": secured.address(protocol), "security_protocol": protocol}
    if mechanism:
        settings |= {"sasl_mechanism": mechanism, "sasl_plain_username": USER, "sasl_plain_password": password}
    return settings


@pytest.mark.parametrize(("protocol", "mechanism"), KINDS)
def test_kafka_python(secured: SecuredBroker, protocol: str, mechanism: str) -> None:
    kafka = pytest.importorskip("kafka")
    topic = f"python-{protocol}-{mechanism}"
    settings = of_python(secured, protocol, mechanism) | {"ssl_cafile": str(secured.authority.pem)}
    producer = kafka.KafkaProducer(**settings)
    producer.send(topic, b"1").get(20)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **settings
    )
    assert next(consumer).value == b"1"
    consumer.commit()
    consumer.close()
    if mechanism:
        wrong = of_python(secured, protocol, mechanism, "wrong") | {"ssl_cafile": str(secured.authority.pem)}
        with pytest.raises(kafka.errors.KafkaError):
            kafka.KafkaProducer(bootstrap_timeout_ms=2000, max_block_ms=2000, **wrong).send(topic, b"2").get(3)


@pytest.mark.parametrize(("protocol", "mechanism"), KINDS)
def test_aiokafka(secured: SecuredBroker, protocol: str, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    topic = f"aio-{protocol}-{mechanism}"
    context = ssl.create_default_context(cafile=str(secured.authority.pem)) if protocol.endswith("SSL") else None

    async def run(password: str) -> bytes:
        settings = of_python(secured, protocol, mechanism, password) | {"ssl_context": context}
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:  # its ``async with`` does not close it after a failed start
            await producer.start()
            await producer.send_and_wait(topic, b"1")
        finally:
            await producer.stop()
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings
        ) as consumer:
            found = await asyncio.wait_for(consumer.getone(), 20)
            await consumer.commit()
            return bytes(found.value)

    assert asyncio.run(run(SECRET)) == b"1"
    if mechanism:
        with pytest.raises(aiokafka.errors.KafkaError):
            asyncio.run(run("wrong"))


# --- sessions of two seconds ------------------------------------------------------------------------------------------

LOAD_S = 7.0


def confluent_under_load(settings: dict[str, Any], topic: str) -> tuple[list[bytes], list[bytes]]:
    confluent = pytest.importorskip("confluent_kafka")
    producer = confluent.Producer({**settings, "linger.ms": 0})
    sent: list[bytes] = []
    ends_s = time.monotonic() + LOAD_S
    while time.monotonic() < ends_s:
        sent.append(b"%d" % len(sent))
        producer.produce(topic, sent[-1])
        assert producer.flush(20) == 0
        time.sleep(0.02)
    consumer = confluent.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    ends_s += 30
    while not set(sent) <= set(found) and time.monotonic() < ends_s:
        if (one := consumer.poll(0.5)) is not None and one.error() is None:
            found.append(one.value())
            time.sleep(LOAD_S / len(sent) / 2)  # longer than a session
    consumer.commit(asynchronous=False)
    consumer.close()
    return sent, found


def kafka_python_under_load(settings: dict[str, Any], topic: str) -> tuple[list[bytes], list[bytes]]:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(**settings, retries=10)
    sent: list[bytes] = []
    ends_s = time.monotonic() + LOAD_S
    while time.monotonic() < ends_s:
        sent.append(b"%d" % len(sent))
        producer.send(topic, sent[-1]).get(20)
        time.sleep(0.02)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
    found: list[bytes] = []
    ends_s += 30
    while not set(sent) <= set(found) and time.monotonic() < ends_s:
        for records in consumer.poll(500, max_records=20).values():
            found += [one.value for one in records]
            time.sleep(0.2)
        consumer.commit()
    consumer.close()
    return sent, found


def aiokafka_under_load(settings: dict[str, Any], topic: str) -> tuple[list[bytes], list[bytes]]:
    aiokafka = pytest.importorskip("aiokafka")
    context = ssl.create_default_context(cafile=settings.pop("ssl_cafile"))

    async def run() -> tuple[list[bytes], list[bytes]]:
        sent: list[bytes] = []
        async with aiokafka.AIOKafkaProducer(**settings, ssl_context=context) as producer:
            ends_s = time.monotonic() + LOAD_S
            while time.monotonic() < ends_s:
                sent.append(b"%d" % len(sent))
                await producer.send_and_wait(topic, sent[-1])
                await asyncio.sleep(0.02)
        found: list[bytes] = []
        async with aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **settings, ssl_context=context
        ) as consumer:
            ends_s += 30
            while not set(sent) <= set(found) and time.monotonic() < ends_s:
                for records in (await consumer.getmany(timeout_ms=500, max_records=20)).values():
                    found += [one.value for one in records]
                    await asyncio.sleep(0.2)
            await consumer.commit()
        return sent, found

    return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize("client", [confluent_under_load, kafka_python_under_load, aiokafka_under_load])
def test_no_record_is_lost_in_sessions_of_two_seconds(
    secured: SecuredBroker, client: Callable[[dict[str, Any], str], tuple[list[bytes], list[bytes]]]
) -> None:
    """A client without KIP-368 connects again when its session ends, and may send a record twice."""
    is_confluent = client is confluent_under_load
    settings: dict[str, Any] = secured.settings("SASL_SSL", SHA_512)
    if not is_confluent:
        settings = of_python(secured, "SASL_SSL", SHA_512) | {"ssl_cafile": str(secured.authority.pem)}
    topic = f"load-{client.__name__}"
    sent, found = client(settings, topic)
    assert len(sent) > 20
    assert set(found) == set(sent)
    assert list(dict.fromkeys(found)) == sent
    with odradek.Admin(secured.settings("SASL_SSL", SHA_512)) as admin:
        (row,) = admin.list_group_offsets(topic).values()
    assert row.offset >= len(sent)
