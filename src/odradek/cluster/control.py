"""The controller's decisions about brokers: registrations, heartbeats, fences and the elections that follow.

Each operation has two halves. The first checks the request and generates records and the response, in steps, and
returns both as a ``ControlResult``. The second, ``on_applied`` for each committed record and
``ControlResult.on_committed``, changes the sessions. Between both halves the quorum commits the records. No other
operation comes between, because the controller handles one write event at a time. A new operation is one method, which
its handler passes to ``broker/controller/registered_brokers.RegisteredBrokers.submit``.

Time is passed in, in milliseconds of a clock that only goes forward.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from odradek.catalog.records import Id16, MetadataRecord, ProducerIdsRecord
from odradek.catalog.state import PRODUCER_ID_BLOCK, RecordSteps
from odradek.cluster.cluster_catalog import ClusterCatalog, ControlResult, ControlSteps, Moment
from odradek.cluster.nodes.registrations import NewBroker, NewController, offline_directories
from odradek.cluster.nodes.sessions import BrokerHeartbeat, BrokerSessions, BrokerState
from odradek.cluster.partitions.elections import Election
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState, NewestRequests, change_isrs
from odradek.cluster.partitions.leader_elections import (
    ElectionResults,
    balance_leaders,
    elect_leaders,
    elect_unclean_leaders,
)
from odradek.cluster.partitions.partition_changes import BrokerEvent, PartitionChanges
from odradek.cluster.records import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_NODE, NO_OFFSET
from odradek.core.pace import Pace

MAX_PRODUCER_ID = (1 << 63) - 1


class Directories(NamedTuple):
    """What a heartbeat says about log directories. ``cordoned``: None while the broker does not know."""

    offline: tuple[Id16, ...] = ()
    cordoned: tuple[Id16, ...] | None = None


class ReplicaDirectory(NamedTuple):
    """The directory of a broker's replica."""

    topic_id: Id16
    partition_id: int
    directory: Id16


@dataclass(frozen=True, slots=True)
class HeartbeatOutcome:
    """What a heartbeat has changed at the controller: the states before and after it."""

    is_caught_up: bool
    before: BrokerState
    after: BrokerState

    @property
    def is_fenced(self) -> bool:
        return self.after.is_fenced

    @property
    def should_shut_down(self) -> bool:
        return self.after is BrokerState.SHUTDOWN_NOW


class ClusterControl:
    """The active controller. ``session_ms``: broker.session.timeout.ms. ``activate`` comes first."""

    def __init__(self, catalog: ClusterCatalog, cluster_id: str, session_ms: int) -> None:
        self.catalog = catalog
        self.cluster_id = cluster_id
        self.sessions = BrokerSessions(session_ms)
        self._changes = PartitionChanges(catalog)
        self._isr_requests = NewestRequests()

    def activate(self, now_ms: int) -> None:
        """Begins the sessions of the registered brokers: this controller has heard none of them yet."""
        self.sessions.activate(self.catalog.nodes.brokers.values(), now_ms)

    def renew_lost_sessions(self, now_ms: int) -> None:
        """Begins a session for each unfenced broker without one, after a fence that could not be written."""
        for broker in self.catalog.nodes.brokers.values():
            if not broker.is_fenced and not self.sessions.is_valid(broker.broker_id, broker.epoch, now_ms):
                self.sessions.hear(broker.broker_id, broker.epoch, now_ms)

    # --- registrations ------------------------------------------------------------------------------------------

    def register_broker(self, request: NewBroker, moment: Moment) -> ControlSteps[int]:
        """Generates the records of a registration, the last one is the broker's. The response is its broker epoch.

        Raises KafkaError."""
        next_offset, now_ms = moment.next_offset, moment.now_ms
        nodes = self.catalog.nodes
        existing = nodes.brokers.get(request.broker_id)
        has_session = existing is not None and self.sessions.is_valid(existing.broker_id, existing.epoch, now_ms)
        record = nodes.new_broker(request, self.cluster_id, self.catalog.features, next_offset, has_session=has_session)
        generated: list[MetadataRecord] = []
        if existing is None or existing.incarnation_id != request.incarnation_id:
            is_clean = (
                existing is not None and request.previous_epoch is not None and existing.epoch == request.previous_epoch
            )
            generated = yield from self._end_incarnation(request.broker_id, is_clean=is_clean)
        return ControlResult([*generated, record], record.broker_epoch)

    def _end_incarnation(self, broker_id: int, *, is_clean: bool) -> RecordSteps:
        """Removes an earlier incarnation from each ISR. After an unclean stop its log may have lost records, so it is
        not eligible any more."""
        if self.catalog.has_eligible_leaders and not is_clean:
            return self._changes.after(
                BrokerEvent(unclean=broker_id),
                lambda partition: broker_id in partition.isr or broker_id in partition.elr,
            )
        return self._without(broker_id)

    def unregister(self, broker_id: int) -> ControlSteps[None]:
        """Generates the records that remove a broker. Raises KafkaError (BROKER_ID_NOT_REGISTERED)."""
        record = self.catalog.nodes.unregistered(broker_id)
        generated = yield from self._changes.after(
            BrokerEvent(broker_id), lambda partition: broker_id in partition.isr or broker_id in partition.elr
        )
        return ControlResult([*generated, record], None)

    def register_controller(self, request: NewController) -> ControlSteps[None]:
        """Generates the record of a controller. Raises KafkaError."""
        yield from ()
        return ControlResult([self.catalog.nodes.new_controller(request)], None)

    def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ControlSteps[tuple[int, int]]:
        """Generates the record of a producer id block. The response is the first id and the number.

        Raises KafkaError (STALE_BROKER_EPOCH, UNKNOWN_SERVER_ERROR)."""
        yield from ()
        self.catalog.nodes.check_epoch(broker_id, broker_epoch)
        first = self.catalog.next_producer_id
        if first > MAX_PRODUCER_ID - PRODUCER_ID_BLOCK:
            raise KafkaError(ErrorCode.unknown_server_error, "All producer ids are allocated.")
        record = ProducerIdsRecord(broker_id, broker_epoch, first + PRODUCER_ID_BLOCK)
        return ControlResult([record], (first, PRODUCER_ID_BLOCK))

    # --- heartbeats ---------------------------------------------------------------------------------------------

    def hear(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Notes that a heartbeat has arrived, before anything is checked: the session goes on while the controller is
        busy. Only registered incarnations have a session."""
        broker = self.catalog.nodes.brokers.get(broker_id)
        if broker is not None and broker.epoch == broker_epoch:
            self.sessions.hear(broker_id, broker_epoch, now_ms)

    def heartbeat(self, request: BrokerHeartbeat, directories: Directories) -> ControlSteps[HeartbeatOutcome]:
        """Generates the records of a heartbeat. Raises KafkaError (STALE_BROKER_EPOCH)."""
        broker_id, epoch = request.broker_id, request.broker_epoch
        nodes = self.catalog.nodes
        broker = nodes.check_epoch(broker_id, epoch)
        registered_at = nodes.registered_at[broker_id]
        before, after = self.sessions.next_state(request, registered_at, lambda: self.leads(broker_id))
        reply = HeartbeatOutcome(request.metadata_offset >= registered_at, before, after)
        generated: list[MetadataRecord] = []
        if after is not before:
            generated = yield from self._enter(after, broker_id, epoch)
        if offline := offline_directories(broker, directories.offline):
            generated += yield from self._changes.after(
                BrokerEvent(broker_id),
                lambda partition: broker_id in partition.replicas and partition.directory(broker_id) in offline,
            )
            left = tuple(one for one in broker.directories if one not in offline)
            generated.append(BrokerRegistrationChangeRecord(broker_id, epoch, directories=left))
        cordoned = directories.cordoned
        if cordoned is not None and (broker.cordoned is None or set(broker.cordoned) != set(cordoned)):
            generated.append(BrokerRegistrationChangeRecord(broker_id, epoch, cordoned=cordoned))
        if any(isinstance(record, BrokerRegistrationChangeRecord) for record in generated):
            request = request._replace(metadata_offset=NO_OFFSET)  # as in Kafka: the next heartbeat says the offset
        return ControlResult(generated, reply, lambda end_offset: self._end_heartbeat(request, reply, end_offset))

    def _enter(self, state: BrokerState, broker_id: int, epoch: int) -> RecordSteps:
        if state is BrokerState.UNFENCED:
            record: MetadataRecord = BrokerRegistrationChangeRecord(broker_id, epoch, is_fenced=False)
            generated = yield from self._changes.after(
                BrokerEvent(added=broker_id), lambda partition: partition.leader == NO_NODE
            )
            return [record, *generated]
        if state is BrokerState.CONTROLLED_SHUTDOWN:
            began = (
                []
                if self.catalog.nodes.brokers[broker_id].is_shutting_down
                else [BrokerRegistrationChangeRecord(broker_id, epoch, begins_shutdown=True)]
            )
            return [*began, *(yield from self._without(broker_id))]
        return (yield from self._fence(broker_id, epoch))

    def _end_heartbeat(self, request: BrokerHeartbeat, reply: HeartbeatOutcome, end_offset: int) -> None:
        """Notes the heartbeat after its records are committed. ``end_offset``: the offset of the newest record."""
        self.sessions.touch(request.broker_id, is_fenced=reply.is_fenced, metadata_offset=request.metadata_offset)
        if reply.after is BrokerState.CONTROLLED_SHUTDOWN:
            self.sessions.begin_shutdown(request.broker_id, end_offset)

    def fence_one(self, now_ms: int) -> ControlSteps[None]:
        """Ends one session that is over, and generates the records of its fence. Without such a session there is
        none."""
        over = self.sessions.end_one(now_ms)
        if over is None:
            return ControlResult([], None)
        broker_id, epoch = over
        broker = self.catalog.nodes.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:  # the session of an earlier incarnation
            return ControlResult([], None)
        return ControlResult((yield from self._fence(broker_id, epoch)), None)

    def _fence(self, broker_id: int, epoch: int) -> RecordSteps:
        generated = yield from self._without(broker_id)
        return [*generated, BrokerRegistrationChangeRecord(broker_id, epoch, is_fenced=True)]

    def _without(self, broker_id: int) -> RecordSteps:
        """Removes a broker from each ISR; other brokers become leaders."""
        return self._changes.after(BrokerEvent(broker_id), lambda partition: broker_id in partition.isr)

    # --- directories of replicas --------------------------------------------------------------------------------

    def assign_directories(
        self, broker_id: int, broker_epoch: int, assigned: Sequence[ReplicaDirectory]
    ) -> ControlSteps[list[ErrorCode]]:
        """Generates the records that give replicas of a broker their directories.

        The response has the result of each: NONE, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION or
        NOT_LEADER_OR_FOLLOWER. A replica in a directory that is not online leaves its ISR. Raises KafkaError
        (STALE_BROKER_EPOCH).
        """
        nodes = self.catalog.nodes
        broker = nodes.check_epoch(broker_id, broker_epoch)
        generated: list[MetadataRecord] = []
        errors: list[ErrorCode] = []
        offline: set[tuple[Id16, int]] = set()
        pace = Pace()
        for asked in assigned:
            if pace.spend():
                yield
            topic = self.catalog.topics_by_id.get(asked.topic_id)
            if topic is None:
                errors.append(ErrorCode.unknown_topic_id)
            elif not 0 <= asked.partition_id < topic.partition_count:
                errors.append(ErrorCode.unknown_topic_or_partition)
            elif broker_id not in topic.partitions[asked.partition_id].replicas:
                errors.append(ErrorCode.not_leader_or_follower)
            else:
                errors.append(ErrorCode.none)
                partition = topic.partitions[asked.partition_id]
                generated += self._changes.with_directory(topic, partition, broker_id, asked.directory)
                if asked.directory not in broker.directories:
                    offline.add((topic.id, asked.partition_id))
        if offline:
            generated += yield from self._changes.after(
                BrokerEvent(broker_id), lambda partition: broker_id in partition.isr, offline
            )
        return ControlResult(generated, errors)

    # --- partitions ---------------------------------------------------------------------------------------------

    def change_isrs(
        self, broker_id: int, broker_epoch: int, asked: Sequence[IsrProposal], number: int
    ) -> ControlSteps[list[IsrState | ErrorCode]]:
        """Generates the records of the ISRs that a leader asks for (``partitions/isr_proposals``). ``number``: of its
        request.

        Raises KafkaError (STALE_BROKER_EPOCH, REQUEST_TIMED_OUT for a copy that comes too late)."""
        self.catalog.nodes.check_epoch(broker_id, broker_epoch)
        self._isr_requests.check(broker_id, broker_epoch, number)
        return change_isrs(self._changes, broker_id, asked)

    def elect_leaders(
        self, election: Election, asked: Sequence[tuple[str, Iterable[int]]] | None
    ) -> ControlSteps[ElectionResults]:
        """Generates the records of elections that an administrator asks for: ``partitions/leader_elections``."""
        return elect_leaders(self._changes, election, asked)

    def balance_leaders(self) -> ControlSteps[bool]:
        """Generates the elections of preferred leaders. The response: whether more may be due."""
        return balance_leaders(self._changes)

    def elect_unclean_leaders(self) -> ControlSteps[bool]:
        """Generates the unclean elections that topics allow. The response: whether more may be due."""
        return elect_unclean_leaders(self._changes)

    def leads(self, broker_id: int) -> bool:
        """Returns whether a broker leads a partition."""
        topics = self.catalog.topics.values()
        return any(partition.leader == broker_id for topic in topics for partition in topic.partitions)

    # --- committed records --------------------------------------------------------------------------------------

    def on_applied(self, record: MetadataRecord) -> None:
        """Follows a record that has been applied to the catalogue."""
        sessions, brokers = self.sessions, self.catalog.nodes.brokers
        match record:
            case RegisterBrokerRecord(broker_id):
                sessions.register(broker_id, is_fenced=record.is_fenced, is_new=True)
            case UnregisterBrokerRecord(broker_id):
                sessions.remove(broker_id)
            case BrokerRegistrationChangeRecord(broker_id) | FenceBrokerRecord(broker_id):
                sessions.register(broker_id, is_fenced=brokers[broker_id].is_fenced)
            case UnfenceBrokerRecord(broker_id):
                sessions.register(broker_id, is_fenced=False)
