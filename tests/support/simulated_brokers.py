"""Brokers of a cluster in a simulated world: whole nodes, with connections to their controller without sockets."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping
from typing import Any, cast

from odradek.broker.node.cluster_role import ClusterRole
from odradek.wire import frames
from support.memory_files import MemoryFiles
from support.simulated_controller import ANSWER_MS, CONTROLLER, CONTROLLER_HOST, BlockingWire
from support.simulated_node import HOME, SimulatedNode, Wire
from support.simulated_restarts import RestartedBroker, RestartedNode, sync_home, write_identity

TRAVEL_MS = 1
"""How long bytes travel from one node to another, at least."""


class SimulatedLink:
    """A connection between two nodes: the transport of the node that has opened it. Either end may be cut off."""

    def __init__(
        self, network: SimulatedNetwork, near: SimulatedNode, far: SimulatedNode,
        make: Callable[[], asyncio.BaseProtocol],
    ) -> None:  # fmt: skip
        self._network, self._near, self._far = network, near, far
        self._protocol = near.loop.run(make)
        self.is_open = True
        self._arrivals = {"near": 0, "far": 0}
        self._wire: Wire = far.accept(self._on_frame, self._on_end)
        near.loop.run(lambda: self._protocol.connection_made(self))

    @property
    def protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def _later(self, work: Callable[[], None]) -> None:
        """Does something at the near node after the time of travel, unless it is dead."""
        self._near.world.at(self._arrival("near"), lambda: self._near.loop.run(work), self._near.process)

    def _arrival(self, end: str) -> int:
        """Returns when bytes that are sent now arrive: never before those that were sent earlier."""
        at_ms = max(self._arrivals[end], self._near.world.now_ms + self._network.travel_ms())
        self._arrivals[end] = at_ms
        return at_ms

    def _on_frame(self, frame: bytes) -> None:
        if not self._network.loses(self._far, self._near):
            self._later(lambda: self._receive(frames.frame(frame)))

    def _receive(self, data: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.Protocol):
            if self.is_open:
                protocol.data_received(data)
            return
        assert isinstance(protocol, asyncio.BufferedProtocol)
        while data and self.is_open:
            room = protocol.get_buffer(len(data))
            part, data = data[: len(room)], data[len(room) :]
            room[: len(part)] = part
            protocol.buffer_updated(len(part))

    def _on_end(self) -> None:
        self._later(self._end)

    def _end(self) -> None:
        if self.is_open:
            self.is_open = False
            self._protocol.connection_lost(None)

    # the transport of the near end

    def get_extra_info(self, name: str) -> None:
        return None

    def write(self, data: bytes) -> None:
        if not self._network.loses(self._near, self._far):
            self._near.world.at(self._arrival("far"), lambda: self._wire.send(data), self._far.process)

    def abort(self) -> None:
        self.is_open = False
        self._near.world.at(self._arrival("far"), self._wire.hang_up)


class SimulatedNetwork:
    """The network between the nodes of a cluster. ``cut_off``: nodes whose bytes are lost, both ways. ``deaf``: pairs
    of a sender and a receiver that its bytes do not reach.

    ``most_travel_ms``: bytes travel for 1 ms up to this time. ``brokers``: by the name of their host. ``ports``: hosts
    by port, of nodes that have the same address."""

    def __init__(self, controller: RestartedNode) -> None:
        self.controller = controller
        self.brokers: dict[str, SimulatedBroker] = {}
        self.ports: dict[int, str] = {}
        self.cut_off: set[int] = set()
        self.deaf: set[tuple[int, int]] = set()
        self.most_travel_ms = TRAVEL_MS

    def travel_ms(self) -> int:
        return TRAVEL_MS if self.most_travel_ms == TRAVEL_MS else self.controller.world.between(1, self.most_travel_ms)

    def is_up(self, node: SimulatedNode) -> bool:
        return node.broker.node_id not in self.cut_off

    def loses(self, sender: SimulatedNode, receiver: SimulatedNode) -> bool:
        """Whether bytes from one node to another are lost."""
        pair = sender.broker.node_id, receiver.broker.node_id
        return not (self.is_up(sender) and self.is_up(receiver)) or pair in self.deaf

    def node_at(self, host: str, port: int) -> SimulatedNode | None:
        """Returns the present process of the node at an address; None if there is none."""
        host = self.ports.get(port, host)
        if host == CONTROLLER_HOST:
            return self.controller.node
        broker = self.brokers.get(host)
        return None if broker is None else broker.node

    async def connect(
        self, near: SimulatedNode, make: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Opens a connection, as ``world.Connect``."""
        made: asyncio.Future[SimulatedLink] = near.loop.create_future()

        def arrive() -> None:
            far = self.node_at(host, port)
            if made.cancelled() or not self.is_up(near):
                return
            if far is not None and (self.loses(near, far) or self.loses(far, near)):
                return  # the packets are lost
            if far is not None and far.process.is_alive:
                made.set_result(SimulatedLink(self, near, far, make))
            else:
                made.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))

        near.world.at(near.world.now_ms + self.travel_ms(), arrive, near.process)
        link = await made
        return cast(asyncio.BaseTransport, link), link.protocol


class SimulatedBroker(RestartedBroker):
    """A broker of a cluster over its restarts."""

    def __init__(self, network: SimulatedNetwork, broker_id: int, settings: Mapping[str, str] | None = None) -> None:
        self.network, self.broker_id = network, broker_id
        network.brokers[f"b{broker_id}"] = self
        self.world = network.controller.world
        self.new_disk(1)
        self._settings = {
            "node.id": str(broker_id),
            "process.roles": "broker",
            "controller.quorum.voters": f"{CONTROLLER}@{CONTROLLER_HOST}:9093",
            "controller.listener.names": "CONTROLLER",
            "advertised.listeners": f"PLAINTEXT://b{broker_id}:9092",
            "offsets.topic.num.partitions": "4",
            "offsets.topic.replication.factor": "1",
        } | dict(settings or {})
        self.begin()

    def new_disk(self, number: int) -> None:
        """Gives the broker an empty formatted directory, the id of which has this number. It may not run."""
        self.files = MemoryFiles()
        self.files.make_dirs(HOME)
        write_identity(self.files, self.broker_id, self.network.controller.broker.cluster_id, number)
        sync_home(self.files)

    def begin(self) -> None:
        self.node = SimulatedNode(
            self.world, self.files, dict(self._settings), new_role=ClusterRole, network=self.network
        )
        self.node.begin()

    @property
    def role(self) -> ClusterRole:
        assert isinstance(self.broker.role, ClusterRole)
        return self.broker.role

    def call(
        self, api_key: int, version: int, message: Mapping[str, Any], *, answer_ms: int = ANSWER_MS, user: str = ""
    ) -> Any:
        """Sends a client's request over a connection of its own, and returns the reply. ``user``: who has logged in."""
        wire = BlockingWire(self, "client", user=user)
        sent = wire.send(api_key, version, message)
        assert wire.has_reply(answer_ms / 1000), "no reply"
        reply = wire.receive(api_key, version, sent)
        wire.close()
        return reply
