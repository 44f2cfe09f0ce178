"""The connections of a node to the other nodes of its cluster: to the controller, to leaders, to coordinators.

``Peers.send`` reaches any of them by its id. There is one connection for each node and channel, opened at the first
request. Each attempt to connect looks the address up again, so that waiting requests follow a node that moves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from odradek.broker.remote.connection import MOST_REPLY_BYTES, RemoteNode
from odradek.broker.remote.node_request import NodeRequest, R
from odradek.core.deferred import Deferred

if TYPE_CHECKING:
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.remote.dialer import Dialer, NodeProtocol

DialerOf = Callable[[str, int, bool], "Dialer"]
"""Returns how a node opens connections to a host and a port, and whether that is the listener of a controller."""
REQUEST_TIMEOUT_MS = 30_000
"""The time after which a controller has not answered: the default of Kafka's controller.socket.timeout.ms."""


class PeerTimes(NamedTuple):
    """``request_ms``: the time in which a broker has to answer, unless the request has its own. ``connect_ms``: the
    time of an attempt to connect."""

    request_ms: int = REQUEST_TIMEOUT_MS
    connect_ms: int = 10_000


DEFAULT_TIMES = PeerTimes()
"""Kafka's defaults of request.timeout.ms and socket.connection.setup.timeout.ms."""


class Channel(NamedTuple):
    """A kind of requests with connections of its own: a node replies in the order of the requests, so a request that
    may wait there delays the later ones of its connection.

    ``most_bytes``: the longest reply. ``log_level``: that of the lines about a node that cannot be reached.
    ``at_controller``: the requests are for the node's listener for controllers, and not for that between brokers.
    ``keeps_requests``: whether requests wait for the next attempt when an attempt to connect fails, until their time is
    over; otherwise they end without a reply."""

    name: str
    most_bytes: int = MOST_REPLY_BYTES
    log_level: int = logging.INFO
    at_controller: bool = False
    keeps_requests: bool = True


REQUESTS = Channel("requests")
"""The channel of requests that a broker answers at once."""
CONTROLLER_REQUESTS = Channel("controller requests", at_controller=True)
"""The channel of requests that a controller answers at once."""
CONTROLLER_READS = Channel("controller reads", at_controller=True)
"""Questions that a client's own time ends. A late reply ends its connection, and other requests are not sent again."""


class ClusterAddresses:
    """Where the nodes of a cluster listen for each other. ``listener``: the name of the brokers' listener for that.

    ``controllers``: the addresses of the controllers, which the settings name. The image has those of the brokers."""

    def __init__(self, image: CatalogView, controllers: Mapping[int, tuple[str, int]], listener: str) -> None:
        self._image = image
        self._controllers = controllers
        self._listener = listener

    def of(self, node_id: int, *, at_controller: bool) -> tuple[str, int] | None:
        """Returns host and port of a node as a broker, or as a controller; None if it is not registered as such, or
        does not have the listener."""
        if at_controller:
            address = self._controllers.get(node_id)
            return None if address is None else (address[0], address[1])
        broker = self._image.registered_brokers().get(node_id)
        endpoints = () if broker is None else broker.endpoints
        return next(((one.host, one.port) for one in endpoints if one.name == self._listener), None)

    def name(self, node_id: int, *, at_controller: bool) -> str:
        """Returns a node with its present address, as the subject of a log line."""
        address = self.of(node_id, at_controller=at_controller)
        place = "" if address is None else f" at {address[0]}:{address[1]}"
        return f"the controller, node {node_id}{place}," if at_controller else f"node {node_id}{place}"


class PeerDialer:
    """Opens connections to a node, at the address that it has at that time."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node_id: int,
        addresses: ClusterAddresses,
        dialer_of: DialerOf,
        *,
        at_controller: bool,
    ) -> None:
        self._loop = loop
        self._node_id = node_id
        self._at_controller = at_controller
        self._dialer: Dialer | None = None
        self._addresses = addresses
        self._dialer_of = dialer_of

    @property
    def name(self) -> str:
        return self._addresses.name(self._node_id, at_controller=self._at_controller)

    def dial(
        self, make_protocol: Callable[[], NodeProtocol], on_failure: Callable[[str], None]
    ) -> Callable[[], object]:
        address = self._addresses.of(self._node_id, at_controller=self._at_controller)
        if address is None:
            return self._loop.call_soon(on_failure, "it is not registered").cancel
        self._dialer = self._dialer_of(*address, self._at_controller)
        return self._dialer.dial(make_protocol, on_failure)

    def reason(self, error: Exception | None) -> str:
        return str(error) if self._dialer is None else self._dialer.reason(error)


class Peers:
    """The other nodes. ``client_id``: in the headers of the requests."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        addresses: ClusterAddresses,
        dialer_of: DialerOf,
        client_id: str,
        times: PeerTimes = DEFAULT_TIMES,
    ) -> None:
        self._times = times
        self._loop = loop
        self._addresses = addresses
        self._dialer_of = dialer_of
        self._client_id = client_id
        self._nodes: dict[tuple[int, Channel], RemoteNode] = {}
        self._is_closed = False

    def send(
        self,
        node_id: int,
        request: NodeRequest[R],
        timeout_ms: int | None = None,
        *,
        channel: Channel = REQUESTS,
        repeats: bool = False,
    ) -> Deferred[R | None]:
        """Sends a request to a node. The promise has what the request reads of the reply, or None if none has come in
        time, or none that can be read: then the node may have served the request or not.

        The request waits for a connection until its time is over. ``repeats``: if the connection ends before the
        reply, the request is sent again, until its time is over.
        """
        promise: Deferred[R | None] = Deferred()
        within_ms = self._times.request_ms if timeout_ms is None else timeout_ms
        self._node(node_id, channel).send(request, within_ms, promise.resolve, repeats=repeats)
        return promise

    def connections(self, node_id: int, channel: Channel) -> int:
        """Returns how many connections to a node were opened for a channel: the number of the present one."""
        return self._node(node_id, channel).connections

    def abandon(self, node_id: int, channel: Channel) -> None:
        """Ends the requests of a channel to a node: they get None, and what has not left this node never does. Later
        requests do not wait behind them, because they have another connection."""
        node = self._nodes.get((node_id, channel))
        if node is not None:
            node.abandon()

    def close(self) -> None:
        """Ends all connections. Requests without a reply get None, and so do later ones."""
        self._is_closed = True
        for node in self._nodes.values():
            node.close()

    def _node(self, node_id: int, channel: Channel) -> RemoteNode:
        node = self._nodes.get((node_id, channel))
        if node is None:
            dialer = PeerDialer(
                self._loop, node_id, self._addresses, self._dialer_of, at_controller=channel.at_controller
            )
            node = self._nodes[node_id, channel] = RemoteNode(
                self._loop, dialer, client_id=self._client_id, most_bytes=channel.most_bytes,
                log_level=channel.log_level, keeps_requests=channel.keeps_requests,
                connect_ms=self._times.connect_ms,
            )  # fmt: skip
            if self._is_closed:
                node.close()
        return node
