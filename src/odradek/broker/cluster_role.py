"""The role of a broker in a cluster: it follows the controller's metadata log and serves the partitions that it leads.

A start: the node registers and copies the log. When it has all records up to its registration, it opens its logs and
loads its coordinators. Then it asks for the end of its fence, and when the controller has lifted it, it serves clients.
``broker/membership/incarnation`` has the order; this module does what it asks for.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.forwarded_requests import ForwardingRouter
from odradek.broker.loop.scheduler import Steps
from odradek.broker.membership.incarnation import ClusterMembership
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata.brokers import ImageBrokers
from odradek.broker.metadata.committed_catalog import CommittedCatalog
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.stored_catalog import metadata_config
from odradek.broker.partitions import directory_identity
from odradek.broker.publishers.order import in_order
from odradek.broker.remote.applied_offsets import AppliedOffsets
from odradek.broker.remote.controller_link import RemoteControllerLink
from odradek.broker.remote.controller_messages import directory_of_replicas
from odradek.broker.remote.dialer import TcpDialer
from odradek.broker.remote.forwarder import RequestForwarder
from odradek.broker.remote.observer_quorum import ObserverQuorum
from odradek.broker.remote.peers import ClusterAddresses, Peers
from odradek.broker.remote.remote_controller import RemoteController
from odradek.broker.replication.node_replication import NodeReplication
from odradek.broker.writer_role import NO_CHANGES, StartChanges
from odradek.catalog.features import SUPPORTED
from odradek.cluster.cluster_catalog import MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION, ClusterCatalog
from odradek.cluster.image_delta import delta_between
from odradek.cluster.lifecycle import BrokerLifecycle, LifecycleTimes, reply_timeout_ms
from odradek.cluster.log_observer import LogObserver
from odradek.cluster.observers import ObserverKey
from odradek.cluster.records import Endpoint, FeatureRange
from odradek.cluster.registrations import NewBroker
from odradek.core.deferred import Deferred
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, OdradekError, StorageError
from odradek.core.ids import NO_OFFSET
from odradek.security.protocols import PROTOCOLS
from odradek.storage.disk import checkpoints

if TYPE_CHECKING:
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.node import Node
    from odradek.broker.remote.dialer import Dialer
    from odradek.broker.settings.listener import Listener
    from odradek.broker.upkeep import Upkeep
    from odradek.catalog.records import Id16, MetadataRecord

log = logging.getLogger("odradek.broker")

CLOSING_S = 0.01
ASSIGN_AGAIN_S = 0.5
_WILDCARDS = ("", "0.0.0.0", "::")


class MembershipEnded(OdradekError):
    """The broker cannot join its cluster, or cannot stay in it. The message has the reason."""


class ClusterRole:
    """``node.NodeRole``: a broker of a cluster. ``joined`` is resolved when the controller has lifted the fence."""

    envelope_bytes = 0
    has_broker_settings = True
    membership: ClusterMembership
    controller: RemoteController
    copy: ObserverLog
    """The copy of the metadata log."""
    applied: AppliedOffsets
    forwarder: RequestForwarder

    def __init__(self, node: Node, changes: StartChanges = NO_CHANGES) -> None:
        if changes.delete_configs or changes.first_users is not None:
            raise ConfigError(
                f"{'--delete-config' if changes.delete_configs else '--add-scram'}: a broker of a cluster does not "
                "change the catalogue at its start: give the option to the controller"
            )
        self.node = node
        config = node.config
        assert config.roles is not None  # the settings are those of a node of a cluster
        self.controller_id = config.roles.controller[0]
        self._roles = config.roles
        self._topics_of_snapshot: frozenset[Id16] = frozenset()
        self.joined: Deferred[Exception | None] = Deferred()
        self._left: Deferred[None] = Deferred()
        self._link: RemoteControllerLink | None = None
        self._peers: Peers | None = None
        self._copy: ObserverLog | None = None
        self._replication: NodeReplication | None = None
        self._member = BrokerMember(self)
        self.is_closed = False
        self.times = LifecycleTimes(
            config.broker_session_timeout_ms,
            config.broker_heartbeat_interval_ms,
            config.initial_broker_registration_timeout_ms,
        )

    # --- start --------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> Peers:
        """The other nodes of the cluster, after ``open_catalog``."""
        assert self._peers is not None
        return self._peers

    def new_catalog(self) -> ClusterCatalog:
        """Returns an empty catalogue. It places no replicas, so it needs no chance."""
        settings = {name: self.node.config.text(name) or "" for name in (MIN_IN_SYNC_REPLICAS, UNCLEAN_ELECTION)}
        return ClusterCatalog(lambda data: UUID(bytes=data), random.Random(0), settings)

    def new_controller(self) -> RemoteController:
        self.controller = RemoteController(self.node, self.has_loaded)
        return self.controller

    def open_catalog(self) -> None:
        """Opens the copy of the metadata log. The catalogue has the records of its snapshot."""
        node, directory = self.node, self.node.directory
        if directory_identity.mark_of(directory.path, directory.files) is not None:
            raise StorageError(
                f"{directory.path} is the directory of a lone broker or of a controller, and this node is a broker of "
                "a cluster: choose another directory, or convert that of a lone broker with `odradek cluster convert`"
            )
        catalog = node.catalog = CommittedCatalog(self.new_catalog())
        try:
            copy = self._copy = ObserverLog.open_copy(
                directory.path, catalog.replay, (self.controller_id,), now_ms=node.now_ms, files=directory.files,
                config=metadata_config(node.config),
            )  # fmt: skip
        except (KafkaError, OSError, ValueError) as error:
            raise StorageError(f"the metadata log in {directory.path} cannot be read: {error}") from error
        self.copy, node.metadata_log = copy, copy.metadata_log
        node.metadata_log.on_snapshot_due = self.controller.begin_snapshot
        directory.adopt_metadata_log(node.metadata_log)
        directory.may_be_new = self._may_be_new
        self._topics_of_snapshot = frozenset(catalog.state.topics_by_id)
        self.applied = AppliedOffsets(node.loop)
        copy.on_applied = self.applied.move
        addresses = ClusterAddresses(catalog, self._roles.voters, self._roles.inner)
        self._peers = Peers(node.loop, addresses, self._new_dialer, f"broker-{node.node_id}")
        self.forwarder = RequestForwarder(self.peers, self.controller_id, self.applied, node.steady_ms)
        catalog.begin_at(copy.applied.end_offset, node.metadata_log.read_removed)
        self._observer = LogObserver(copy, copy.leader_epoch, copy.applied.end_offset or NO_OFFSET, node.steady_ms())
        node.quorum = ObserverQuorum(copy, self._observer)

    def _may_be_new(self, topic_id: Id16) -> bool:
        """Returns whether a topic may have come while this node was away: its copy of the log did not have it."""
        if topic_id in self._topics_of_snapshot:
            return False
        return self._known_topics is None or topic_id not in self._known_topics

    @cached_property
    def _known_topics(self) -> set[Id16] | None:
        return self.copy.topics_at_open()

    def new_router(self) -> ForwardingRouter:
        return ForwardingRouter(self.node, self.forwarder)

    def follow_catalog(self) -> None:
        """Begins to join the cluster."""
        node = self.node
        lifecycle = BrokerLifecycle(self._registration(), self.times, node.steady_ms())
        node.producer_ids = self.controller.begin(self.forwarder, node.loop, lambda: lifecycle.epoch)
        replication = self._replication = NodeReplication(
            node, self.peers, self.controller_id, lambda: self.membership.lifecycle.epoch
        )
        node.directory.new_partition = replication.new_partition
        replication.begin()
        node.loader = MetadataLoader(node.catalog, in_order(node, _no_epochs))
        key = ObserverKey(node.node_id, node.directory.directory_id)
        self._link = RemoteControllerLink(
            self.peers, self.controller_id, key, node.cluster_id, reply_timeout_ms(self.times)
        )
        self.membership = ClusterMembership(self._member, self._link, lifecycle, self._observer, self.copy)
        self.membership.begin()

    def new_brokers(self) -> Brokers:
        return ImageBrokers(self.node.catalog, self.node.listeners, self.node.new_uuid)

    def begin_upkeep(self, upkeep: Upkeep) -> None:
        """Stores the high watermarks: after a start, a partition with several replicas begins there."""
        interval_ms = self.node.config.replica_high_watermark_checkpoint_interval_ms
        upkeep.every(interval_ms, self.node.directory.checkpoint_high_watermarks)

    def loads_later(self) -> Iterator[Callable[[], object]]:
        return self.node.loaders()

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
        if host in _WILDCARDS:
            host = self.node.world.host_name()
        return Endpoint(listener.name, host, port, PROTOCOLS.index(listener.protocol))

    def _new_dialer(self, host: str, port: int) -> Dialer:
        """Returns how this node opens connections to an address."""
        return TcpDialer(self.node.loop, self.node.world.connect, host, port)

    def end_start(self, failure: Exception | None) -> None:
        """Ends the start: the broker may serve clients, or the start has failed."""
        if not self.joined.resolved:
            self.joined.resolve(failure)

    def end_membership(self, failure: str) -> None:
        """Notes that the controller allows the stop, or that the broker has to end for a reason."""
        if not failure:
            if not self._left.resolved:
                self._left.resolve(None)
        elif not self.joined.resolved:
            self.joined.resolve(MembershipEnded(failure))
        elif not self.node.failure and not self.node.dismissal:
            self.node.dismissal = failure
            self.node.on_failure()

    # --- stop ---------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Asks for a controlled shutdown, so that other brokers take over, and waits until the controller allows it.

        The wait ends also if the controller does not answer for the time of a session."""
        link = self._link
        if link is None or self.node.dismissal or self.node.failure:
            return
        self.membership.begin_shutdown()
        heard, until_ms = link.heard, self.node.steady_ms() + self.times.session_ms
        while not self._left.resolved:
            if link.heard != heard:
                heard, until_ms = link.heard, self.node.steady_ms() + self.times.session_ms
            if self.node.steady_ms() >= until_ms:
                log.warning("the broker stops without a controlled shutdown: the controller does not answer")
                return
            await asyncio.sleep(CLOSING_S)

    def has_loaded(self) -> bool:
        return self._member.has_loaded

    def replicas_elsewhere(self) -> dict[UUID, list[int]]:
        """Returns this broker's replicas that the catalogue has in another directory: partitions by topic id."""
        node, own = self.node, self.node.directory.directory_id
        found: dict[UUID, list[int]] = {}
        for topic in node.catalog.topics():
            for partition in topic.partitions:
                directory = partition.directory(node.node_id)
                if directory is not None and directory != own:
                    found.setdefault(UUID(bytes=topic.id.bytes), []).append(partition.partition_id)
        return found

    def close(self) -> None:
        self.is_closed = True
        if self._link is not None:
            self.membership.leave()
            self._member.cancel()
        if self._replication is not None:
            self._replication.close()
        if self._peers is not None:
            self._peers.close()

    def give_up(self) -> None:
        self.close()
        self.node.scheduler.stop()
        if self._copy is not None:
            self._copy.metadata_log.abandon()

    # --- what requests ask --------------------------------------------------------------------------------------

    def check_broker_name(self, name: str) -> None:
        self.node.check_own_name(name)

    def check_transactions(self) -> None:
        """Raises KafkaError (COORDINATOR_NOT_AVAILABLE): no node of a cluster is the coordinator."""
        _report_missing_coordinator()
        raise KafkaError(ErrorCode.coordinator_not_available)

    def overdue_markers(self) -> None:
        """Returns None: the marker of another coordinator may be that of a successor, whose decision counts."""
        return


@cache
def _report_missing_coordinator() -> None:
    log.warning(
        "transactional producers get COORDINATOR_NOT_AVAILABLE: this release has no transactions in a cluster. Use a "
        "lone broker for them: leave process.roles out"
    )


def _no_epochs() -> None:
    """Begins no leader epochs: only the controller does, also after an unclean stop."""


class BrokerMember:
    """``incarnation.ClusterMember``: a broker, as its membership sees it."""

    def __init__(self, role: ClusterRole) -> None:
        self._role = role
        self._node = role.node
        self._timer: asyncio.TimerHandle | None = None
        self._load: Deferred[None] | None = None
        """The promise of the end of the load; None before its begin."""

    @property
    def has_loaded(self) -> bool:
        """Whether the load has begun: logs may be open."""
        return self._load is not None

    def now_ms(self) -> int:
        return self._node.steady_ms()

    def call_after(self, delay_ms: int, work: Callable[[], None]) -> None:
        self.cancel()
        self._timer = self._node.loop.call_later(delay_ms / 1000, work)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        return self._node.scheduler.start(steps)

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        """Applies records. Before the load there are no publishers; during the load they wait."""
        node = self._node
        if self._load is None:
            node.catalog.apply(offset, changes)
            return
        yield self._load
        yield from self._role.controller.apply(node.loader.commit(offset, changes))

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        """Loads a snapshot. After the load, the publishers get what differs."""
        node = self._node
        state = self._role.new_catalog()
        for value in values:
            state.replay(-1, value)
            yield None
        if self._load is None:
            node.catalog.restore(state, self._role.copy.applied.end_offset)
            return
        yield self._load
        yield from self._role.controller.apply(self._replace(state))
        self._role.applied.move(self._role.copy.applied.end_offset)

    def _replace(self, state: ClusterCatalog) -> Steps[None]:
        node = self._node
        before = node.catalog.state
        assert isinstance(before, ClusterCatalog)
        delta = yield from delta_between(before, state)
        node.catalog.restore(state, self._role.copy.applied.end_offset)
        yield from node.loader.publish(delta)

    def on_caught_up(self) -> None:
        node = self._node
        self._load = Deferred()
        node.directory.broker_epoch = self._role.membership.lifecycle.epoch
        self.start(node.loader.load_in_steps()).then(self._on_loaded)

    def _on_loaded(self, failure: Exception | None) -> None:
        if failure is not None:
            self._role.end_start(failure)
            return
        assert self._load is not None
        self._load.resolve(None)
        self._assign_directory()

    def _assign_directory(self) -> None:
        """Says in which directory the replicas are, if the controller has another one, because the disk was replaced:
        a replica in a directory that is not online may not lead. Then the broker may leave the fence."""
        role = self._role
        if role.is_closed:
            return
        if not (moved := role.replicas_elsewhere()):
            role.membership.set_ready()
            return
        epoch, directory = role.membership.lifecycle.epoch, self._node.directory.directory_id
        request = directory_of_replicas(self._node.node_id, epoch, directory, moved)
        role.peers.send(role.controller_id, request, reply_timeout_ms(role.times)).then(self._on_assigned)

    def _on_assigned(self, code: ErrorCode | None) -> None:
        if code is ErrorCode.none:
            self._role.membership.set_ready()
        else:
            self._node.loop.call_later(ASSIGN_AGAIN_S, self._assign_directory)

    def on_unfenced(self) -> None:
        self._role.end_start(None)

    def on_end(self, failure: str) -> None:
        self._role.end_membership(failure)
