"""A broker of a cluster as a member of it: its registration, its start and its controlled shutdown.

``broker/membership/incarnation`` has the order of the start; this module does what it asks for, with the broker's node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.loop.scheduler import Steps
from odradek.broker.remote.dialer import TcpDialer
from odradek.broker.remote.peers import ClusterAddresses, Peers, PeerTimes
from odradek.broker.replication.node_replication import NodeReplication
from odradek.broker.settings.listener import WILDCARDS
from odradek.broker.transactions.across_brokers import ClusterTransactions
from odradek.catalog.features import SUPPORTED
from odradek.cluster.nodes.lifecycle import BrokerLifecycle, LifecycleTimes
from odradek.cluster.nodes.registrations import NewBroker
from odradek.cluster.records import Endpoint, FeatureRange
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, OdradekError
from odradek.security.protocols import PROTOCOLS
from odradek.storage.disk import checkpoints

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.front_end.connection import ConnectionOwner
    from odradek.broker.membership.incarnation import BrokerMembership
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.node.node import Node
    from odradek.broker.node.upkeep import Upkeep
    from odradek.broker.remote.dialer import Dialer
    from odradek.broker.settings.listener import Listener

    class HeardLink(Protocol):
        """A link to the controller. ``heard``: how many requests the controller has answered."""

        heard: int


log = logging.getLogger("odradek.broker")

SendDirectory = Callable[[Mapping[UUID, Sequence[int]]], "Deferred[ErrorCode | None]"]
"""Gets partitions by topic id. The promise has None if the controller does not answer."""

CLOSING_S = 0.01
ASSIGN_AGAIN_S = 0.5


class MembershipEnded(OdradekError):
    """The broker cannot join its cluster, or cannot stay in it. The message has the reason."""


class NodeMember:
    """``incarnation.JoiningBroker``: the broker of a node. ``joined`` is resolved at the end of its fence.

    ``membership`` and ``link`` are set at the start. ``send_directory``: says to the controller which replicas are in
    this node's directory.
    """

    # Subclasses use _load and _load_logs.

    membership: BrokerMembership
    link: HeardLink | None = None

    def __init__(self, node: Node, send_directory: SendDirectory) -> None:
        self.node = node
        self._send_directory = send_directory
        config = node.config
        self.times = LifecycleTimes(
            config.broker_session_timeout_ms,
            config.broker_heartbeat_interval_ms,
            config.initial_broker_registration_timeout_ms,
        )
        self.joined: Deferred[Exception | None] = Deferred()
        self.left: Deferred[None] = Deferred()
        self.is_closed = False
        self._replication: NodeReplication | None = None
        self._holds_fetches = False
        self._timer: asyncio.TimerHandle | None = None
        self._load: Deferred[None] | None = None
        """The promise of the end of the load; None before its begin."""

    # --- the start ----------------------------------------------------------------------------------------------

    def new_lifecycle(self) -> BrokerLifecycle:
        """Returns the state machine of this incarnation."""
        return BrokerLifecycle(self._registration(), self.times, self.node.steady_ms())

    def _registration(self) -> NewBroker:
        node, directory = self.node, self.node.directory
        return NewBroker(
            node.node_id,
            node.cluster_id,
            node.new_uuid(),
            tuple(map(self._endpoint, node.listeners)),
            tuple(FeatureRange(name, *levels) for name, levels in SUPPORTED.items()),
            node.config.broker_rack,
            (directory.directory_id,),
            checkpoints.read_clean_epoch(directory.path, directory.files),
        )

    def _endpoint(self, listener: Listener) -> Endpoint:
        """Returns a listener as other nodes and clients reach it."""
        host, port = listener.advertised or (listener.host, listener.port)
        if host in WILDCARDS:
            host = self.node.world.host_name()
        return Endpoint(listener.name, host, port, PROTOCOLS.index(listener.protocol))

    def new_peers(self, catalog: CommittedCatalog) -> Peers:
        """Returns the other nodes of the cluster."""
        node, roles = self.node, self.node.config.roles
        assert roles is not None  # the settings are those of a node of a cluster
        addresses = ClusterAddresses(catalog, roles.voters, roles.inner)
        to_controllers, to_brokers = self._access(at_controller=True), self._access(at_controller=False)

        def dialer_of(host: str, port: int, at_controller: bool) -> Dialer:
            return (to_controllers if at_controller else to_brokers)(host, port)

        times = PeerTimes(node.config.request_timeout_ms, node.config.socket_connection_setup_timeout_ms)
        return Peers(node.loop, addresses, dialer_of, f"broker-{node.node_id}", times)

    def _access(self, *, at_controller: bool) -> Callable[[str, int], Dialer]:
        """Returns how this node reaches controllers, or brokers. Raises ConfigError."""
        node, config, roles = self.node, self.node.config, self.node.config.roles
        assert roles is not None
        if config.has_secured_listener():
            from odradek.broker.remote.access import NodeAccess
            from odradek.broker.settings.tls_settings import node_security

            security = node_security(config, at_controller=at_controller)
            prefix = f"listener.name.{(roles.controller_listeners[0] if at_controller else roles.inner).lower()}."
            return NodeAccess(node.loop, node.world.connect, security, prefix).dialer
        return partial(TcpDialer, node.loop, node.world.connect)

    # --- replicas -----------------------------------------------------------------------------------------------

    def begin_replication(self, peers: Peers, controller_id: int) -> None:
        """Partitions with several replicas follow their leaders from now on."""
        node = self.node
        replication = self._replication = NodeReplication(
            node, peers, controller_id, lambda: self.membership.lifecycle.epoch
        )
        replication.hold_fetches(self._holds_fetches)
        node.directory.new_partition = replication.new_partition
        replication.begin()

    def hold_fetches(self, is_held: bool) -> None:
        """Lets the replicas fetch no more, or again."""
        self._holds_fetches = is_held
        if self._replication is not None:
            self._replication.hold_fetches(is_held)

    def begin_upkeep(self, upkeep: Upkeep) -> None:
        """Stores the high watermarks: after a start, a partition with several replicas begins there."""
        interval_ms = self.node.config.replica_high_watermark_checkpoint_interval_ms
        upkeep.every(interval_ms, self.node.directory.upkeep.checkpoint_high_watermarks)

    # --- the membership -----------------------------------------------------------------------------------------

    @property
    def has_loaded(self) -> bool:
        """Whether the load has begun: logs may be open."""
        return self._load is not None

    def now_ms(self) -> int:
        return self.node.steady_ms()

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.cancel()
        self._timer = self.node.loop.call_later(delay_ms / 1000, work)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def on_caught_up(self) -> None:
        node = self.node
        self._load = Deferred()
        node.directory.broker_epoch = self.membership.lifecycle.epoch
        node.scheduler.start(self._load_logs()).then(self._on_loaded)

    def _load_logs(self) -> Steps[None]:
        """Opens the logs and loads the coordinators."""
        return self.node.loader.load_in_steps()

    def _on_loaded(self, failure: Exception | None) -> None:
        if failure is not None:
            self._end_start(failure)
            return
        assert self._load is not None
        self._load.resolve(None)
        self._assign_directory()

    def _assign_directory(self) -> None:
        """Says in which directory the replicas are, if the controller has another one, because the disk was replaced:
        a replica in a directory that is not online may not lead. Then the broker may leave the fence."""
        if self.is_closed:
            return
        if moved := self._replicas_elsewhere():
            self._send_directory(moved).then(self._on_assigned)
        else:
            self.membership.set_ready()

    def _replicas_elsewhere(self) -> dict[UUID, list[int]]:
        """Returns this broker's replicas that the catalogue has in another directory: partitions by topic id."""
        node, own = self.node, self.node.directory.directory_id
        found: dict[UUID, list[int]] = {}
        for topic in node.catalog.topics():
            for partition in topic.partitions:
                directory = partition.directory(node.node_id)
                if directory is not None and directory != own:
                    found.setdefault(UUID(bytes=topic.id.bytes), []).append(partition.partition_id)
        return found

    def _on_assigned(self, code: ErrorCode | None) -> None:
        if code is ErrorCode.none:
            self.membership.set_ready()
        else:
            self.node.loop.call_later(ASSIGN_AGAIN_S, self._assign_directory)

    def on_unfenced(self) -> None:
        self._end_start(None)

    def _end_start(self, failure: Exception | None) -> None:
        """Ends the start: the broker may serve clients, or the start has failed."""
        if not self.joined.resolved:
            self.joined.resolve(failure)

    def on_end(self, failure: str) -> None:
        """Notes that the controller allows the stop, or that the broker has to end for a reason."""
        if not failure:
            if not self.left.resolved:
                self.left.resolve(None)
        elif not self.joined.resolved:
            self.joined.resolve(MembershipEnded(failure))
        else:
            self.node.dismiss(failure)

    # --- stop ---------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Asks for a controlled shutdown, so that other brokers take over, and waits until the controller allows it.

        The wait ends also if the controller does not answer for the time of a session."""
        link, node = self.link, self.node
        if link is None or node.dismissal or node.failure:
            return
        self.membership.begin_shutdown()
        heard, until_ms = link.heard, node.steady_ms() + self.times.session_ms
        while not self.left.resolved:
            if link.heard != heard:
                heard, until_ms = link.heard, node.steady_ms() + self.times.session_ms
            if node.steady_ms() >= until_ms:
                log.warning("the broker stops without a controlled shutdown: the controller does not answer")
                return
            await asyncio.sleep(CLOSING_S)

    def close(self) -> None:
        """Ends the membership without a word."""
        self.is_closed = True
        if self.link is not None:
            self.membership.leave()
            self.cancel()
        if self._replication is not None:
            self._replication.close()


class MemberRole:
    # Subclasses use _member and _peers.
    """What the roles of all brokers of a cluster do by their member."""

    has_broker_settings = True
    side: ConnectionOwner | None = None
    node: Node
    _member: NodeMember
    _peers: Peers | None = None

    @property
    def peers(self) -> Peers:
        """The other nodes of the cluster, from the start on."""
        assert self._peers is not None
        return self._peers

    def loads_later(self) -> Iterator[Callable[[], object]]:
        return self.node.loaders()

    def hold_fetches(self, is_held: bool) -> None:
        self._member.hold_fetches(is_held)

    async def leave(self) -> None:
        await self._member.leave()

    def has_loaded(self) -> bool:
        return self._member.has_loaded

    def close(self) -> None:
        self._member.close()
        if self._peers is not None:
            self._peers.close()

    def check_broker_name(self, name: str) -> None:
        self.node.check_own_name(name)

    def across_brokers(self) -> ClusterTransactions:
        return ClusterTransactions(self.node.catalog, self.node.node_id, self.peers, self.node.loop.call_soon)

    def overdue_markers(self) -> None:
        """Returns None: the marker of another coordinator may be that of a successor, whose decision counts."""
        return
