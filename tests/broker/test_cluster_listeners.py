"""A broker of a cluster with several listeners, of which one asks for a login: each client gets the address of its own
listener, and the controller knows all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import Wire, eventually

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.net.errors import AuthenticationFailed
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess

METADATA = 3
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {"broker.session.timeout.ms": 3_000, "broker.heartbeat.interval.ms": 300}


@pytest.fixture(scope="module")
def cluster() -> Iterator[odradek.Cluster]:
    with odradek.Cluster(1, config=SETTINGS) as made:
        yield made


@pytest.fixture(scope="module")
def node(cluster: odradek.Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Broker 2: INSIDE is plain and between brokers, OUTSIDE asks for a login and has another name for clients."""
    home = tmp_path_factory.mktemp("node")
    words = ["--data-dir", str(home / "data"), "--node-id", "2", "--cluster-id", cluster.cluster_id]
    assert run(["cluster", "format", *words]) == 0
    inside, outside = reserve_ports(2)
    settings = {
        "process.roles": "broker",
        "node.id": "2",
        "controller.quorum.voters": f"100@{cluster.bootstrap_controllers}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"INSIDE://127.0.0.1:{inside.port},OUTSIDE://127.0.0.1:{outside.port}",
        "advertised.listeners": f"INSIDE://127.0.0.1:{inside.port},OUTSIDE://localhost:{outside.port}",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
        "inter.broker.listener.name": "INSIDE",
        "listener.name.outside.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.outside.plain.sasl.jaas.config": f'{JAAS} user_alice="secret";',
        **{name: str(value) for name, value in SETTINGS.items()},
    }
    made = BrokerProcess(home, config=settings, port=inside.port)
    made.reservation = inside
    try:
        yield made.start()
    finally:
        made.kill()
        outside.close()


def outside(node: BrokerProcess, password: str = "secret") -> dict[str, Any]:
    """The settings of a client of the listener OUTSIDE."""
    address = node.config["listeners"].rpartition("//")[2]
    return {
        "bootstrap.servers": address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "alice", "sasl.password": password,
    }  # fmt: skip


def addresses(wire: Wire) -> dict[int, str]:
    message = {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return {one.node_id: f"{one.host}:{one.port}" for one in wire.call(METADATA, 12, message).brokers}


def test_a_client_gets_the_address_of_its_own_listener(cluster: odradek.Cluster, node: BrokerProcess) -> None:
    """Broker 1 has neither of these listeners, so replies on them do not name it, as in Kafka."""
    with Wire(node.bootstrap) as wire:
        eventually(lambda: addresses(wire) == {2: node.bootstrap})
    with odradek.Admin(outside(node)) as admin:
        (one,) = admin.describe_cluster().nodes
        assert (one.node_id, one.host) == (2, "localhost")
    with Wire(cluster.address(1)) as wire:
        assert addresses(wire) == {1: cluster.address(1)}


def test_records_go_through_the_listener_with_a_login(node: BrokerProcess) -> None:
    with odradek.Admin(node.bootstrap) as admin:
        admin.create_topics([NewTopic("secured", 2)])
        (own,) = [
            part.partition for part in admin.describe_topics(["secured"])["secured"].partitions if part.leader == 2
        ]
    with odradek.Producer(outside(node)) as producer:
        assert producer.send("secured", b"one", partition=own).result().offset == 0
    with pytest.raises(AuthenticationFailed), odradek.Admin(outside(node, "wrong")) as admin:
        admin.describe_cluster()


@pytest.mark.parametrize(
    ("protocol", "line"),
    [
        ("SSL", "listener.name.controller.ssl.keystore.location: the listener has TLS and no certificate"),
        ("SASL_PLAINTEXT", "listener.name.controller.sasl.enabled.mechanisms: GSSAPI (Kerberos), Kafka's default"),
        ("SASL_SSL", "listener.name.controller.sasl.enabled.mechanisms: GSSAPI (Kerberos), Kafka's default"),
        ("TLS", "expected PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL for the listener CONTROLLER, not 'TLS'"),
    ],
)
def test_a_controller_s_listener_without_what_its_protocol_needs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], protocol: str, line: str
) -> None:
    texts = {
        "process.roles": "controller", "node.id": "100", "controller.quorum.voters": "100@127.0.0.1:9",
        "controller.listener.names": "CONTROLLER", "listeners": "CONTROLLER://127.0.0.1:9",
        "listener.security.protocol.map": f"CONTROLLER:{protocol}",
    }  # fmt: skip
    words = [word for name, text in texts.items() for word in ("--config", f"{name}={text}")]
    assert run(["serve", "--data-dir", str(tmp_path / "data"), *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert line in said
