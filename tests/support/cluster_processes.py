"""The processes of a cluster: one controller and some brokers, with formatted directories."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.node_format import format_node
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess
from support.brokers import Wire
from support.controller_process import CLUSTER_ID, CONTROLLER, controller_settings

SHORT_SESSIONS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "300"}
COMBINED = 3
"""The node with both roles of ``CombinedCluster``."""
_NOW_MS = 1_700_000_000_000


def format_as(path: Path, node_id: int) -> None:
    """Formats the directory of a node."""
    directory = LogDirectory(path, lambda: _NOW_MS)
    directory.lock.acquire()
    try:
        format_node(directory, node_id, CLUSTER_ID, UUID(int=node_id << 64 | 99), _NOW_MS, ignore_formatted=True)
    finally:
        directory.lock.release()


class ClusterProcesses:
    """A cluster, for a ``with`` block. ``brokers``: by id, from 1 on."""

    def __init__(self, home: Path, count: int, settings: Mapping[str, str] | None = None) -> None:
        ports = reserve_ports(count + 1)
        common = SHORT_SESSIONS | dict(settings or {})
        voters = controller_settings(ports[0].port)
        self.controller = self._node(home / "controller", CONTROLLER, common | voters, ports[0])
        self.brokers: dict[int, BrokerProcess] = {}
        for number in range(1, count + 1):
            own = {
                "process.roles": "broker", "node.id": str(number), "broker.rack": f"r{number}",
                "listeners": f"PLAINTEXT://127.0.0.1:{ports[number].port}",
                "controller.quorum.voters": voters["controller.quorum.voters"],
                "controller.listener.names": "CONTROLLER",
            }  # fmt: skip
            self.brokers[number] = self._node(home / str(number), number, common | own, ports[number])

    @staticmethod
    def _node(home: Path, node_id: int, settings: Mapping[str, str], port: Any) -> BrokerProcess:
        format_as(home / "data", node_id)
        made = BrokerProcess(home, config=settings, port=port.port)
        made.reservation = port
        return made

    @property
    def nodes(self) -> list[BrokerProcess]:
        return [self.controller, *self.brokers.values()]

    @property
    def bootstrap(self) -> str:
        return ",".join(one.bootstrap for one in self.brokers.values())

    def start(self, *brokers: int) -> None:
        """Starts these brokers at the same time; without any: the controller and all brokers."""
        if not brokers:
            self.controller.start()
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda number: self.brokers[number].start(), brokers or self.brokers))

    def wire(self, broker: int) -> Wire:
        return Wire(self.brokers[broker].bootstrap)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        for one in self.nodes:
            if one.running and one.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGCONT)
            one.kill()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()


def settings_of_both(port: int, controller_port: int, node_id: int = COMBINED) -> dict[str, str]:
    return SHORT_SESSIONS | {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
    }


class CombinedCluster(ClusterProcesses):
    """Node 3 is broker and controller, nodes 1 and 2 are brokers."""

    def __init__(self, home: Path) -> None:
        one, two, own, controller = self._ports = reserve_ports(4)
        both = settings_of_both(own.port, controller.port)
        self.controller = self._node(home / str(COMBINED), COMBINED, both, own)
        self.brokers = {COMBINED: self.controller}
        for number, port in ((1, one), (2, two)):
            own_settings = SHORT_SESSIONS | {
                "process.roles": "broker", "node.id": str(number), "listeners": f"PLAINTEXT://127.0.0.1:{port.port}",
                "controller.quorum.voters": both["controller.quorum.voters"],
                "controller.listener.names": "CONTROLLER",
            }  # fmt: skip
            self.brokers[number] = self._node(home / str(number), number, own_settings, port)
        controller.close()

    def start(self, *brokers: int) -> None:
        if not brokers:
            self.controller.start()
        super().start(*(brokers or (1, 2)))
