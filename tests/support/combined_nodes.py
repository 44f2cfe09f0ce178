"""A node with both roles in a simulated world, and a broker that joins its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from odradek.broker.front_end.connection import Connection
from odradek.broker.metadata_log import bootstrap
from odradek.broker.node.combined_role import CombinedRole
from odradek.broker.settings.config import BrokerConfig
from support.memory_files import MemoryFiles
from support.simulated_controller import ANSWER_MS, CLUSTER_ID, CONTROLLER, CONTROLLER_HOST, BlockingWire
from support.simulated_node import HOME, SimulatedNode, Wire
from support.simulated_restarts import RestartedBroker, sync_home, write_identity
from support.world import World

NOW_MS = 1_700_000_000_000
BOTH = {
    "process.roles": "broker,controller",
    "node.id": str(CONTROLLER),
    "controller.quorum.voters": f"{CONTROLLER}@{CONTROLLER_HOST}:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
    "advertised.listeners": f"PLAINTEXT://b{CONTROLLER}:9092",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
}


class CombinedNode(SimulatedNode):
    """One start of a node. Connections of other nodes are for its controller, others for its broker."""

    def __init__(self, world: World, files: MemoryFiles, settings: dict[str, str]) -> None:
        super().__init__(world, files, settings, new_role=CombinedRole)

    def new_config(self, settings: dict[str, str]) -> BrokerConfig:
        config = BrokerConfig(settings)
        config.use_both_roles()
        return config

    def accept(self, on_frame: Callable[[bytes], None], on_end: Callable[[], None]) -> Wire:
        return ControllerWire(self, on_frame, on_end)


class ControllerWire(Wire):
    """A connection to the controller's listener of a node with both roles."""

    def new_connection(self, node: SimulatedNode) -> Connection:
        return Connection(node.broker.role.side, node.broker.other_listeners[0], node.loop)


class SimulatedCombined(RestartedBroker):
    """A node with both roles over its restarts, in place of ``SimulatedController``."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 1) -> None:
        self.world = World(seed)
        self.files = MemoryFiles()
        self.files.make_dirs(HOME)
        bootstrap.write(HOME, self.files, NOW_MS)
        write_identity(self.files, CONTROLLER, CLUSTER_ID)
        sync_home(self.files)
        self._settings = BOTH | dict(settings or {})
        self.begin()

    def begin(self) -> None:
        self.node = CombinedNode(self.world, self.files, dict(self._settings))
        self.node.begin()

    @property
    def role(self) -> CombinedRole:
        assert isinstance(self.broker.role, CombinedRole)
        return self.broker.role

    def connect(self, client_id: str = "c", *, at_controller: bool = True) -> BlockingWire:
        """A connection to the controller's listener, or to the broker's."""
        return BlockingWire(self, client_id, as_node=at_controller)

    def call(
        self, api_key: int, version: int, message: Mapping[str, Any], *, at_controller: bool = False,
        answer_ms: int = ANSWER_MS,
    ) -> Any:  # fmt: skip
        wire = BlockingWire(self, "c", as_node=at_controller, answer_ms=answer_ms)
        reply = wire.call(api_key, version, message)
        wire.close()
        return reply
