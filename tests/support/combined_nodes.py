"""A node with both roles in a simulated world, and a broker that joins its cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from odradek.broker.combined_role import CombinedRole
from odradek.broker.front_end.connection import Connection
from odradek.broker.metadata_log import bootstrap
from odradek.broker.node import Node
from odradek.broker.settings.config import BrokerConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.memory_files import MemoryFiles
from support.simulated_controller import ANSWER_MS, CLUSTER_ID, CONTROLLER, CONTROLLER_HOST, BlockingWire
from support.simulated_node import HOME, SimulatedNode, Wire
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
        return Connection(node.broker.other_owner, node.broker.other_listeners[0], node.loop)


class SimulatedCombined:
    """A node with both roles over its restarts, in place of ``SimulatedController``."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 1) -> None:
        self.world = World(seed)
        self.files = MemoryFiles()
        self.files.make_dirs(HOME)
        bootstrap.write(HOME, self.files, NOW_MS)
        identity = {"node.id": str(CONTROLLER), "directory.id": checkpoints.encode_uuid(UUID(int=CONTROLLER << 64)),
                    "version": "1", "cluster.id": CLUSTER_ID}  # fmt: skip
        checkpoints.write_meta_properties(HOME, identity, self.files)
        for directory in (HOME, *HOME.parents):
            self.files.sync_dir(directory)
        self._settings = BOTH | dict(settings or {})
        self.begin()

    def begin(self) -> None:
        self.node = CombinedNode(self.world, self.files, dict(self._settings))
        node, broker = self.node, self.broker
        node.loop.run(lambda: broker.begin(node.loop))
        broker.begin_upkeep()

    @property
    def broker(self) -> Node:
        return self.node.broker

    @property
    def role(self) -> CombinedRole:
        assert isinstance(self.broker.role, CombinedRole)
        return self.broker.role

    @property
    def is_joined(self) -> bool:
        return self.role.joined.resolved and self.role.joined.value is None

    def run_until_joined(self, within_ms: int = 30_000) -> None:
        end_ms = self.world.now_ms + within_ms
        while not self.role.joined.resolved:
            assert self.world.now_ms < end_ms, self.role.membership.lifecycle.state
            self.world.advance(5)
        if self.role.joined.value is not None:
            raise self.role.joined.value

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

    def kill(self) -> None:
        self.node.kill()

    def stop(self, within_ms: int = 30_000) -> None:
        """Stops cleanly, with a controlled shutdown."""

        async def stop() -> None:
            await self.role.leave()
            await self.broker.end()

        task = self.node.loop.create_task(stop())
        end_ms = self.world.now_ms + within_ms
        while not task.done():
            assert self.world.now_ms < end_ms
            self.world.advance(5)
        task.result()
        for wire in tuple(self.node.wires):
            wire.cut()
