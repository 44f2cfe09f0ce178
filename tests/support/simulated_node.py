"""Nodes in a simulated world, and connections to them without sockets: bytes in, bytes out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from odradek.broker.front_end.connection import Connection
from odradek.broker.loop.clock import Clock
from odradek.broker.loop.world import NodeWorld
from odradek.broker.node.lone_role import LoneRole
from odradek.broker.node.node import Node
from odradek.broker.settings.config import BrokerConfig
from odradek.wire.frames import FrameReader
from support.memory_files import MemoryFiles
from support.simulated_loop import SimulatedLoop, SimulatedThreads
from support.world import Process, World

if TYPE_CHECKING:
    from odradek.broker.node.node import NodeRole

ADDRESS = ("127.0.0.1", 9092)
HOME = Path("/simulated/data")


class WorldClock(Clock):
    """The clocks of a world. No test moves them."""

    def __init__(self, world: World) -> None:  # that of the base class reads the clocks of the system
        self.on_moved = []
        self._world = world

    def now_ms(self) -> int:
        return self._world.clock()

    def steady_ms(self) -> int:
        return self._world.steady()


class Wire:
    """The client's end of a connection: the transport of the broker's end. ``on_frame`` gets the replies' frames,
    without their lengths; ``on_end`` is called when the broker closes the connection."""

    def __init__(self, node: SimulatedNode, on_frame: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self.is_open = True
        self._node = node
        self._on_frame = on_frame
        self._on_end = on_end
        self._reader = FrameReader()
        self.connection = self.new_connection(node)
        node.loop.run(lambda: self.connection.connection_made(self))
        if self.is_open:
            node.wires.append(self)

    def new_connection(self, node: SimulatedNode) -> Connection:
        return Connection(node.broker, None, node.loop)

    def send(self, data: bytes) -> None:
        """Passes bytes to the broker, if the connection is open."""
        if self.is_open:
            self._node.loop.run(lambda: self.connection.data_received(data))

    def hang_up(self) -> None:
        """Closes the client's end."""
        if self.is_open:
            self.is_open = False
            self._node.wires.remove(self)
            self._node.loop.run(lambda: self.connection.connection_lost(None))

    def cut(self) -> None:
        """Ends the connection because the node is dead."""
        self.is_open = False
        self._on_end()

    # the transport of the broker's end

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 5) if name in ("peername", "sockname") else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, chunks: Sequence[bytes]) -> None:
        if self.is_open:
            for frame in self._reader.feed(b"".join(bytes(chunk) for chunk in chunks)):
                self._on_frame(frame)

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            if self in self._node.wires:
                self._node.wires.remove(self)
            self._node.loop.call_soon(self.connection.connection_lost, None)
            self._on_end()

    abort = close


class NodeNetwork(Protocol):
    async def connect(
        self, near: SimulatedNode, make: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Opens a connection from a node to a host."""


class SimulatedNode:
    """One start of a node: a whole broker without sockets. ``kill`` ends it as kill -9 does.

    ``is_slow``: the shares of the scheduler end at random steps, and jobs of threads end late. ``hosts``: the addresses
    of the names of hosts. ``network``: how this node reaches other nodes; None if it is alone.
    """

    def __init__(
        self,
        world: World,
        files: MemoryFiles,
        settings: dict[str, str],
        *,
        is_slow: bool = False,
        new_role: Callable[[Node], NodeRole] = LoneRole,
        hosts: Mapping[str, str] | None = None,
        network: NodeNetwork | None = None,
    ) -> None:
        self.world = world
        self._network = network
        self.files = files
        self._hosts = hosts or {}
        self.process = Process(world)
        self.wires: list[Wire] = []
        self.end_reason = ""
        self._chance = random.Random(world.rng.getrandbits(64))
        self._is_slow = is_slow
        self._spent_s = 0.0
        self.loop = SimulatedLoop(world, self.process, self._lateness_ms)
        outside = NodeWorld(
            WorldClock(world),
            files,
            lambda: UUID(int=self._chance.getrandbits(128), version=4),
            lambda count, name: SimulatedThreads(self.loop, name),
            self._share_clock,
            lambda name, job: self.loop.call_soon(job) and None,
            self._look_up,
            connect=self.connect_to,
        )
        config = self.new_config(settings)
        listen = None if "listeners" in settings else ADDRESS
        self.broker = Node(config, HOME, config.listeners_at(listen), outside, new_role, loop=self.loop)

    def new_config(self, settings: dict[str, str]) -> BrokerConfig:
        return BrokerConfig(settings)

    async def connect_to(
        self, make: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: object = None
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Opens a connection of this node to another one, as ``world.Connect``. There is no simulated TLS."""
        assert tls is None
        if self._network is None:
            raise OSError("this node has no network")
        return await self._network.connect(self, make, host, port)

    def _look_up(self, host: str) -> str:
        if host not in self._hosts:
            raise OSError("the name has no address")
        return self._hosts[host]

    def _lateness_ms(self) -> int:
        return int(self._chance.expovariate(1 / 40)) if self._is_slow else 0

    def _share_clock(self) -> float:
        if self._is_slow and self._chance.random() < 0.2:
            self._spent_s += 0.0009
        return self._spent_s

    def begin(self) -> None:
        """Starts the node. Raises what the start of the broker raises."""
        self.broker.on_failure = lambda: setattr(self, "end_reason", self.broker.failure)
        self.loop.run(self.broker.begin)
        self.broker.begin_upkeep()

    def connect(self, on_frame: Callable[[bytes], None], on_end: Callable[[], None] = lambda: None) -> Wire:
        return Wire(self, on_frame, on_end)

    def accept(self, on_frame: Callable[[bytes], None], on_end: Callable[[], None]) -> Wire:
        """Accepts the connection of another node."""
        return self.connect(on_frame, on_end)

    def stop(self) -> Any:
        """Begins a clean stop. Returns its task."""
        return self.loop.create_task(self.broker.end())

    def kill(self) -> None:
        """Ends the process: written bytes stay, everything else is gone."""
        self.loop.kill()
        self.files.crash()
        wires, self.wires = self.wires, []
        for wire in wires:
            wire.cut()
