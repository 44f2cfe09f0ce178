"""Nodes of a cluster that connect by TLS and with logins: clusters that work, and nodes that cannot join."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from support.brokers import eventually
from support.certificates import Authority
from support.secured_cluster import (
    AUTHORIZER,
    NODE,
    QUICK,
    SECRET,
    SecuredCluster,
    first_user,
    plain_login,
    scram_login,
    stores,
)

import odradek
from odradek.broker.loop.world import connect
from odradek.broker.remote.access import NodeAccess
from odradek.broker.remote.connection import RemoteNode
from odradek.broker.remote.node_request import schema_request
from odradek.broker.settings.config import BrokerConfig
from odradek.broker.settings.tls_settings import node_security
from odradek.client import NewTopic
from odradek.core.errors import ErrorCode
from odradek.testing.process import BrokerFailed, BrokerProcess

METADATA = 3


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredCluster]:
    """TLS with certificates of both sides between all nodes, TLS for clients, and ACLs."""
    certificates = {
        **stores(authority, "controller"), **stores(authority, "inner"), **stores(authority, "outer"),
        "listener.name.controller.ssl.client.auth": "required", "listener.name.inner.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
    }  # fmt: skip
    protocols = {"CONTROLLER": "SSL", "INNER": "SSL", "OUTER": "SSL"}
    users = AUTHORIZER | {"super.users": f"User:{NODE};User:ANONYMOUS"}
    with SecuredCluster(tmp_path_factory.mktemp("mutual"), protocols, certificates | users) as made:
        yield made


@pytest.fixture(scope="module")
def logins(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecuredCluster]:
    """SCRAM over TLS at the controller, PLAIN over TLS between brokers, PLAIN for clients, and ACLs."""
    home = tmp_path_factory.mktemp("logins")
    settings = {
        **stores(authority, "controller"), **stores(authority, "inner"), **scram_login("controller"),
        **plain_login("inner"), **plain_login("outer"), **AUTHORIZER,
        "sasl.mechanism.controller.protocol": "SCRAM-SHA-256", "sasl.mechanism.inter.broker.protocol": "PLAIN",
    }  # fmt: skip
    protocols = {"CONTROLLER": "SASL_SSL", "INNER": "SASL_SSL", "OUTER": "SASL_PLAINTEXT"}
    with SecuredCluster(home, protocols, settings, first_users=first_user(home)) as made:
        yield made


@pytest.fixture(scope="module")
def plaintext(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    protocols = dict.fromkeys(("CONTROLLER", "INNER", "OUTER"), "PLAINTEXT")
    with SecuredCluster(tmp_path_factory.mktemp("plaintext"), protocols, {}, count=1) as made:
        yield made


def client(cluster: SecuredCluster, authority: Authority, user: str = NODE, password: str = SECRET) -> dict[str, Any]:
    """The settings of a client of the listener OUTER."""
    texts: dict[str, Any] = {"bootstrap.servers": ",".join(cluster.outer[one] for one in (1, 2))}
    if "OUTER:SSL" in cluster.brokers[1].config["listener.security.protocol.map"]:
        return texts | {"security.protocol": "SSL", "ssl.truststore.type": "PEM",
                        "ssl.truststore.location": str(authority.pem)}  # fmt: skip
    return texts | {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": user,
                    "sasl.password": password}  # fmt: skip


def brokers_of(cluster: SecuredCluster, authority: Authority) -> set[int]:
    with odradek.Admin(client(cluster, authority)) as admin:
        return {node.node_id for node in admin.describe_cluster().nodes}


@pytest.mark.parametrize("kind", ["mutual", "logins"])
def test_a_secured_cluster_serves_its_clients(kind: str, authority: Authority, request: pytest.FixtureRequest) -> None:
    """Forwarded requests, records at every leader, commits, and a restart of each node by kill -9."""
    cluster: SecuredCluster = request.getfixturevalue(kind)
    settings = client(cluster, authority)
    eventually(lambda: brokers_of(cluster, authority) == {1, 2})
    with odradek.Admin(settings) as admin:
        admin.create_topics([NewTopic("t", 4)])
    assert produced(settings) == 8
    for process in (cluster.controller, cluster.brokers[1]):
        process.kill()
        process.start()
    with odradek.Admin(settings) as admin:
        eventually(lambda: leaders(admin) == {1, 2})
    assert produced(settings) == 8
    consumer = odradek.Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    with consumer:
        consumer.subscribe(["t"])
        count, end_s = 0, time.monotonic() + 60
        while count < 16 and time.monotonic() < end_s:
            count += len(list(consumer.poll(1.0).records()))
        assert count == 16
        consumer.commit()


def leaders(admin: odradek.Admin) -> set[int | None]:
    return {part.leader for part in admin.describe_topics(["t"])["t"].partitions}


def produced(settings: Mapping[str, Any]) -> int:
    with odradek.Producer(dict(settings)) as producer:
        sent = [producer.send("t", b"record", partition=number % 4) for number in range(8)]
        return len([one.result().offset for one in sent])


ID, UNREGISTERED = UUID(int=7), 999
OF_NODES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "BrokerRegistration": (62, 4, {
        "broker_id": UNREGISTERED, "cluster_id": "another", "incarnation_id": ID, "listeners": [], "features": [],
        "rack": None, "is_migrating_zk_broker": False, "log_dirs": [ID], "previous_broker_epoch": -1,
    }),
    "BrokerHeartbeat": (63, 2, {
        "broker_id": 1, "broker_epoch": 1 << 40, "current_metadata_offset": 0, "want_fence": True,
        "want_shut_down": True, "offline_log_dirs": [], "cordoned_log_dirs": None,
    }),
    "Fetch": (1, 17, {
        "cluster_id": None, "replica_state": {"replica_id": -1, "replica_epoch": -1}, "max_wait": 0, "min_bytes": 0,
        "max_bytes": 1 << 20, "isolation_level": 0, "session_id": 0, "session_epoch": -1, "forgotten_topics_data": [],
        "rack_id": "", "topics": [{"topic_id": UUID(int=1), "partitions": [{
            "partition": 0, "current_leader_epoch": 0, "fetch_offset": 0, "last_fetched_epoch": 0,
            "log_start_offset": -1, "partition_max_bytes": 1 << 20, "replica_directory_id": ID,
        }]}],
    }),
    "FetchSnapshot": (59, 1, {
        "cluster_id": None, "replica_id": -1, "max_bytes": 1 << 20,
        "topics": [{"name": "__cluster_metadata", "partitions": [{
            "partition": 0, "current_leader_epoch": 0, "snapshot_id": {"end_offset": 1, "epoch": 1}, "position": 0,
            "replica_directory_id": ID,
        }]}],
    }),
    "AlterPartition": (56, 3, {"broker_id": 1, "broker_epoch": 1 << 40, "topics": []}),
    "AllocateProducerIds": (67, 0, {"broker_id": 1, "broker_epoch": 1 << 40}),
    "AssignReplicasToDirs": (73, 0, {"broker_id": 1, "broker_epoch": 1 << 40, "directories": []}),
    "Envelope": (58, 0, {"request_data": b"", "request_principal": None, "client_host_address": b"abcd"}),
}  # fmt: skip
"""Requests that only nodes may send. None of them would change anything."""


@pytest.mark.parametrize("name", OF_NODES)
def test_a_user_without_rights_cannot_act_as_a_node(mutual: SecuredCluster, authority: Authority, name: str) -> None:
    """alice has a certificate that the controller's listener accepts, and no right. A node gets another answer."""
    key, version, message = OF_NODES[name]
    config = mutual.brokers[1].config
    as_alice = dict(config) | stores(authority, "controller", "alice")
    answers = []
    for settings in (as_alice, config):
        reply = reached(settings, mutual.controller.bootstrap, (key, version, message), at_controller=True)
        assert reply is not None
        answers.append(reply.error_code)
    assert answers[0] is ErrorCode.cluster_authorization_failed
    assert answers[1] is not ErrorCode.cluster_authorization_failed


def test_a_user_without_rights_changes_nothing_by_a_broker(logins: SecuredCluster, authority: Authority) -> None:
    """alice may log in at the broker's listeners, and may do nothing; only super users create topics."""
    with (
        odradek.Admin(client(logins, authority, "alice", "a-secret")) as admin,
        pytest.raises(Exception, match=r"(?i)authoriz"),
    ):
        admin.create_topics([NewTopic("of-alice", 1)])


# --- nodes that cannot join -----------------------------------------------------------------------------------------


def refusal(node: BrokerProcess, reason: str) -> str:
    """Starts a node that cannot join. Returns its log. The reason is there once, in one line, and so is its end."""
    with pytest.raises(BrokerFailed) as failed:
        node.start()
    assert "could not register with the controller within initial.broker.registration.timeout.ms=2500" in str(
        failed.value
    )
    log = node.log_path.read_text()
    assert len(re.findall(reason, log)) == 1, log
    assert "Traceback" not in log
    assert SECRET not in log
    return log


def stranger(folder: Path) -> Authority:
    other = Authority(folder, "stranger")
    other.issue("node")
    return other


BAD: list[tuple[str, Callable[[Path, Authority], dict[str, str]], str]] = [
    (
        "mutual", lambda home, authority: stores(stranger(home / "a"), "controller"),
        r"its certificate is not accepted: .*: check ssl\.truststore of the listener listener\.name\.controller\.",
    ),
    (
        "mutual",
        lambda home, authority: stores(stranger(home / "a"), "controller") | {
            "listener.name.controller.ssl.truststore.location": str(authority.pem)
        },
        r"it does not accept this node's certificate \(.*\): check ssl\.keystore of the listener",
    ),
    (
        "mutual",
        lambda home, authority: {
            f"listener.name.controller.ssl.keystore.{name}": "" for name in ("type", "location")
        },
        r"it does not accept this node's certificate \(.*certificate required\)",
    ),
    (
        "mutual", lambda home, authority: {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,INNER:SSL,OUTER:SSL",
        },
        r"(a frame of \d+ bytes; .*|it has closed the connection without a reply): perhaps its listener has another",
    ),
    (
        "logins", lambda home, authority: scram_login("controller", password="wrong"),
        r"it refuses the login of 'node' by SCRAM-SHA-256: .*: check username and password in "
        r"listener\.name\.controller\.scram-sha-256\.sasl\.jaas\.config",
    ),
    (
        "logins", lambda home, authority: {
            "sasl.mechanism.controller.protocol": "PLAIN", **plain_login("controller", server=False)
        },
        "its listener does not have PLAIN; it has SCRAM-SHA-256: check sasl.enabled.mechanisms there",
    ),
    (
        "logins", lambda home, authority: {
            "listener.security.protocol.map": "CONTROLLER:SSL,INNER:SASL_SSL,OUTER:SASL_PLAINTEXT",
        },
        "it has closed the connection without a reply: perhaps its listener has another protocol",
    ),
    (
        "plaintext", lambda home, authority: {
            "listener.security.protocol.map": "CONTROLLER:SSL,INNER:PLAINTEXT,OUTER:PLAINTEXT",
            **stores(authority, "controller"),
        },
        "perhaps its listener has another protocol: check listener.security.protocol.map of both nodes",
    ),
    (
        "plaintext", lambda home, authority: {
            "listener.security.protocol.map": "CONTROLLER:SASL_PLAINTEXT,INNER:PLAINTEXT,OUTER:PLAINTEXT",
            "sasl.mechanism.controller.protocol": "PLAIN", **plain_login("controller", server=False),
        },
        "its listener does not have PLAIN|perhaps its listener has another protocol",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "change", "reason"), BAD, ids=range(len(BAD)))
def test_a_node_that_cannot_join_says_why_once_and_ends(
    kind: str,
    change: Callable[[Path, Authority], dict[str, str]],
    reason: str,
    authority: Authority,
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    cluster: SecuredCluster = request.getfixturevalue(kind)
    number = 10 + [one[2] for one in BAD].index(reason)
    node = cluster.add(number, QUICK | change(tmp_path, authority))
    try:
        refusal(node, reason)
    finally:
        del cluster.brokers[number]


# --- between brokers ------------------------------------------------------------------------------------------------


METADATA_REQUEST = (
    METADATA, 12, {"topics": [], "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
)  # fmt: skip


def reached(
    config: Mapping[str, str],
    address: str,
    request: tuple[int, int, dict[str, Any]] = METADATA_REQUEST,
    *,
    at_controller: bool = False,
) -> Any:
    """Asks a node, by default for its metadata, as a broker with these settings. Returns the reply, or None."""
    parsed = BrokerConfig(dict(config))
    host, _, port = address.rpartition(":")
    replies: list[Any] = []

    async def ask() -> None:
        loop = asyncio.get_running_loop()
        prefix = f"listener.name.{'controller' if at_controller else 'inner'}."
        access = NodeAccess(loop, connect, node_security(parsed, at_controller=at_controller), prefix)
        node = RemoteNode(loop, Named(access.dialer(host, int(port))), client_id="broker-9")
        got: asyncio.Future[Any] = loop.create_future()
        node.send(schema_request(*request, lambda reply: reply), 5_000, got.set_result)
        replies.append(await got)
        node.close()

    asyncio.run(ask())
    return replies[0]


class Named:
    """A dialer with a name for log lines."""

    name = "node 2"

    def __init__(self, dialer: Any) -> None:
        self.dial, self.reason = dialer.dial, dialer.reason


@pytest.mark.parametrize("kind", ["mutual", "logins"])
def test_a_broker_reaches_another_one_by_the_listener_between_them(
    kind: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    cluster: SecuredCluster = request.getfixturevalue(kind)
    config = cluster.brokers[1].config
    reply = reached(config, cluster.brokers[2].bootstrap)
    assert reply is not None
    assert reply.cluster_id
    if kind == "logins":
        wrong = dict(config) | plain_login("inner", password="wrong")
        assert reached(wrong, cluster.brokers[2].bootstrap) is None
        assert "it refuses the login of 'node' by PLAIN" in caplog.text
        assert SECRET not in caplog.text


def test_the_listener_of_clients_has_tls(mutual: SecuredCluster, authority: Authority, tmp_path: Path) -> None:
    """A client that trusts another authority, and one without TLS, get nothing."""
    assert brokers_of(mutual, authority) == {1, 2}
    other = stranger(tmp_path / "other")
    wrong = client(mutual, other) | {"request.timeout.ms": 2_000, "default.api.timeout.ms": 3_000}
    with pytest.raises(Exception, match=r"(?i)certificate"), odradek.Admin(wrong) as admin:
        admin.describe_cluster()
