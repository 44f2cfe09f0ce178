"""Nodes of a simulated world over their restarts: the disk stays, each start is another process."""

from __future__ import annotations

from uuid import UUID

from odradek.broker.node.cluster_role import ClusterRole
from odradek.broker.node.combined_role import CombinedRole
from odradek.broker.node.node import Node
from odradek.storage.disk import checkpoints
from support.memory_files import MemoryFiles
from support.simulated_node import HOME, SimulatedNode
from support.world import World


def write_identity(files: MemoryFiles, node_id: int, cluster_id: str, number: int = 1) -> None:
    """Formats the directory of a node. ``number``: of its directories, each of which has another id."""
    identity = {
        "node.id": str(node_id), "directory.id": checkpoints.encode_uuid(UUID(int=(number * node_id) << 64)),
        "version": "1", "cluster.id": cluster_id,
    }  # fmt: skip
    checkpoints.write_meta_properties(HOME, identity, files)


def sync_home(files: MemoryFiles) -> None:
    """The names of what is in the directory of a node survive a power cut."""
    for directory in (HOME, *HOME.parents):
        files.sync_dir(directory)


class RestartedNode:
    """A node over its restarts. ``node`` is its present process."""

    world: World
    files: MemoryFiles
    node: SimulatedNode

    @property
    def broker(self) -> Node:
        return self.node.broker

    def kill(self) -> None:
        self.node.kill()


class RestartedBroker(RestartedNode):
    """A node that serves clients as a broker of a cluster."""

    @property
    def role(self) -> ClusterRole | CombinedRole:
        assert isinstance(self.broker.role, ClusterRole | CombinedRole)
        return self.broker.role

    @property
    def is_joined(self) -> bool:
        """Whether it may serve clients. Raises the error that has ended its start."""
        joined = self.role.joined
        if joined.resolved and joined.value is not None:
            raise joined.value
        return joined.resolved

    def run_until_joined(self, within_ms: int = 30_000) -> None:
        end_ms = self.world.now_ms + within_ms
        while not self.is_joined:
            assert self.world.now_ms < end_ms, self.role.membership.lifecycle.state
            self.world.advance(5)

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
