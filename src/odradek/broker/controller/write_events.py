"""The controller: it writes the changes of the catalogue to the metadata log, one request after another.

A request is a write event, as in Kafka's controller: an operation that generates records, and the promise of its
result. All records of an event are one batch, which the quorum commits (``metadata/quorum``). The loader applies and
publishes the committed batch (``metadata/loader``): the publishers create logs, apply settings, and inform groups of
topics. Then the promise is resolved, and the next event starts. The controller itself applies nothing.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from odradek.broker.loop.scheduler import Steps, Task, value_of
from odradek.broker.metadata.change import MAX_CHANGE_RECORDS, Change, ChangeTooLarge
from odradek.broker.settings.config import MIN_ISR, check_topic_configs
from odradek.catalog.features import ELIGIBLE_LEADERS, UpdateFeatures
from odradek.catalog.state import (
    BROKER,
    AllocateProducerIds,
    AlterConfigs,
    CatalogRequest,
    CreateTopic,
    Topic,
    check_partition_count,
)
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError, OdradekError
from odradek.core.ids import METADATA_TOPIC
from odradek.storage.disk.write_failures import is_passing

T = TypeVar("T")

FEW_RECORDS = 200
"""The records of a change that has no more are freed at once."""

if TYPE_CHECKING:
    from typing import Any, Protocol
    from uuid import UUID

    from odradek.broker.loop.leftovers import Leftovers
    from odradek.broker.loop.scheduler import Scheduler
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.metadata.loader import MetadataLoader
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.settings.config import BrokerConfig
    from odradek.security.principal import Principal

    # For type checks only: at run time each Protocol would occupy kilobytes.

    Operation = Callable[["Change"], Steps[T]]
    """Generates the records of an event: adds requests to the change and returns the event's result.

    Raises KafkaError if the whole event is refused. It writes nothing: its records take effect after it returns.
    """

    class RequestConnection(Protocol):
        """The connection of a request. ``parked`` has the waiting requests that are abandoned when the client
        disconnects."""

        parked: set[Any]  # not a narrower type, because sets are invariant

    class ControllerRequestContext(Protocol):
        """The client and connection of a request."""

        client_id: str | None
        client_host: str
        principal: Principal

        @property
        def user(self) -> str: ...

        @property
        def connection(self) -> RequestConnection: ...

        def throttle(self, duration_ms: int) -> None: ...

    class RequestTimes(Protocol):
        """The quota of the loop's time that a client's requests use."""

        def share_charge(self, context: ControllerRequestContext) -> Callable[[float], None] | None:
            """Returns a function that counts seconds of the loop for a client, or None without a quota."""

    class InternalTopics(Protocol):
        """The topics of coordinators, which are not created with the broker's defaults."""

        @property
        def topics(self) -> Collection[str]: ...

        def topic_spec(self, name: str) -> TopicSpec | None: ...

    class ControlledBroker(Protocol):
        """The parts of a broker that its controller uses."""

        config: BrokerConfig
        scheduler: Scheduler

        @property
        def quotas(self) -> RequestTimes: ...

        @property
        def coordinators(self) -> InternalTopics: ...

        @property
        def catalog(self) -> CommittedCatalog: ...

        @property
        def metadata_log(self) -> MetadataLog: ...

        @property
        def quorum(self) -> MetadataQuorum: ...

        @property
        def leftovers(self) -> Leftovers: ...

        @property
        def loader(self) -> MetadataLoader: ...

        @property
        def node_id(self) -> int: ...

        def new_uuid(self) -> UUID: ...

        def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]: ...

        def check_room(self) -> None:
            """Raises KafkaError if no more logs can be created now."""


log = logging.getLogger("odradek.broker")


class TopicSpec(NamedTuple):
    """A requested topic. -1 selects the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    configs: Mapping[str, str | None] = MappingProxyType({})


class _QueueEntry:
    """An entry of the queue of write events, for a ``with`` block. ``at_front`` is resolved when the entry is the first
    of the queue."""

    def __init__(self, queue: deque[_QueueEntry]) -> None:
        self.at_front: Deferred[None] = Deferred()
        self._queue = queue

    def __enter__(self) -> _QueueEntry:
        self._queue.append(self)
        if self._queue[0] is self:
            self.at_front.resolve(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        was_first = self._queue[0] is self
        self._queue.remove(self)
        if was_first and self._queue:
            self._queue[0].at_front.resolve(None)


class WriteEvent:
    """A write event. ``is_written``: its records are in the log, so it is completed even if its client disconnects."""

    __slots__ = ("is_written",)

    def __init__(self) -> None:
        self.is_written = False


class Controller(ABC):
    """The controller as a node has it: the node itself (``QuorumController``), or another one
    (``remote/remote_controller``). What changes the catalogue of this node takes turns in one queue.

    Methods that return a promise may resolve it with an exception (``scheduler.value_of``). Methods that return
    ``Steps`` raise the exception. These steps have no client: they are for the broker itself, its owner and tests.
    """

    # Subclasses use _broker, _commit and _has_defaults.

    def __init__(self, broker: ControlledBroker) -> None:
        self._broker = broker
        self._queue: deque[_QueueEntry] = deque()
        self._is_snapshotting = False
        self._faults_of_topics: dict[str, str] = {}

    @property
    def waiting(self) -> int:
        """The number of events that run or wait."""
        return len(self._queue)

    # --- what the controller does -------------------------------------------------------------------------------

    def write(
        self,
        operation: Operation[T],
        context: ControllerRequestContext | None = None,
        *,
        validate_only: bool = False,
        max_records: int | None = MAX_CHANGE_RECORDS,
    ) -> Deferred[T]:
        """Returns the promise of the operation's result. It is resolved when the records are committed and published.

        An event whose client disconnects before its records are written is dropped.
        """
        event = WriteEvent()
        steps = self.steps_of(operation, event, validate_only=validate_only, max_records=max_records)
        return self._start(steps, event, context)

    def _start(self, steps: Steps[T], event: WriteEvent, context: ControllerRequestContext | None) -> Deferred[T]:
        scheduler = self._broker.scheduler
        if context is None:
            return scheduler.start(steps)
        parked = context.connection.parked
        task = Task(
            scheduler,
            steps,
            must_finish=lambda: event.is_written,
            on_share=self._broker.quotas.share_charge(context),
        )
        parked.add(task)
        task.promise.then(lambda _: parked.discard(task))
        scheduler.add(task)
        return task.promise

    def steps_of(
        self,
        operation: Operation[T],
        event: WriteEvent | None = None,
        *,
        validate_only: bool = False,
        max_records: int | None = MAX_CHANGE_RECORDS,
    ) -> Steps[T]:
        """Returns the steps of an event, from its entry into the queue to its result. Raises the errors of the
        operation.

        If the records cannot be written, it raises KafkaError and changes nothing.
        """
        broker = self._broker
        with self._queued() as entry:
            yield entry.at_front
            change = Change(broker.catalog.state, max_records)
            try:
                result = yield from operation(change)
                if change.records and not validate_only:
                    yield from self._commit(change, event)
                if change.on_end is not None:
                    change.on_end(broker.metadata_log.end_offset - 1)
            finally:
                if len(change.records) > FEW_RECORDS:
                    broker.leftovers.add(change.records, change.packed)
        return result

    @abstractmethod
    def _commit(self, change: Change, event: WriteEvent | None) -> Steps[None]:
        """Commits and publishes the records of an event. Raises KafkaError."""

    @abstractmethod
    def create_topic(self, new: TopicSpec) -> Steps[Topic]:
        """Creates one topic. Raises KafkaError or ConfigError."""

    @abstractmethod
    def auto_create(self, names: Collection[str], context: ControllerRequestContext) -> Deferred[dict[str, KafkaError]]:
        """Creates the missing topics with the broker's defaults. The promise has the errors of the refused topics, or a
        KafkaError if the whole request is refused."""

    @abstractmethod
    def ensure_internal_topic(self, name: str, context: ControllerRequestContext) -> Deferred[None]:
        """Creates the topic of a coordinator if it does not exist. A failure is only logged, as in Kafka."""

    @abstractmethod
    def allocate_producer_ids(self, broker_id: int) -> Deferred[None]:
        """Allocates a producer id block to a broker."""

    # --- the queue ----------------------------------------------------------------------------------------------

    def _queued(self) -> _QueueEntry:
        """Adds an entry to the queue. ``with self._queued() as entry: yield entry.at_front`` waits for the earlier
        events."""
        return _QueueEntry(self._queue)

    def apply(self, steps: Steps[None]) -> Steps[None]:
        """Runs steps between two events. A snapshot of this node sees all that they apply, or nothing."""
        with self._queued() as entry:
            yield entry.at_front
            yield from steps

    # --- requests -----------------------------------------------------------------------------------------------

    def new_topic(self, topic: TopicSpec) -> CreateTopic:
        """Returns the catalogue's request for a topic, with the broker's defaults for -1. Raises ConfigError."""
        config = self._broker.config
        count, factor = topic.partition_count, topic.replication_factor
        return CreateTopic(
            topic.name,
            self._broker.new_uuid(),
            config.num_partitions if count == -1 else count,
            config.default_replication_factor if factor == -1 else factor,
            topic.assignments,
            check_topic_configs(topic.configs, config),
        )

    def _has_defaults(self, name: str) -> bool:
        """Returns whether the broker's defaults apply to a topic of this name. Internal topics have settings of their
        own."""
        return name != METADATA_TOPIC and name not in self._broker.coordinators.topics

    def report_missing_topic(self, name: str, error: OdradekError) -> None:
        """Logs why the topic of a coordinator cannot be created: once, although clients ask again and again."""
        if self._faults_of_topics.get(name) != str(error):
            self._faults_of_topics[name] = str(error)
            log.error("%s cannot be created, so its clients get COORDINATOR_NOT_AVAILABLE: %s", name, error)

    def update_features(
        self, request: UpdateFeatures, context: ControllerRequestContext | None = None, *, validate_only: bool = False
    ) -> Deferred[None]:
        """Changes the levels of all named features or of none.

        With the feature ELIGIBLE_LEADERS, ``min.insync.replicas`` may be set for all brokers, but not for one. So
        enabling the feature deletes the value of each broker, and stores one for all. Disabling it keeps that one.
        """

        def update(change: Change) -> Steps[None]:
            level_update = request.updates.get(ELIGIBLE_LEADERS)
            if level_update is not None:
                yield from self._least_isr_for_all(change, is_enabled=level_update.level > 0)
            yield from change.add(request)

        return self.write(update, context, validate_only=validate_only)

    def _least_isr_for_all(self, change: Change, *, is_enabled: bool) -> Steps[None]:
        """Adds the changes of ``min.insync.replicas`` that come with a level of ELIGIBLE_LEADERS, as Kafka's
        ``ConfigurationControlManager.maybeGenerateElrSafetyRecords`` does."""
        catalog, config = self._broker.catalog, self._broker.config
        if config.eligible_leaders:
            if not is_enabled:
                yield from change.add(AlterConfigs(BROKER, "", {MIN_ISR: config.cluster_wide[MIN_ISR]}))
        elif is_enabled and MIN_ISR not in catalog.configs(BROKER, ""):
            yield from change.add(AlterConfigs(BROKER, "", {MIN_ISR: config.texts.get(MIN_ISR, "1")}))
        for name in catalog.configured_resources(BROKER) if is_enabled else ():
            if name and MIN_ISR in catalog.configs(BROKER, name):
                yield from change.add(AlterConfigs(BROKER, name, {MIN_ISR: None}))

    # --- snapshots ----------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Starts a snapshot of the catalogue in the background, unless one is in progress."""
        if not self._is_snapshotting:
            self._is_snapshotting = True
            self._broker.scheduler.start(self._snapshot()).then(self._end_snapshot)

    def _snapshot(self) -> Steps[None]:
        with self._queued() as entry:
            yield entry.at_front
            steps = self._broker.metadata_log.begin_snapshot(self._broker.catalog.state, self._broker.in_thread)
        yield from steps

    def _end_snapshot(self, result: Exception | None) -> None:
        """Logs a failure. The controller makes the next snapshot when it is due."""
        self._is_snapshotting = False
        if isinstance(result, OSError) and is_passing(result):
            return  # the owner of failed writes has logged it, and makes the snapshot due when writes succeed
        if result is not None:
            foreseen = isinstance(result, OSError | KafkaError)
            log.error("no snapshot of the catalogue was made: %s", result, exc_info=None if foreseen else result)


class QuorumController(Controller):
    """This node as the controller: its write events go to the quorum of the metadata log."""

    def _commit(self, change: Change, event: WriteEvent | None) -> Steps[None]:
        broker = self._broker
        if change.makes_logs:
            broker.check_room()
        if event is not None:
            event.is_written = True
        offset = yield from value_of(broker.quorum.append(change.packed, len(change.records)))
        assert not isinstance(offset, KafkaError)  # ``value_of`` raises it
        yield from broker.loader.commit(offset, change.records)

    # --- topics -------------------------------------------------------------------------------------------------

    def create_topic(self, new: TopicSpec) -> Steps[Topic]:
        """Creates one topic. Raises KafkaError or ConfigError."""

        def create(change: Change) -> Steps[None]:
            yield from change.add(self.new_topic(new))

        yield from self.steps_of(create)
        topic = self._broker.catalog.topic(new.name)
        assert topic is not None
        return topic

    def auto_create(self, names: Collection[str], context: ControllerRequestContext) -> Deferred[dict[str, KafkaError]]:
        """Creates the missing topics with the broker's defaults. The promise has the errors of the refused topics, or a
        KafkaError if the whole request is refused.
        """
        event = WriteEvent()
        return self._start(self._auto_create(names, event), event, context)

    def _auto_create(self, names: Collection[str], event: WriteEvent) -> Steps[dict[str, KafkaError]]:
        broker = self._broker
        refused: dict[str, KafkaError] = {}

        def create(change: Change) -> Steps[None]:
            missing = [name for name in names if self._has_defaults(name) and broker.catalog.topic(name) is None]
            check_partition_count(len(missing) * broker.config.num_partitions)
            for name in missing:
                try:
                    yield from change.add(self.new_topic(TopicSpec(name)))
                except ChangeTooLarge:
                    raise
                except KafkaError as error:
                    refused[name] = error.kept()

        for name in broker.coordinators.topics:
            if name in names:
                yield from self.create_internal_topic(name, event)
        yield from self.steps_of(create, event)
        return refused

    def ensure_internal_topic(self, name: str, context: ControllerRequestContext) -> Deferred[None]:
        """Creates the topic of a coordinator if it does not exist."""
        event = WriteEvent()
        return self._start(self.create_internal_topic(name, event), event, context)

    def create_internal_topic(self, name: str, event: WriteEvent | None = None) -> Steps[None]:
        """Creates the topic of a coordinator if it does not exist. A failure is only logged, as in Kafka."""
        broker = self._broker
        topic = broker.coordinators.topic_spec(name)
        assert topic is not None

        def create(change: Change) -> Steps[None]:
            if broker.catalog.topic(name) is None:
                yield from change.add(self.new_topic(topic))

        try:
            yield from self.steps_of(create, event)
        except OdradekError as error:
            self.report_missing_topic(name, error)

    def raise_epochs(self, epochs: Iterable[tuple[tuple[str, int], int]]) -> Steps[None]:
        """Begins new leader epochs for partitions that may have lost records. Raises KafkaError."""
        from odradek.broker.metadata.lone_broker import RaiseEpochs

        rest = list(epochs)
        while rest:
            batch, rest = rest[:MAX_CHANGE_RECORDS], rest[MAX_CHANGE_RECORDS:]
            yield from self.steps_of(_operation(RaiseEpochs(dict(batch))))

    def allocate_producer_ids(self, broker_id: int) -> Deferred[None]:
        """The broker reads the block from a record (``producer_ids``)."""
        return self.write(_operation(AllocateProducerIds(broker_id)))


def _operation(request: CatalogRequest) -> Operation[None]:
    """Returns an operation with this one request."""
    return lambda change: change.add(request)
