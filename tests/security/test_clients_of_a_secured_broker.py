"""confluent-kafka, kafka-python, aiokafka and our clients at our broker: each protocol and mechanism, good and bad."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
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
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
KINDS = [("PLAINTEXT", ""), ("SSL", ""),
         *((protocol, one) for protocol in ("SASL_PLAINTEXT", "SASL_SSL") for one in MECHANISMS)]  # fmt: skip


class SecuredBroker:
    """A broker with a listener of each protocol, named like it."""

    def __init__(self, directory: Path) -> None:
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
