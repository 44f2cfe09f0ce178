"""``max.connections`` and the listener between brokers: clients of another listener make room for brokers, as in
Kafka's ConnectionQuotas."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from support.brokers import Wire, eventually
from support.certificates import Authority

import odradek
from odradek.cli.main import run
from odradek.client import NewTopic
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from odradek.testing.thread import BrokerThread
from odradek.wire import frames

ASK = frames.encode_request(18, 0, 1, "limits-test", {})
MOST = 4
CLOCK_S = 0.002
"""uvloop's clock has milliseconds."""
TWO = {
    "listeners": "INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0", "inter.broker.listener.name": "INSIDE",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT", "max.connections": str(MOST),
}  # fmt: skip


class Peers:
    """Connections to the listeners of a broker."""

    def __init__(self, broker: BrokerThread, stack: contextlib.ExitStack) -> None:
        self.broker = broker
        self._ports = {one.name: one.port for one in broker.server.listeners}
        self._stack = stack

    def open(self, listener: str) -> socket.socket:
        return self._stack.enter_context(socket.create_connection(("127.0.0.1", self._ports[listener]), 20))

    def answered(self, listener: str) -> socket.socket:
        """Opens a connection that the broker serves, later than those before by the clock of its loop."""
        time.sleep(CLOCK_S)
        made = self.open(listener)
        assert is_served(made)
        return made


def is_served(peer: socket.socket) -> bool:
    """Sends a request. Returns whether the broker answers it, and not the end of the connection."""
    try:
        peer.sendall(ASK)
        (size,) = (int.from_bytes(peer.recv(4, socket.MSG_WAITALL), "big"),)
        return size > 0 and len(peer.recv(size, socket.MSG_WAITALL)) == size
    except ConnectionError:
        return False


def is_closed(peer: socket.socket) -> bool:
    try:
        return peer.recv(1) == b""
    except ConnectionError:
        return True


@contextlib.contextmanager
def peers_of(data_dir: Path, settings: Mapping[str, str]) -> Iterator[Peers]:
    broker = BrokerThread(data_dir, config=settings)
    with contextlib.ExitStack() as stack:
        stack.callback(broker.kill)
        broker.start()
        yield Peers(broker, stack)


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    with peers_of(tmp_path, TWO) as made:
        yield made


def test_a_broker_takes_the_place_of_the_client_that_was_idle_for_the_longest_time(peers: Peers) -> None:
    clients = [peers.answered("OUTSIDE") for _ in range(MOST)]
    assert not is_served(peers.open("OUTSIDE")), "a client is refused"
    assert is_served(clients[0])
    brokers = [peers.answered("INSIDE")]
    assert is_closed(clients.pop(1)), "the second client was idle for the longest time"
    assert all(map(is_served, clients))
    brokers += [peers.answered("INSIDE") for _ in clients]
    assert all(map(is_closed, clients))
    brokers += [peers.answered("INSIDE") for _ in range(3)]
    assert len(brokers) > MOST
    assert all(map(is_served, brokers)), "no broker is closed in favour of another one"
    assert not is_served(peers.open("OUTSIDE"))
    while len(brokers) >= MOST:
        brokers.pop().close()
    eventually(lambda: is_served(peers.open("OUTSIDE")))


def test_a_lower_limit_closes_clients_and_no_broker(peers: Peers) -> None:
    broker = peers.answered("INSIDE")
    clients = [peers.answered("OUTSIDE") for _ in range(3)]
    with Wire(peers.broker.bootstrap_servers) as wire:  # at INSIDE, so it closes the first client
        row = {"name": "max.connections", "config_operation": 0, "value": "3"}
        asked = {"resource_type": 4, "resource_name": "1", "configs": [row]}
        reply = wire.call(44, 1, {"resources": [asked], "validate_only": False})
        assert reply.responses[0].error_code == 0
        assert all(map(is_closed, clients[:2]))
        assert is_served(clients[2])
        assert is_served(broker)


def test_the_only_listener_is_not_protected(tmp_path: Path) -> None:
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "max.connections": "2"}
    with peers_of(tmp_path, settings) as peers:
        two = [peers.answered("PLAINTEXT") for _ in range(2)]
        assert not is_served(peers.open("PLAINTEXT"))
        assert all(map(is_served, two))


def test_a_broker_with_tls_is_admitted_before_its_handshake(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    store = {"type": "PEM", "location": str(authority.issue("broker"))}
    settings = TWO | {"listener.security.protocol.map": "INSIDE:SSL,OUTSIDE:PLAINTEXT"}
    settings |= {f"listener.name.inside.ssl.keystore.{name}": value for name, value in store.items()}
    with peers_of(tmp_path / "data", settings) as peers:
        clients = [peers.answered("OUTSIDE") for _ in range(MOST)]
        peers.open("INSIDE")
        assert is_closed(clients[0])
        assert all(map(is_served, clients[1:]))


# --- a cluster ------------------------------------------------------------------------------------------------------

QUICK = {"broker.session.timeout.ms": 5_000, "broker.heartbeat.interval.ms": 300, "replica.lag.time.max.ms": 2_000}


def test_clients_that_take_all_connections_do_not_keep_a_follower_out(tmp_path: Path) -> None:
    with odradek.Cluster(1, config=QUICK) as cluster:
        data = ["--data-dir", str(tmp_path / "data"), "--node-id", "2", "--cluster-id", cluster.cluster_id]
        assert run(["cluster", "format", *data]) == 0
        inside, outside = reserve_ports(2)
        listeners = f"PLAINTEXT://127.0.0.1:{inside.port},OUTSIDE://127.0.0.1:{outside.port}"
        settings = {
            "process.roles": "broker", "node.id": "2", "max.connections": "3",
            "controller.quorum.voters": f"100@{cluster.bootstrap_controllers}",
            "controller.listener.names": "CONTROLLER", "listeners": listeners,
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
            **{name: str(value) for name, value in QUICK.items()},
        }  # fmt: skip
        node = BrokerProcess(tmp_path, config=settings, port=inside.port)
        node.reservation = inside
        with contextlib.ExitStack() as stack:
            stack.callback(outside.close)
            stack.callback(node.kill)
            node.start()
            for _ in range(3):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", outside.port), 20))
                assert is_served(client)
            with odradek.Admin(cluster.bootstrap_servers) as admin:
                made = NewTopic("t", replica_assignments=[[2, 1]], configs={"min.insync.replicas": "2"})
                admin.create_topics([made])
                with odradek.Producer(node.bootstrap, acks="all") as producer:
                    assert producer.send("t", b"one").result().offset == 0
                assert set(admin.describe_topics(["t"])["t"].partitions[0].isr) == {1, 2}
