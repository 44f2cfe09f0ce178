"""A cluster whose nodes connect to each other by TLS and with logins: its settings, and its processes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from support.certificates import LOCAL, Authority
from support.cluster_processes import SHORT_SESSIONS, ClusterProcesses
from support.controller_process import CONTROLLER

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required"
NODE, SECRET = "node", "n0de-s3cret"
"""The user and the password of every node."""
QUICK = {"initial.broker.registration.timeout.ms": "2500"}
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:{NODE};User:admin",
}


def plain_login(listener: str, *, server: bool = True, password: str = SECRET) -> dict[str, str]:
    """Settings of a listener with PLAIN: the users there, and the name of the node itself."""
    prefix = f"listener.name.{listener}."
    jaas = f'{PLAIN_MODULE} username="{NODE}" password="{password}" user_{NODE}="{SECRET}" user_alice="a-secret";'
    enabled = {f"{prefix}sasl.enabled.mechanisms": "PLAIN"} if server else {}
    return enabled | {f"{prefix}plain.sasl.jaas.config": jaas}


def first_user(directory: Path) -> Path:
    """Returns a file with the SCRAM user that the nodes log in with."""
    path = directory / "users"
    path.write_text(f"SCRAM-SHA-256=[name={NODE},password={SECRET}]\n")
    path.chmod(0o600)
    return path


def scram_login(listener: str, *, password: str = SECRET) -> dict[str, str]:
    prefix = f"listener.name.{listener}."
    return {
        f"{prefix}sasl.enabled.mechanisms": "SCRAM-SHA-256",
        f"{prefix}scram-sha-256.sasl.jaas.config": f'{SCRAM_MODULE} username="{NODE}" password="{password}";',
    }


def stores(authority: Authority, listener: str, name: str = "node") -> dict[str, str]:
    """The certificate of a node, and those of the authorities that it trusts, for one listener."""
    prefix = f"listener.name.{listener}.ssl."
    if not (authority.directory / f"{name}.pem").exists():
        authority.issue(name, LOCAL)
    return {
        f"{prefix}keystore.type": "PEM", f"{prefix}keystore.location": str(authority.directory / f"{name}.pem"),
        f"{prefix}truststore.type": "PEM", f"{prefix}truststore.location": str(authority.pem),
    }  # fmt: skip


class SecuredCluster(ClusterProcesses):
    """One controller and brokers, which listen at INNER for each other and at OUTER for clients.

    ``protocols``: of CONTROLLER, INNER and OUTER. ``common``: settings of all nodes. ``first_users``: a file for
    ``--add-scram`` at the controller."""

    def __init__(
        self,
        home: Path,
        protocols: Mapping[str, str],
        common: Mapping[str, str],
        *,
        count: int = 2,
        first_users: Path | None = None,
    ) -> None:
        ports = reserve_ports(1 + 2 * count)
        self.home = home
        self._map = ",".join(f"{name}:{protocol}" for name, protocol in protocols.items())
        self._common = SHORT_SESSIONS | {"offsets.topic.replication.factor": str(min(count, 3))} | dict(common)
        self._voters = f"{CONTROLLER}@127.0.0.1:{ports[0].port}"
        own = {
            "process.roles": "controller", "node.id": str(CONTROLLER), "controller.quorum.voters": self._voters,
            "controller.listener.names": "CONTROLLER", "listeners": f"CONTROLLER://127.0.0.1:{ports[0].port}",
            "listener.security.protocol.map": f"CONTROLLER:{protocols['CONTROLLER']}",
        }  # fmt: skip
        at_controller = {name: text for name, text in self._common.items() if not name.startswith(_OF_BROKERS)}
        self.controller = self._node(home / "controller", CONTROLLER, at_controller | own, ports[0])
        if first_users is not None:
            self.controller._add_scram = first_users
        self.brokers: dict[int, BrokerProcess] = {}
        self.outer: dict[int, str] = {}
        for number in range(1, count + 1):
            self.add(number, {}, ports[2 * number - 1 : 2 * number + 1])

    def add(self, number: int, changed: Mapping[str, str], ports: list[object] | None = None) -> BrokerProcess:
        """Makes another broker, which is not started yet. ``changed``: its own settings; "" leaves one out."""
        inner, outer = ports or reserve_ports(2)
        own = {
            "process.roles": "broker", "node.id": str(number), "controller.quorum.voters": self._voters,
            "controller.listener.names": "CONTROLLER", "inter.broker.listener.name": "INNER",
            "listeners": f"INNER://127.0.0.1:{inner.port},OUTER://127.0.0.1:{outer.port}",
            "listener.security.protocol.map": self._map,
        }  # fmt: skip
        texts = {name: text for name, text in (self._common | own | dict(changed)).items() if text}
        made = self.brokers[number] = self._node(self.home / str(number), number, texts, inner)
        outer.close()
        self.outer[number] = f"127.0.0.1:{outer.port}"
        return made


_OF_BROKERS = ("listener.name.inner", "listener.name.outer", "sasl.mechanism.inter")
