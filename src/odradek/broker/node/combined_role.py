"""The role of a node that is broker and controller: other nodes join its cluster, and it serves clients.

The controller begins first, because the broker registers with it, as every broker of the cluster does. The catalogue is
that of the controller: one metadata log, one loader. A publisher of the broker gets no change before the broker has
registered; then it gets the whole image, as in ``cluster_role``. A kill -9 ends both roles. As in Kafka, the next start
registers the broker when the session of the former incarnation is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from odradek.broker.controller.write_events import QuorumController
from odradek.broker.membership.incarnation import BrokerMembership
from odradek.broker.metadata.loader import MetadataLoader
from odradek.broker.metadata_log import bootstrap
from odradek.broker.node.cluster_member import MemberRole, NodeMember
from odradek.broker.node.controller_role import ControllerRole
from odradek.broker.node.controller_side import ControllerSide
from odradek.broker.node.forwarded_requests import ForwardingRouter
from odradek.broker.node.writer_role import NO_CHANGES, StartChanges
from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.publishers.broker_settings import BrokerSettings
from odradek.broker.publishers.order import in_order, no_epochs
from odradek.cluster.control import Directories, ReplicaDirectory
from odradek.cluster.nodes.lifecycle import HeartbeatReply
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.storage.disk import checkpoints

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.broker.controller.registered_brokers import RegisteredBrokers
    from odradek.broker.loop.scheduler import Steps
    from odradek.broker.metadata.catalog_view import Publisher
    from odradek.broker.node.node import Node
    from odradek.broker.node.node_role import OpenCatalog
    from odradek.broker.node.upkeep import Upkeep
    from odradek.cluster.control import HeartbeatOutcome
    from odradek.cluster.nodes.lifecycle import BrokerLifecycle
    from odradek.cluster.nodes.registrations import NewBroker
    from odradek.cluster.nodes.sessions import BrokerHeartbeat
    from odradek.core.deferred import Deferred


_EARLY = (BrokerSettings, PrivateDirectory)
"""Publishers that a controller has, too. They do not wait for the broker."""


class CombinedRole(MemberRole, ControllerRole):
    """``NodeRole`` of a broker that is the only controller of its cluster, too. ``side``: the controller as its own
    listeners see it. ``joined`` is resolved when the controller has lifted the broker's fence."""

    envelope_bytes = 0
    side: ControllerSide
    membership: BrokerMembership
    controller: LocalController
    _lifecycle: BrokerLifecycle

    def __init__(self, node: Node, changes: StartChanges = NO_CHANGES) -> None:
        super().__init__(node, changes)
        self._member = LocalMember(node, self)
        self.joined = self._member.joined

    @property
    def controller_id(self) -> int:
        return self.node.node_id

    # --- start --------------------------------------------------------------------------------------------------

    def new_controller(self) -> LocalController:
        self.controller = LocalController(self.node, self)
        return self.controller

    def open_catalog(self) -> OpenCatalog:
        directory = self.node.directory
        try:
            bootstrap.note_both_roles(directory.path, directory.files)
        except OSError as error:
            raise StorageError(f"{directory.path} cannot be used: {error.strerror or error}") from error
        return super().open_catalog()

    def new_router(self) -> ForwardingRouter:
        self.side = ControllerSide(self.node, _AtController(self), ControllerRole.envelope_bytes)
        return ForwardingRouter(self.node, self.side.serve_forwarded)

    def loader_with(self, own: list[Publisher]) -> MetadataLoader:
        node = self.node
        order = in_order(node, no_epochs)
        early = (node.quotas, node.authorizer, node.tokens, node.catalog)
        waiting = [one for one in order if one not in early and not isinstance(one, _EARLY)]
        return MetadataLoader(node.catalog, [*own, *order], waiting)

    def begin_recovery(self) -> None:
        """Removes the mark of a clean stop: the metadata log is written from now on. The broker has read the mark, and
        opens its logs later."""
        directory = self.node.directory
        checkpoints.remove_clean_shutdown(directory.path, directory.files)

    def follow_catalog(self) -> None:
        """Begins the controller, then registers the broker."""
        node, member = self.node, self._member
        self._lifecycle = member.new_lifecycle()  # it has the epoch in the mark of a clean stop
        own = node.catalog.registered_brokers().get(node.node_id)
        if not node.directory.clean and own is not None and own.is_fenced:
            # The former incarnation has ended before its broker served: it may have made no log of a new topic.
            node.directory.opener.may_be_new = lambda _: True
        self._peers = member.new_peers(node.catalog)
        member.begin_replication(self._peers, self.controller_id)
        super().follow_catalog()
        link = member.link = LocalControllerLink(self.registered_brokers, node.loop.call_soon)
        self.membership = member.membership = BrokerMembership(
            member, link, self._lifecycle, lambda: node.catalog.log_end_offset
        )
        self.membership.begin()

    def begin_upkeep(self, upkeep: Upkeep) -> None:
        super().begin_upkeep(upkeep)
        self._member.begin_upkeep(upkeep)

    # --- stop ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        MemberRole.close(self)
        ControllerRole.close(self)


class _AtController:
    """``api.ControllerRoleServices``: what requests at the controller's listeners ask."""

    has_broker_settings = False

    def __init__(self, role: CombinedRole) -> None:
        self._role = role

    @property
    def registered_brokers(self) -> RegisteredBrokers:
        return self._role.registered_brokers

    def check_broker_name(self, name: str) -> None:
        ControllerRole.check_broker_name(self._role, name)


class LocalController(QuorumController):
    """The controller of a node with both roles."""

    def __init__(self, node: Node, role: CombinedRole) -> None:
        super().__init__(node)
        self._role = role

    def allocate_producer_ids(self, broker_id: int) -> Deferred[None]:
        """As ``QuorumController``. The record has the broker epoch, as in every cluster."""
        role = self._role
        allocated = role.registered_brokers.submit(
            lambda control, _: control.allocate_producer_ids(broker_id, role.membership.lifecycle.epoch)
        )
        return allocated.map(_without_ids)


class LocalMember(NodeMember):
    """``incarnation.JoiningBroker``: a broker whose controller is in the same process."""

    def __init__(self, node: Node, role: CombinedRole) -> None:
        super().__init__(node, self._to_controller)
        self._role = role

    def _to_controller(self, moved: Mapping[UUID, Sequence[int]]) -> Deferred[ErrorCode | None]:
        own = self.node.directory.directory_id
        each = [ReplicaDirectory(topic_id, index, own) for topic_id, indexes in moved.items() for index in indexes]
        owner = self.node.node_id, self.membership.lifecycle.epoch
        assigned = self._role.registered_brokers.submit(lambda control, _: control.assign_directories(*owner, each))
        return assigned.map(_code_or_none)

    def _load_logs(self) -> Steps[None]:
        """The controller goes on meanwhile: only the image at the begin and the last changes are taken between two of
        its events."""
        controller, loader = self._role.controller, self.node.loader
        yield from controller.apply(loader.begin_waiting())
        yield from loader.load_waiting()
        yield from controller.apply(loader.end_waiting())


class LocalControllerLink:
    """``incarnation.SessionLink`` to the controller of the same process. ``soon``: calls a function after the present
    one."""

    def __init__(self, brokers: RegisteredBrokers, soon: Callable[[Callable[[], None]], object]) -> None:
        self.heard = 0
        self._brokers = brokers
        self._soon = soon

    def register(self, asked: NewBroker, answer: Callable[[int | ErrorCode], None]) -> None:
        registered = self._brokers.submit(lambda control, moment: control.register_broker(asked, moment))
        registered.then(lambda epoch: self._answer(_code_of(epoch) or epoch, answer))

    def beat(self, asked: BrokerHeartbeat, answer: Callable[[HeartbeatReply | ErrorCode], None]) -> None:
        self._brokers.hear(asked.broker_id, asked.broker_epoch)
        heard = self._brokers.submit(lambda control, _: control.heartbeat(asked, Directories()))
        heard.then(lambda reply: self._answer(_code_of(reply) or _answer_of(reply), answer))

    def _answer(self, value: object, answer: Callable[..., None]) -> None:
        def give() -> None:
            self.heard += 1
            answer(value)

        self._soon(give)


def _code_or_none(outcome: object) -> ErrorCode | None:
    return _code_of(outcome) or ErrorCode.none


def _code_of(outcome: object) -> ErrorCode | None:
    """Returns the error of a refused request; None for a reply."""
    if not isinstance(outcome, Exception):
        return None
    return outcome.code if isinstance(outcome, KafkaError) else ErrorCode.unknown_server_error


def _answer_of(reply: HeartbeatOutcome) -> HeartbeatReply:
    return HeartbeatReply(reply.is_caught_up, reply.is_fenced, reply.should_shut_down)


def _without_ids(allocated: object) -> None:
    """The broker reads the ids from the record."""
    if isinstance(allocated, Exception):
        raise allocated
