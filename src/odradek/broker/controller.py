"""Changes of the catalogue: topics, settings, quotas, features, users. One request after another, each with one sync.

A request collects all that it changes (``metadata_log.Change``) and writes it as one batch. Then its topics are made or
removed a partition at a time, while other requests are served. A topic is seen when all of its logs are there. Who
wants to change something meanwhile waits for its turn, as requests to Kafka's controller wait in its queue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from odradek.broker.config import MIN_ISR, check_topic_configs, log_config
from odradek.broker.metadata_log import Change, ChangeTooLarge
from odradek.broker.scheduler import Steps
from odradek.catalog.features import ELIGIBLE_LEADERS, UpdateFeatures
from odradek.catalog.records import ConfigRecord, TopicRecord
from odradek.catalog.shard import BROKER, TOPIC, AlterConfigs, CreateTopic, Topic, check_partition_count
from odradek.core.deferred import Deferred
from odradek.core.errors import KafkaError, OdradekError
from odradek.core.ids import METADATA_TOPIC, OFFSETS_TOPIC

if TYPE_CHECKING:
    from uuid import UUID

    from odradek.broker.config import BrokerConfig
    from odradek.broker.log_directory import LogDirectory
    from odradek.broker.metadata_log import Catalog
    from odradek.broker.quotas import Quotas
    from odradek.broker.scheduler import Scheduler
    from odradek.storage.config import LogConfig

log = logging.getLogger("odradek.broker")

INTERNAL = frozenset({METADATA_TOPIC, OFFSETS_TOPIC})
"""Topics that are not created by asking for them, or not with the broker's defaults."""


class NewTopic(NamedTuple):
    """A topic as a client wants it; -1 takes the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[int, ...]] = MappingProxyType({})
    configs: Mapping[str, str | None] = MappingProxyType({})


class Turn:
    """A place in the queue, for as long as the ``with`` block lasts. ``come`` is resolved when it is the first."""

    def __init__(self, queue: deque[Turn]) -> None:
        self.come: Deferred[None] = Deferred()
        self._queue = queue

    def __enter__(self) -> Turn:
        self._queue.append(self)
        if self._queue[0] is self:
            self.come.resolve(None)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        was_first = self._queue[0] is self
        self._queue.remove(self)
        if was_first and self._queue:
            self._queue[0].come.resolve(None)


class Request(Protocol):
    """The context of a request that changes the catalogue."""

    must_finish: bool
    """Set when the change is written: what follows from it is done although the client leaves."""


class ControlledBroker(Protocol):
    """What a controller uses of its broker, and what it calls when a change has been written."""

    config: BrokerConfig
    directory: LogDirectory
    catalog: Catalog
    quotas: Quotas
    scheduler: Scheduler

    @property
    def node_id(self) -> int: ...

    def new_uuid(self) -> UUID: ...

    def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]: ...

    def look_after(self, *, compacted: bool) -> None: ...

    def on_topics_changed(self, names: Collection[str], *, created: bool = False) -> None: ...

    def on_topics_deleted(self, names: Collection[str]) -> None: ...

    def on_offsets_topic_created(self) -> None: ...

    def stop_groups(self, topic: Topic) -> None: ...

    def take_dynamic_configs(self) -> None: ...


class Controller:
    """What changes the catalogue of a broker, and what follows from it."""

    def __init__(self, broker: ControlledBroker) -> None:
        self._broker = broker
        self._queue: deque[Turn] = deque()
        self._is_snapshotting = False

    @property
    def waiting(self) -> int:
        """Requests that have their turn or wait for it."""
        return len(self._queue)

    def turn(self) -> Turn:
        """``with controller.turn() as turn: yield turn.come`` lets other requests end before."""
        return Turn(self._queue)

    # --- topics -------------------------------------------------------------------------------------------------

    def new_topic(self, wanted: NewTopic) -> CreateTopic:
        """Raises ConfigError."""
        config = self._broker.config
        count, factor = wanted.partition_count, wanted.replication_factor
        return CreateTopic(
            wanted.name,
            self._broker.new_uuid(),
            config.num_partitions if count == -1 else count,
            config.default_replication_factor if factor == -1 else factor,
            wanted.assignments,
            check_topic_configs(wanted.configs, config),
        )

    def create_topic(self, wanted: NewTopic) -> Steps[Topic]:
        """Creates one topic. Raises KafkaError or ConfigError."""
        with self.turn() as turn:
            yield turn.come
            change = self._broker.catalog.change()
            yield from change.add(self.new_topic(wanted))
            yield from self.create(change)
        topic = self._broker.catalog.topic(wanted.name)
        assert topic is not None
        return topic

    def create(self, change: Change, context: Request | None = None) -> Steps[None]:
        """Writes a change that makes topics or partitions, and makes their logs.

        Raises KafkaError; nothing has changed then. ``context``: of the client that may leave meanwhile.
        """
        broker = self._broker
        if not change.records:
            return
        broker.directory.check_room()
        if context is not None:
            context.must_finish = True
        change.write()
        topics: Sequence[Topic] = ()
        published = 0
        compacted = False
        try:
            topics = yield from change.stage()
            for topic in topics:
                settings = self._settings(topic.name)
                compacted |= settings.is_compacted
                opened = yield from broker.directory.open_topic(topic, settings)
                broker.directory.partitions.update(opened)
                broker.catalog.publish(topic)
                published += 1
        finally:  # the log knows them, so their names are taken
            for topic in topics[published:]:
                broker.catalog.publish(topic)
        broker.look_after(compacted=compacted)
        new = {record.name for record in change.records if isinstance(record, TopicRecord)}
        broker.on_topics_changed(sorted(new), created=True)
        broker.on_topics_changed([topic.name for topic in topics if topic.name not in new])
        if OFFSETS_TOPIC in new:
            broker.on_offsets_topic_created()

    def auto_create(self, names: Collection[str], context: Request) -> Steps[dict[str, KafkaError]]:
        """Creates topics with the broker's defaults unless they are there; returns why one of them is refused.

        Raises KafkaError where all of them are.
        """
        broker = self._broker
        refused: dict[str, KafkaError] = {}
        if OFFSETS_TOPIC in names:
            yield from self.ensure_offsets_topic(context)
        with self.turn() as turn:
            yield turn.come
            missing = [name for name in names if name not in INTERNAL and broker.catalog.topic(name) is None]
            check_partition_count(len(missing) * broker.config.num_partitions)
            change = broker.catalog.change()
            for name in missing:
                try:
                    yield from change.add(self.new_topic(NewTopic(name)))
                except ChangeTooLarge:
                    raise
                except KafkaError as error:
                    refused[name] = error.kept()
            yield from self.create(change, context)
        return refused

    def ensure_offsets_topic(self, context: Request | None = None) -> Steps[None]:
        """Creates ``__consumer_offsets`` unless it is there. Where it cannot be made, that is logged, as in Kafka."""
        broker = self._broker
        config = broker.config
        wanted = NewTopic(
            OFFSETS_TOPIC,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs={
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        with self.turn() as turn:
            yield turn.come
            if broker.catalog.topic(OFFSETS_TOPIC) is not None:
                return
            try:
                change = broker.catalog.change()
                yield from change.add(self.new_topic(wanted))
                yield from self.create(change, context)
            except OdradekError as error:
                log.error("%s cannot be created: %s", OFFSETS_TOPIC, error)

    def delete(self, change: Change, topics: Sequence[Topic], context: Request | None = None) -> Steps[None]:
        """Writes a change that deletes topics; removes their logs and what groups have committed for them.

        Raises KafkaError; nothing has changed then.
        """
        broker = self._broker
        if not change.records:
            return
        if context is not None:
            context.must_finish = True
        change.write()
        yield from change.apply()
        doomed = []
        for topic in topics:
            if topic.name == OFFSETS_TOPIC:
                broker.stop_groups(topic)
            doomed += yield from broker.directory.drop_topic(topic)
        yield from broker.directory.forget(topics)
        broker.directory.remove_later(doomed, broker.config.log_segment_delete_delay_ms)
        broker.on_topics_deleted([topic.name for topic in topics])

    # --- settings and quotas ------------------------------------------------------------------------------------

    def alter_configs(self, change: Change, context: Request | None = None) -> Steps[None]:
        """Writes a change of settings, which act from then on. Raises KafkaError; nothing has changed then."""
        broker = self._broker
        altered = {(r.resource_type, r.resource_name) for r in change.records if isinstance(r, ConfigRecord)}
        if not altered:
            return
        if context is not None:
            context.must_finish = True
        change.write()
        yield from change.apply()
        names = sorted(name for kind, name in altered if kind == TOPIC)
        if any(kind == BROKER for kind, _ in altered):
            broker.take_dynamic_configs()
            names = [topic.name for topic in broker.catalog.topics()]
        compacted = False
        default = log_config(broker.config, {})
        for name in names:
            own = broker.catalog.topic_configs(name)
            settings = log_config(broker.config, own) if own else default
            yield from broker.directory.reconfigure(name, settings)
            compacted |= settings.is_compacted
        broker.look_after(compacted=compacted)

    def alter_client_quotas(self, change: Change, context: Request) -> Steps[None]:
        """Writes a change of quotas, which bind from then on. Raises KafkaError; nothing has changed then."""
        if change.records:
            yield from self.commit(change, context)
            self._broker.quotas.take(self._broker.catalog.quotas())

    # --- features and credentials -------------------------------------------------------------------------------

    def commit(self, change: Change, context: Request) -> Steps[None]:
        """Writes a change that nothing else follows from. Raises KafkaError; nothing has changed then."""
        if not change.records:
            return
        context.must_finish = True
        change.write()
        yield from change.apply()

    def update_features(self, change: Change, request: UpdateFeatures, context: Request | None) -> Steps[None]:
        """Adds the request to the change and writes it; checks it where there is no ``context``. Raises KafkaError.

        With ELIGIBLE_LEADERS, ``min.insync.replicas`` is set for all brokers and for none of them alone.
        """
        broker = self._broker
        update = request.updates.get(ELIGIBLE_LEADERS)
        if update is not None:
            if update.level > 0:
                yield from change.add(AlterConfigs(BROKER, str(broker.node_id), {MIN_ISR: None}))
            elif broker.config.eligible_leaders:
                yield from change.add(AlterConfigs(BROKER, "", {MIN_ISR: broker.config.cluster_wide[MIN_ISR]}))
        yield from change.add(request)
        if context is not None:
            yield from self.commit(change, context)
            broker.take_dynamic_configs()

    # --- snapshots ----------------------------------------------------------------------------------------------

    def begin_snapshot(self) -> None:
        """Makes a snapshot of the catalogue in the background, unless one is being made."""
        if not self._is_snapshotting:
            self._is_snapshotting = True
            self._broker.scheduler.start(self._snapshot()).then(self._end_snapshot)

    def _snapshot(self) -> Steps[None]:
        with self.turn() as turn:
            yield turn.come
            steps = self._broker.catalog.begin_snapshot(self._broker.in_thread)
        yield from steps

    def _end_snapshot(self, result: Exception | None) -> None:
        """One that failed is tried again when the next is due."""
        self._is_snapshotting = False
        if result is not None:
            foreseen = isinstance(result, OSError | KafkaError)
            log.error("no snapshot of the catalogue was made: %s", result, exc_info=None if foreseen else result)

    def _settings(self, topic: str) -> LogConfig:
        return log_config(self._broker.config, self._broker.catalog.topic_configs(topic))
