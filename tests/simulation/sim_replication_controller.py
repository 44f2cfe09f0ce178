"""The controller of the simulated replicas: the real catalogue and the real decisions about brokers, ISRs and leaders.

Each change is committed at once. A committed batch makes a view, which brokers get later: the partitions and the
brokers of that moment. While the controller is down, it answers nothing and looks for no session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from support.controlled_cluster import CLUSTER, FEATURES, NO_CHANGE, new_catalog

from odradek.catalog.records import MetadataRecord
from odradek.catalog.registrations import PartitionRegistration
from odradek.catalog.state import CreateTopic, DeleteTopic
from odradek.cluster.cluster_catalog import ControlSteps, Moment
from odradek.cluster.control import ClusterControl
from odradek.cluster.nodes.registrations import BrokerRegistration, NewBroker
from odradek.cluster.nodes.sessions import BrokerHeartbeat
from odradek.cluster.partitions.elections import Election
from odradek.cluster.partitions.isr_proposals import IsrProposal, IsrState
from odradek.cluster.records import Endpoint
from odradek.core.effects import result_of
from odradek.core.errors import ErrorCode, KafkaError

R = TypeVar("R")
IsrAnswer = dict[tuple[UUID, int], IsrState | ErrorCode]
SESSION_MS = 1_500


class PartitionName(NamedTuple):
    """One partition of one topic. A topic that is created again has another id."""

    topic_id: int
    number: int


class ClusterView(NamedTuple):
    """The catalogue after a batch. ``end``: the number of its records. ``topics``: name → id."""

    end: int
    topics: dict[str, int]
    partitions: dict[PartitionName, PartitionRegistration]
    brokers: dict[int, BrokerRegistration]


class BrokerBeat(NamedTuple):
    """The answer to a heartbeat."""

    is_fenced: bool
    should_stop: bool


class SimulatedController:
    """``on_change`` is called with the view before and after each committed batch."""

    def __init__(
        self,
        seed: int,
        now_ms: Callable[[], int],
        on_change: Callable[[ClusterView, ClusterView], None],
        **settings: str,
    ) -> None:
        self.catalog = new_catalog(seed, **settings)
        self.is_up = True
        self.incarnation = 0
        self.views = [ClusterView(0, {}, {}, {})]
        self._now_ms, self._on_change = now_ms, on_change
        self._end = 0
        self._control = self._new_control()

    def _new_control(self) -> ClusterControl:
        control = ClusterControl(self.catalog, CLUSTER, SESSION_MS)
        control.activate(self._now_ms())
        return control

    @property
    def view(self) -> ClusterView:
        return self.views[-1]

    # --- the log ------------------------------------------------------------------------------------------------

    def _commit(self, records: list[MetadataRecord]) -> None:
        for record in records:
            self.catalog.apply(self._end, record)
            self._control.on_applied(record)
            self._end += 1
        if not records:
            return
        topics = self.catalog.topics
        before = self.views[-1]
        self.views.append(
            ClusterView(
                self._end,
                {name: topic.id.int for name, topic in topics.items()},
                {
                    PartitionName(topic.id.int, partition.partition_id): partition
                    for topic in topics.values()
                    for partition in topic.partitions
                },
                dict(self.catalog.nodes.brokers),
            )
        )
        self._on_change(before, self.views[-1])

    def _decide(self, steps: ControlSteps[R]) -> R:
        result = result_of(steps)
        self._commit(result.records)
        if result.on_committed is not None:
            result.on_committed(self._end - 1)
        return result.response

    def restart(self) -> None:
        """Another process leads: it knows the log, and has heard of no broker."""
        if not self.is_up:
            self.is_up = True
            self.incarnation += 1
            self._control = self._new_control()

    # --- brokers ------------------------------------------------------------------------------------------------

    def register(self, broker_id: int, incarnation: int, previous_epoch: int) -> int | ErrorCode:
        """Returns the broker epoch."""
        asked = NewBroker(
            broker_id, CLUSTER, UUID(int=broker_id * 1_000 + incarnation),
            (Endpoint("PLAINTEXT", f"h{broker_id}", 9092, 0),), FEATURES, None, (UUID(int=broker_id << 64),),
            previous_epoch,
        )  # fmt: skip
        try:
            return self._decide(self._control.register_broker(asked, Moment(self._now_ms(), self._end)))
        except KafkaError as error:
            return error.code

    def beat(self, broker_id: int, epoch: int, offset: int, *, is_ready: bool, stops: bool) -> BrokerBeat | ErrorCode:
        self._control.hear(broker_id, epoch, self._now_ms())
        try:
            reply = self._decide(
                self._control.heartbeat(BrokerHeartbeat(broker_id, epoch, offset, not is_ready, stops), NO_CHANGE)
            )
        except KafkaError as error:
            return error.code
        return BrokerBeat(reply.is_fenced, reply.should_shut_down)

    def end_sessions(self) -> None:
        """Fences the brokers whose session is over."""
        while self.is_up and self._control.sessions.next_end_ms() <= self._now_ms():
            self._decide(self._control.fence_one(self._now_ms()))

    def alter_isrs(self, broker_id: int, epoch: int, changes: list[IsrProposal], number: int) -> IsrAnswer | ErrorCode:
        """Returns the result of each partition, or the error of the whole request."""
        try:
            results = self._decide(self._control.change_isrs(broker_id, epoch, changes, number))
        except KafkaError as error:
            return error.code
        return {(one.topic_id, one.partition_id): result for one, result in zip(changes, results, strict=True)}

    # --- administrators -----------------------------------------------------------------------------------------

    def create(self, name: str, topic_id: int, partitions: dict[int, tuple[int, ...]], **settings: str) -> bool:
        """Returns whether the topic was created."""
        configs = {key.replace("_", "."): value for key, value in settings.items()}
        asked = CreateTopic(name, UUID(int=topic_id), len(partitions), 1, partitions, configs)
        try:
            self._commit(result_of(self.catalog.generate(asked)))
        except KafkaError:
            return False
        return True

    def elect(self, *, unclean: bool) -> None:
        """Elects the preferred leaders of all partitions, or a leader of each partition without one."""
        self._decide(self._control.elect_leaders(Election.UNCLEAN if unclean else Election.PREFERRED, None))

    def delete(self, topic_id: int) -> None:
        self._commit(result_of(self.catalog.generate(DeleteTopic(UUID(int=topic_id)))))
