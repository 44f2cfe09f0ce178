"""A controller's node in a simulated world, and blocking connections to it for scenarios: virtual time, no sockets."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from odradek.broker.node.controller_role import ControllerRole
from odradek.security.principal import USER, Principal
from odradek.wire import frames
from support.memory_files import MemoryFiles
from support.simulated_node import HOME, SimulatedNode, Wire
from support.simulated_restarts import RestartedNode, sync_home, write_identity
from support.voters import make_voter
from support.world import World

CONTROLLER, CONTROLLER_HOST = 100, "controller"
CLUSTER_ID = "J8aAPcfLQt2bqs1JT_rMgQ"
"""That of a controller whose settings have roles: such a directory has to be formatted."""
ANSWER_MS = 1000
"""A request that is not answered within this virtual time has no answer."""


class SimulatedController(RestartedNode):
    """One controller with an empty directory. ``restart`` kills it, or stops it cleanly, and starts it again."""

    def __init__(self, settings: Mapping[str, str] | None = None, *, seed: int = 1) -> None:
        self.world = World(seed)
        self.files = MemoryFiles()
        make_voter(HOME, CONTROLLER, files=self.files)
        if "process.roles" in (settings or {}):
            write_identity(self.files, CONTROLLER, CLUSTER_ID)
        sync_home(self.files)
        self._settings = {"node.id": str(CONTROLLER)} | dict(settings or {})
        self.begin()

    def begin(self) -> None:
        self.node = SimulatedNode(self.world, self.files, self._settings, new_role=ControllerRole)
        self.node.begin()
        self.world.settle()

    @property
    def role(self) -> ControllerRole:
        assert isinstance(self.broker.role, ControllerRole)
        return self.broker.role

    def connect(self, client_id: str = "c") -> BlockingWire:
        return BlockingWire(self, client_id)

    def restart(self, *, cleanly: bool = False) -> None:
        if cleanly:
            task = self.node.stop()
            while not task.done():
                self.world.advance(10)
            task.result()
            for wire in tuple(self.node.wires):
                wire.cut()
        else:
            self.kill()
        self.begin()


class BlockingWire:
    """The client's end of a connection, like ``support.brokers.Wire``: a call lets the world run until the reply."""

    def __init__(
        self, owner: RestartedNode, client_id: str, *, answer_ms: int = ANSWER_MS, as_node: bool = False,
        user: str = "",
    ) -> None:  # fmt: skip
        """``as_node``: the connection is that of another node of the cluster. ``user``: who has logged in."""
        self._world = owner.world
        self._answer_ms = answer_ms
        self._client_id = client_id
        self._ids = itertools.count(1)
        self._frames: list[bytes] = []
        node = owner.node
        self._wire: Wire = (
            node.accept(self._frames.append, lambda: None) if as_node else node.connect(self._frames.append)
        )
        if user:
            self._wire.connection.principal = Principal(USER, user)
        self.socket = self  # for those who close it

    def close(self) -> None:
        self._wire.hang_up()

    def send(self, api_key: int, version: int, message: Mapping[str, Any] | bytes) -> int:
        correlation_id = next(self._ids)
        self._wire.send(frames.encode_request(api_key, version, correlation_id, self._client_id, message))
        return correlation_id

    def receive_frame(self) -> bytes:
        """Raises ConnectionError if the node has closed the connection."""
        if not self.has_reply(self._answer_ms / 1000):
            raise ConnectionError("the node does not answer")
        return self._frames.pop(0)

    def has_reply(self, within_s: float) -> bool:
        world = self._world
        end_ms = world.now_ms + within_s * 1000
        while not self._frames and self._wire.is_open and world.now_ms < end_ms:
            world.settle()
            if not self._frames:
                world.advance(1)
        return bool(self._frames)

    def receive(self, api_key: int, version: int, correlation_id: int) -> Any:
        """Returns the next reply, which must be the one to ``correlation_id``."""
        answered, reply = frames.decode_reply(api_key, version, self.receive_frame())
        assert answered == correlation_id
        return reply

    def call(self, api_key: int, version: int, message: Mapping[str, Any]) -> Any:
        return self.receive(api_key, version, self.send(api_key, version, message))
