"""The role of a broker in a cluster: it follows the controller's metadata log and serves the partitions that it leads.

A start: the node registers and copies the log. When it has all records up to its registration, it opens its logs and
loads its coordinators. Then it asks for the end of its fence, and when the controller has lifted it, it serves clients.
``broker/node/cluster_member`` is its side of the membership.
"""

from __future__ import annotations

import logging
import random
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.membership.incarnation import ClusterMembership
from odradek.broker.membership.observer_log import ObserverLog
from odradek.broker.metadata.committed_catalog import CommittedCatalog
from odradek.broker.metadata.image_brokers import ImageBrokers
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata.stored_catalog import metadata_config
from odradek.broker.node.cluster_member import MemberRole, NodeMember
from odradek.broker.node.forwarded_requests import ForwardingRouter, by_envelopes
from odradek.broker.node.writer_role import NO_CHANGES, StartChanges
from odradek.broker.partitions import directory_identity
from odradek.broker.publishers.order import in_order, no_epochs
from odradek.broker.remote.applied_offsets import AppliedOffsets
from odradek.broker.remote.controller_link import RemoteControllerLink
from odradek.broker.remote.controller_messages import directory_of_replicas
from odradek.broker.remote.forwarder import RequestForwarder
from odradek.broker.remote.observer_quorum import ObserverQuorum
from odradek.broker.remote.peers import CONTROLLER_REQUESTS
from odradek.broker.remote.remote_controller import RemoteController
from odradek.cluster.cluster_catalog import ClusterCatalog
from odradek.cluster.image_delta import delta_between
from odradek.cluster.metadata_log.log_observer import LogObserver
from odradek.cluster.metadata_log.observers import ObserverKey
from odradek.cluster.nodes.lifecycle import reply_timeout_ms
from odradek.core.errors import ConfigError, ErrorCode, KafkaError, StorageError
from odradek.core.ids import NO_OFFSET

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.brokers import Brokers
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.node.node import Node
    from odradek.broker.node.node_role import OpenCatalog
    from odradek.broker.node.upkeep import Upkeep
    from odradek.catalog.records import Id16, MetadataRecord
    from odradek.core.deferred import Deferred

log = logging.getLogger("odradek.broker")


class ClusterRole(MemberRole):
    """``NodeRole`` of a broker of a cluster. ``joined`` is resolved when the controller has lifted the fence."""

    envelope_bytes = 0
    membership: ClusterMembership
    _member: BrokerMember
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
        self._topics_of_snapshot: frozenset[Id16] = frozenset()
        self._member = BrokerMember(node, self)

    # --- start --------------------------------------------------------------------------------------------------

    @property
    def joined(self) -> Deferred[Exception | None]:
        return self._member.joined

    def new_catalog(self) -> ClusterCatalog:
        """Returns an empty catalogue. It places no replicas, so it needs no chance."""
        return ClusterCatalog(lambda data: UUID(bytes=data), random.Random(0), self.node.config.text)

    def new_controller(self) -> RemoteController:
        self.controller = RemoteController(
            self.node, self.has_loaded, self.forwarder, self.node.loop, lambda: self.membership.lifecycle.epoch
        )
        return self.controller

    def new_producer_ids(self) -> ProducerIds:
        return self.controller.producer_ids

    def open_catalog(self) -> OpenCatalog:
        """Opens the copy of the metadata log. The catalogue has the records of its snapshot."""
        node, directory = self.node, self.node.directory
        if directory_identity.mark_of(directory.path, directory.files) is not None:
            raise StorageError(
                f"{directory.path} is the directory of a lone broker or of a controller, and this node is a broker of "
                "a cluster: choose another directory, or convert that of a lone broker with `odradek cluster convert`"
            )
        catalog = CommittedCatalog(self.new_catalog())
        try:
            copy = self.copy = ObserverLog.open_copy(
                directory.path, catalog.replay, (self.controller_id,), now_ms=node.now_ms, files=directory.files,
                config=metadata_config(node.config),
            )  # fmt: skip
        except (KafkaError, OSError, ValueError) as error:
            raise StorageError(f"the metadata log in {directory.path} cannot be read: {error}") from error
        directory.adopt_metadata_log(copy.metadata_log)
        directory.opener.may_be_new = self._may_be_new
        self._topics_of_snapshot = frozenset(catalog.state.topics_by_id)
        self.applied = AppliedOffsets(node.loop)
        copy.on_applied = self.applied.move
        self._peers = self._member.new_peers(catalog)
        self.forwarder = RequestForwarder(self.peers, self.controller_id, self.applied, node.steady_ms)
        catalog.begin_at(copy.applied.end_offset, copy.metadata_log.read_removed)
        self._observer = LogObserver(
            copy, copy.leader_epoch, copy.applied.end_offset or NO_OFFSET, node.steady_ms(), is_strict=True
        )
        return catalog, copy.metadata_log, ObserverQuorum(copy, self._observer)

    def _may_be_new(self, topic_id: Id16) -> bool:
        """Returns whether a topic may have come while this node was away: its copy of the log did not have it."""
        if topic_id in self._topics_of_snapshot:
            return False
        return self._known_topics is None or topic_id not in self._known_topics

    @cached_property
    def _known_topics(self) -> set[Id16] | None:
        return self.copy.topics_at_open()

    def new_router(self) -> ForwardingRouter:
        return ForwardingRouter(self.node, by_envelopes(self.forwarder))

    def new_loader(self) -> MetadataLoader:
        node = self.node
        return MetadataLoader(node.catalog, in_order(node, no_epochs))

    def follow_catalog(self) -> None:
        """Begins to join the cluster."""
        node, member = self.node, self._member
        lifecycle = member.new_lifecycle()
        member.begin_replication(self.peers, self.controller_id)
        key = ObserverKey(node.node_id, node.directory.directory_id)
        link = member.link = RemoteControllerLink(
            self.peers, self.controller_id, key, node.cluster_id, reply_timeout_ms(member.times)
        )
        self.membership = ClusterMembership(member, link, lifecycle, self._observer, self.copy)
        member.membership = self.membership
        self.membership.begin()

    def new_brokers(self) -> Brokers:
        return ImageBrokers(self.node.catalog, self.node.listeners, self.node.new_uuid)

    def begin_upkeep(self, upkeep: Upkeep) -> None:
        self._member.begin_upkeep(upkeep)


class BrokerMember(NodeMember):
    """``incarnation.ClusterMember``: a broker that follows the log of a controller in another process."""

    def __init__(self, node: Node, role: ClusterRole) -> None:
        super().__init__(node, self._to_controller)
        self._role = role

    def _to_controller(self, moved: Mapping[UUID, Sequence[int]]) -> Deferred[ErrorCode | None]:
        role, node = self._role, self.node
        request = directory_of_replicas(
            node.node_id, self.membership.lifecycle.epoch, node.directory.directory_id, moved
        )
        return role.peers.send(role.controller_id, request, reply_timeout_ms(self.times), channel=CONTROLLER_REQUESTS)

    def start(self, steps: Steps[None]) -> Deferred[Exception | None]:
        return self.node.scheduler.start(steps)

    def commit(self, offset: int, changes: Sequence[MetadataRecord]) -> Steps[None]:
        """Applies records. Before the load there are no publishers; during the load they wait."""
        node = self.node
        if self._load is None:
            node.catalog.apply(offset, changes)
            return
        yield self._load
        yield from self._role.controller.apply(node.loader.commit(offset, changes))

    def replace(self, values: Iterator[bytes]) -> Steps[None]:
        """Loads a snapshot. After the load, the publishers get what differs."""
        node = self.node
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
        node = self.node
        before = node.catalog.state
        assert isinstance(before, ClusterCatalog)
        delta = yield from delta_between(before, state)
        node.catalog.restore(state, self._role.copy.applied.end_offset)
        yield from node.loader.publish(delta)
