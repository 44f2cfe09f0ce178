"""The parts of a broker that follow the catalogue, and the order in which they do.

Each takes from the delta what has changed, and from the image how it is now. None of them is called by a handler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from odradek.broker.config import log_config
from odradek.broker.scheduler import Steps
from odradek.catalog.features import ELIGIBLE_LEADERS
from odradek.catalog.shard import BROKER, TOPIC, Topic
from odradek.core.ids import OFFSETS_TOPIC

if TYPE_CHECKING:
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.catalog_image import CatalogImage, Publisher
    from odradek.broker.config import BrokerConfig
    from odradek.broker.group_runtime import GroupRuntime
    from odradek.broker.host_limits import HostLimits
    from odradek.broker.log_cleaner import Cleaning
    from odradek.broker.log_directory import LogDirectory
    from odradek.broker.metadata_log import Catalog
    from odradek.broker.producer_ids import ProducerIds
    from odradek.broker.quotas import Quotas
    from odradek.catalog.delta import Delta
    from odradek.storage.config import LogConfig

    # Types alone: at run time each Protocol would take kilobytes.

    class LateServices(Protocol):
        """Groups and the cleaner, each of which is made when it is first asked for."""

        @property
        def runtime(self) -> GroupRuntime: ...

        @property
        def made_runtime(self) -> GroupRuntime | None:
            """The groups, unless they were never asked for."""

        @property
        def cleaning(self) -> Cleaning: ...

        @property
        def made_cleaning(self) -> Cleaning | None: ...

    class PublishedBroker(LateServices, Protocol):
        """The parts of a broker that follow its catalogue."""

        config: BrokerConfig
        directory: LogDirectory
        host_limits: HostLimits
        quotas: Quotas

        @property
        def catalog(self) -> Catalog: ...

        @property
        def producer_ids(self) -> ProducerIds: ...

        @property
        def node_id(self) -> int: ...

        def begin_epochs(self) -> None:
            """A new leader epoch for every partition. Raises StorageError."""


log = logging.getLogger("odradek.broker")


def in_order(broker: PublishedBroker) -> list[Publisher]:
    """The publishers of a broker. Its catalogue stands between those that act before a new topic is seen and others."""
    config, directory = broker.config, broker.directory
    return [
        # Before the logs: the coordinator answers who waits, and writes no more to a log that is about to go.
        GroupResignations(broker),
        # Before the logs: what is not set on a topic is set on the broker. A start may be refused before it changes
        # anything on the disk.
        BrokerSettings(config, broker.node_id, broker.host_limits),
        # Anywhere: nothing else goes by quotas. They bind before who set them is answered.
        broker.quotas,
        # Before the image: a topic is seen when all of its logs are there.
        PartitionLogs(directory, config, broker.begin_epochs),
        # The image: new topics are seen from here on.
        broker.catalog,
        # After the logs, which it looks at: it forgets those that are gone before another has their name.
        LogCleaner(directory, config, broker),
        # After the logs and the image: it reads the offsets topic, and groups look up in the image what has changed.
        GroupCoordinator(directory, config, broker),
        # Anywhere: who waits for an id is answered later.
        broker.producer_ids,
    ]


class BrokerSettings:
    """The settings of this broker and of all brokers that were made while running."""

    def __init__(self, config: BrokerConfig, node_id: int, host_limits: HostLimits) -> None:
        self._config = config
        self._own = str(node_id)
        self._host_limits = host_limits

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        """Raises ConfigError where a start names a host that is none."""
        if not delta.is_initial and not _alters_broker(delta) and ELIGIBLE_LEADERS not in delta.features:
            return
        config = self._config
        config.eligible_leaders = ELIGIBLE_LEADERS in image.features()
        config.set_dynamic(image.configs(BROKER, self._own), image.configs(BROKER, ""))
        self._host_limits.take(at_start=delta.is_initial)
        if delta.is_initial:
            for name, fault in config.ignored.items():
                log.warning("%s was set while running and is ignored: %s", name, fault)


class PartitionLogs:
    """The logs of partitions, their settings and leader epochs."""

    def __init__(self, directory: LogDirectory, config: BrokerConfig, begin_epochs: Callable[[], None]) -> None:
        self._directory = directory
        self._config = config
        self._begin_epochs = begin_epochs

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> Steps[None]:
        """Raises StorageError where a start finds that it cannot write."""
        directory = self._directory
        topic_ids: dict[str, UUID | None] = {}
        if delta.is_initial:
            if not directory.clean:
                # A log may have lost its end, and what is appended there now must not pass for what was: by the epochs
                # of what they have read, clients see where it was cut.
                self._begin_epochs()
            topic_ids = directory.begin_recovery(image)
        if delta.deleted:
            yield from self._drop(delta.deleted.values())
        default = log_config(self._config, {})
        for topic in delta.new_topics:
            settings = self._settings(image, topic.name, default)
            opened = yield from directory.open_topic(topic, settings, topic_ids)
            directory.partitions.update(opened)
        for key, epoch in delta.epochs.items():
            directory.begin_epoch(key, epoch)
            yield None
        for name in self._reconfigured(delta, image):
            yield from directory.reconfigure(name, self._settings(image, name, default))

    def _drop(self, topics: Collection[Topic]) -> Steps[None]:
        directory = self._directory
        doomed = []
        for topic in topics:
            doomed += yield from directory.drop_topic(topic)
        yield from directory.forget(topics)
        directory.remove_later(doomed, self._config.log_segment_delete_delay_ms)

    def _settings(self, image: CatalogImage, name: str, default: LogConfig) -> LogConfig:
        own = image.topic_configs(name)
        return log_config(self._config, own) if own else default

    def _reconfigured(self, delta: Delta, image: CatalogImage) -> Iterable[str]:
        """Topics whose logs were open before, under other settings."""
        if delta.is_initial:
            return ()
        if _alters_broker(delta):
            return [topic.name for topic in image.topics()]
        new = {topic.name for topic in delta.created.values()}
        return [name for kind, name in delta.configs if kind == TOPIC and name not in new]


class LogCleaner:
    """The log cleaner, which is at work as soon as a log is compacted."""

    def __init__(self, directory: LogDirectory, config: BrokerConfig, late: LateServices) -> None:
        self._directory = directory
        self._config = config
        self._late = late

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        if not delta.is_initial and not _alters_logs(delta):
            return
        directory = self._directory
        has_work = directory.has_compacted or (delta.is_initial and directory.was_cleaned())
        if self._late.made_cleaning is None and not has_work:
            return
        self._late.cleaning.forget_dropped()
        if self._config.log_cleaner_enable:
            self._late.cleaning.start()


class GroupResignations:
    """The end of the groups' coordinator, when the offsets topic is deleted: there are no groups until there is
    another."""

    def __init__(self, late: LateServices) -> None:
        self._late = late

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        runtime = self._late.made_runtime
        if runtime is None:
            return
        for topic in delta.deleted.values():
            if topic.name == OFFSETS_TOPIC:
                for index in range(topic.partition_count):
                    runtime.unload(index)
                runtime.partition_count = None


class GroupCoordinator:
    """The groups' coordinator: where the offsets topic is led, and what becomes of topics that groups read."""

    def __init__(self, directory: LogDirectory, config: BrokerConfig, late: LateServices) -> None:
        self._directory = directory
        self._config = config
        self._late = late

    def on_metadata_update(self, delta: Delta, image: CatalogImage) -> None:
        runtime = self._late.made_runtime
        if runtime is not None:
            self._notify(runtime, delta)
        for topic in delta.created.values():
            if topic.name == OFFSETS_TOPIC:
                self._elect(topic, is_start=delta.is_initial)

    def _notify(self, runtime: GroupRuntime, delta: Delta) -> None:
        if delta.created:
            runtime.on_topics_changed(sorted(topic.name for topic in delta.created.values()), created=True)
        if delta.grown:
            runtime.on_topics_changed([topic.name for topic in delta.grown.values()])
        if delta.deleted:
            names = [topic.name for topic in delta.deleted.values()]
            runtime.on_topics_changed(names)
            users_own = [name for name in names if name != OFFSETS_TOPIC]
            if users_own:
                runtime.on_topics_deleted(users_own)

    def _elect(self, topic: Topic, *, is_start: bool) -> None:
        configured = self._config.offsets_topic_num_partitions
        if not is_start and topic.partition_count != configured:
            # As Kafka does: the count is read at start, and a coordinator that reckons with another is none.
            log.warning(
                "%s was created with %d partitions, not the %d of offsets.topic.num.partitions: groups are "
                "served after a restart",
                OFFSETS_TOPIC, topic.partition_count, configured,
            )  # fmt: skip
            return
        runtime = self._late.runtime
        runtime.partition_count = topic.partition_count
        for described in topic.partitions:
            partition = self._directory.partitions.get((topic.name, described.index))
            if partition is not None and not partition.failure:
                partition.on_high_watermark = runtime.on_high_watermark
                runtime.load(described.index, partition)


def _alters_logs(delta: Delta) -> bool:
    has_topics = bool(delta.created or delta.grown or delta.deleted)
    return has_topics or any(kind in (TOPIC, BROKER) for kind, _ in delta.configs)


def _alters_broker(delta: Delta) -> bool:
    return any(kind == BROKER for kind, _ in delta.configs)
