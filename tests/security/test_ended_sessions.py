"""Login sessions between nodes that end, on processes: the nodes log in again, and nothing is lost or fenced."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.brokers import eventually
from support.secured_cluster import AUTHORIZER, NODE, SECRET, SecuredCluster, first_user, plain_login, scram_login

import odradek
from odradek.client import NewTopic

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc has the connections")
LIFETIME_MS = 1_500
BUSY = {"controller": 4, "1": 1, "2": 1}
"""How many connections to a node have requests all the time: heartbeats and fetches of the metadata log of two brokers;
fetches of replicas."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    home = tmp_path_factory.mktemp("sessions")
    settings = {
        **scram_login("controller"), **plain_login("inner"), **plain_login("outer"), **AUTHORIZER,
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "connections.max.reauth.ms": str(LIFETIME_MS), "replica.fetch.wait.max.ms": "200",
        "replica.fetch.backoff.ms": "100", "min.insync.replicas": "2", "broker.session.timeout.ms": "20000",
    }  # fmt: skip
    protocols = dict.fromkeys(("CONTROLLER", "INNER", "OUTER"), "SASL_PLAINTEXT")
    with SecuredCluster(home, protocols, settings, first_users=first_user(home)) as made:
        with odradek.Admin(client(made)) as admin:
            eventually(lambda: len(admin.describe_cluster().nodes) == 2)
            admin.create_topics([NewTopic("t", replica_assignments=[[1, 2], [2, 1]])])
        yield made


def client(cluster: SecuredCluster) -> dict[str, Any]:
    return {
        "bootstrap.servers": ",".join(cluster.outer.values()), "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN", "sasl.username": NODE, "sasl.password": SECRET,
    }  # fmt: skip


def connections(address: str) -> set[int]:
    """The ports at the other ends of the established connections to an address."""
    port = int(address.rpartition(":")[2])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(row[2].rpartition(":")[2], 16)
        for row in rows
        if row[3] == "01" and int(row[1].rpartition(":")[2], 16) == port
    }


def produced(cluster: SecuredCluster) -> list[int]:
    with odradek.Producer({**client(cluster), "acks": "all"}) as producer:
        return [producer.send("t", b"record", partition=at).result().offset for at in (0, 1)]


def test_nodes_log_in_again_before_their_sessions_end(cluster: SecuredCluster) -> None:
    """The connections in use are new after some time, and each acknowledged record is on both replicas.

    As in Kafka, a connection without requests stays: the listener ends it at the next request."""
    nodes = {"controller": cluster.controller, **{str(number): one for number, one in cluster.brokers.items()}}
    logs = {name: one.log_size() for name, one in nodes.items()}
    before = {name: connections(one.bootstrap) for name, one in nodes.items()}
    assert all(before.values())
    sent = [produced(cluster)]

    def are_new() -> bool:
        sent.append(produced(cluster))
        return all(len(connections(one.bootstrap) - before[name]) >= BUSY[name] for name, one in nodes.items())

    eventually(are_new, within_s=60, every_s=0.2)
    for partition in (0, 1):
        offsets = [one[partition] for one in sent]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    for name, one in nodes.items():
        assert "WARNING" not in one.log_tail(logs[name]), one.log_tail(logs[name])
    with odradek.Admin(client(cluster)) as admin:
        assert all(set(one.isr) == {1, 2} for one in admin.describe_topics(["t"])["t"].partitions)


@pytest.mark.parametrize("node", ["controller", "2"])
def test_a_session_that_ends_while_a_node_is_halted(cluster: SecuredCluster, node: str) -> None:
    """No node logs in again in time. The listener ends the connection, and the next one serves the request."""
    halted = cluster.controller if node == "controller" else cluster.brokers[int(node)]
    assert halted.pid is not None
    before = connections(halted.bootstrap)
    first = produced(cluster)
    os.kill(halted.pid, signal.SIGSTOP)
    try:
        eventually(lambda: connections(halted.bootstrap) & before, what="the connections stay")
        signal.sigtimedwait([], 2 * LIFETIME_MS / 1000)
    finally:
        os.kill(halted.pid, signal.SIGCONT)
    with odradek.Admin(client(cluster)) as admin:
        eventually(
            lambda: all(set(one.isr) == {1, 2} for one in admin.describe_topics(["t"])["t"].partitions), within_s=60
        )
        admin.create_topics([NewTopic(f"after-{node}", 1, 2)])
    assert all(now > then for now, then in zip(produced(cluster), first, strict=True))
    assert halted.running
    eventually(lambda: len(connections(halted.bootstrap) - before) >= BUSY[node], within_s=60)
