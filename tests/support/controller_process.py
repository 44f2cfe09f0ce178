"""The process of a cluster's controller."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.node_format import format_node
from odradek.testing.ports import reserve_ports
from odradek.testing.process import BrokerProcess

CONTROLLER, CLUSTER_ID = 100, "J8aAPcfLQt2bqs1JT_rMgQ"


def formatted(path: Path, node_id: int = CONTROLLER, cluster_id: str = CLUSTER_ID) -> Path:
    """Formats a directory and returns it."""
    directory = LogDirectory(path, lambda: 1_700_000_000_000)
    directory.lock.acquire()
    try:
        format_node(directory, node_id, cluster_id, UUID(int=node_id), 1_700_000_000_000, ignore_formatted=True)
    finally:
        directory.lock.release()
    return path


def controller_settings(port: int, node_id: int = CONTROLLER) -> dict[str, str]:
    return {
        "process.roles": "controller",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
    }


def controller_process(home: Path, **settings: str) -> BrokerProcess:
    """Returns the process of a controller with a formatted directory, ``home/data``. It is not started yet."""
    formatted(home / "data")
    (reservation,) = reserve_ports(1)
    own = controller_settings(reservation.port) | {name.replace("_", "."): text for name, text in settings.items()}
    made = BrokerProcess(home, config=own, port=reservation.port)
    made.reservation = reservation
    return made
