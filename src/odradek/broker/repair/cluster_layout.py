"""The nodes of a cluster on one machine: brokers and a controller, each with its directory, address and settings.

The brokers are the nodes 1, 2, … with the directories ``1``, ``2``, …, the controller has the directory ``controller``.
The controller's listener is on this machine's loopback address: only the brokers and administrators here reach it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from odradek.broker.metadata_log import conversion
from odradek.broker.partitions.log_directory import LogDirectory
from odradek.broker.repair.node_format import format_node, is_of_a_node
from odradek.broker.settings.config import IN_A_CLUSTER, BrokerConfig
from odradek.core.counts import counted
from odradek.core.errors import ConfigError, StorageError
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import OsFiles

CONTROLLER_ID, CONTROLLER_DIRECTORY = 100, "controller"
MOST_BROKERS = 99
_LOOPBACK = "127.0.0.1"
REPLICAS = 3
"""The replicas of a partition of a topic that is created without a number, if there are so many brokers."""
NODE_PROPERTIES = "node.properties"
"""What a start without options needs to know about a node."""
_RACK = "broker.rack"
_OWN = (
    "node.id", "broker.id", "process.roles", "controller.quorum.voters", "controller.quorum.bootstrap.servers",
    "controller.listener.names", "listeners", "advertised.listeners", "broker.rack", "log.dirs", "log.dir",
)  # fmt: skip
"""The settings that differ from node to node, or that all nodes have to agree about."""


class ClusterNode(NamedTuple):
    """``name``: for messages, such as ``broker 1``. ``address``: ``HOST:PORT`` of its only listener."""

    node_id: int
    name: str
    data_dir: Path
    address: str
    settings: Mapping[str, str]

    @property
    def is_controller(self) -> bool:
        return self.node_id == CONTROLLER_ID


def lay_out(
    data_dir: Path, host: str, ports: Sequence[int], racks: Sequence[str], settings: Mapping[str, str]
) -> list[ClusterNode]:
    """Returns the controller and the brokers. ``ports``: one for each broker, and the last for the controller.

    ``racks``: of the brokers; none or one for each. Without them, those of the last start. ``settings``: of all nodes.
    Raises ConfigError for settings that cannot work, StorageError."""
    for name in _OWN:
        if name in settings:
            raise ConfigError(
                f"{name}: each node of the cluster has a value of its own: leave it out, or start the nodes by hand "
                "(docs/cluster.md)"
            )
    *of_brokers, of_controller = ports
    racks = racks or stored_racks(data_dir, len(of_brokers))
    if racks and len(racks) != len(of_brokers):
        raise ConfigError(
            f"{counted(len(racks), 'rack')} for {counted(len(of_brokers), 'broker')}: name one rack for each broker"
        )
    shared = {
        **dict.fromkeys(IN_A_CLUSTER, str(min(len(of_brokers), REPLICAS))),
        **settings,
        "controller.quorum.voters": f"{CONTROLLER_ID}@{_LOOPBACK}:{of_controller}",
        "controller.listener.names": "CONTROLLER",
    }
    address = f"{_LOOPBACK}:{of_controller}"
    own = {"node.id": str(CONTROLLER_ID), "process.roles": "controller", "listeners": f"CONTROLLER://{address}"}
    directory = data_dir / CONTROLLER_DIRECTORY
    nodes = [ClusterNode(CONTROLLER_ID, "the controller", directory, address, shared | own)]
    for number, port in enumerate(of_brokers, 1):
        address = f"{host}:{port}"
        own = {"node.id": str(number), "process.roles": "broker", "listeners": f"PLAINTEXT://{address}"}
        if racks:
            own[_RACK] = racks[number - 1]
        nodes.append(ClusterNode(number, f"broker {number}", data_dir / str(number), address, shared | own))
    for node in nodes:
        BrokerConfig(node.settings)
    return nodes


def stored_racks(data_dir: Path, brokers: int) -> list[str]:
    """Returns the racks that the last start has given to the brokers; none if it has given none. Raises ConfigError if
    some of the brokers have one."""
    files = OsFiles()
    paths = [data_dir / str(number) / NODE_PROPERTIES for number in range(1, brokers + 1)]
    try:
        racks = [checkpoints.read_properties(path, files).get(_RACK, "") for path in paths]
    except OSError as error:
        raise StorageError(f"{error.filename or data_dir} cannot be read: {error.strerror or error}") from error
    if any(racks) and not all(racks):
        number, other = racks.index("") + 1, next(number for number, rack in enumerate(racks, 1) if rack)
        raise ConfigError(
            f"broker {number} has no rack, and broker {other} has {racks[other - 1]}: name the racks of all brokers"
        )
    return racks if all(racks) else []


def prepare(nodes: Sequence[ClusterNode]) -> str:
    """Formats the directories that are not formatted, and returns the id of the cluster.

    The controller's directory has the only copy of the metadata: if it is new, those of the brokers must be new, too.
    Raises StorageError."""
    controller = next(node for node in nodes if node.is_controller)
    parent = controller.data_dir.parent
    try:
        if checkpoints.read_meta_properties(parent, OsFiles()):
            raise StorageError(
                f"{parent} is the directory of a lone broker: choose another directory for the cluster. To make it "
                "broker 1, move it into a new one with the name 1, and run `odradek cluster convert` for it"
            )
        for node in nodes:
            _finish_conversion(node)
        ids = [checkpoints.read_meta_properties(node.data_dir, OsFiles()).get("cluster.id", "") for node in nodes]
        cluster_id = ids[nodes.index(controller)]
        for node, stored in zip(nodes, ids, strict=True):
            if stored and not cluster_id:
                _check_not_lone(node)
                raise StorageError(
                    f"{node.data_dir} belongs to the cluster {stored}, but {controller.data_dir}, the only copy of its "
                    "metadata, is missing: put it back from a copy, or choose another directory"
                )
            if stored and stored != cluster_id:
                raise StorageError(
                    f"{node.data_dir} belongs to the cluster {stored}, and {controller.data_dir} to {cluster_id}: put "
                    "the right directory back, or choose another one"
                )
        cluster_id = cluster_id or checkpoints.encode_uuid(uuid4())
        for node in nodes:
            _format(node, cluster_id)
    except OSError as error:
        raise StorageError(f"{error.filename or parent} cannot be used: {error.strerror or error}") from error
    return cluster_id


def _check_not_lone(node: ClusterNode) -> None:
    """Raises StorageError if the directory of a broker is that of a lone broker."""
    files = OsFiles()
    if is_of_a_node(node.data_dir, files):
        return
    node_id = checkpoints.read_meta_properties(node.data_dir, files).get("node.id", "")
    remedy = f"`odradek cluster convert --data-dir {node.data_dir}` makes it that of broker {node.node_id}"
    if node_id != str(node.node_id):
        remedy = f"its node.id is {node_id}: give it the name {node_id}, then run `odradek cluster convert` for it"
    raise StorageError(f"{node.data_dir} is the directory of a lone broker: {remedy}, with all its topics")


def _finish_conversion(node: ClusterNode) -> None:
    """Finishes the conversion of a lone broker's directory that was interrupted."""
    if (node.data_dir / checkpoints.CONVERSION).exists():
        directory = LogDirectory(node.data_dir, lambda: time.time_ns() // 1_000_000)
        directory.lock.acquire()
        try:
            conversion.finish(node.data_dir, directory.files, time.time_ns() // 1_000_000)
        finally:
            directory.lock.release()


def _format(node: ClusterNode, cluster_id: str) -> None:
    directory = LogDirectory(node.data_dir, lambda: time.time_ns() // 1_000_000)
    before = os.umask(0o077)  # as the broker's
    try:
        directory.lock.acquire()
        now_ms = time.time_ns() // 1_000_000
        format_node(directory, node.node_id, cluster_id, uuid4(), now_ms, ignore_formatted=True)
        if rack := node.settings.get(_RACK):
            checkpoints.write_properties(node.data_dir / NODE_PROPERTIES, {_RACK: rack}, directory.files)
    finally:
        os.umask(before)
        directory.lock.release()
