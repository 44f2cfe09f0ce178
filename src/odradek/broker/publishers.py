"""The publishers of the catalogue's changes, and their order.

A publisher reads the changes from the delta and the present state from the image. Handlers do not call publishers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.broker.partitions.private_directory import PrivateDirectory
from odradek.broker.settings.config import log_config
from odradek.catalog.features import ELIGIBLE_LEADERS
from odradek.catalog.state import BROKER, TOPIC, Topic

if TYPE_CHECKING:
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.coordinators.registry import AnyCoordinator, Coordinators
    from odradek.broker.limits.host_limits import HostLimits
    from odradek.broker.limits.quotas import Quotas
    from odradek.broker.metadata.authorizer import Authorizer
    from odradek.broker.metadata.catalog_view import CatalogView, Publisher
    from odradek.broker.metadata.committed_catalog import CommittedCatalog
    from odradek.broker.metadata.delegation_tokens import DelegationTokens
    from odradek.broker.metadata.producer_ids import ProducerIds
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.partitions.log_cleaner import BrokerLogCleaner
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.core.deferred import Deferred
    from odradek.storage.config import LogConfig

    # For type checks only: at run time each Protocol would occupy kilobytes.

    class LogCleanerOwner(Protocol):
        """The part of a broker that makes the log cleaner at its first use."""

        @property
        def log_cleaner(self) -> BrokerLogCleaner: ...

        @property
        def existing_log_cleaner(self) -> BrokerLogCleaner | None: ...

    class PublishedBroker(LogCleanerOwner, Protocol):
        """The parts of a broker that its publishers use."""

        authorizer: Authorizer | None
        tokens: DelegationTokens | None
        config: BrokerConfig
        coordinators: Coordinators
        directory: LogDirectory
        host_limits: HostLimits
        quotas: Quotas

        @property
        def catalog(self) -> CommittedCatalog: ...

        @property
        def quorum(self) -> MetadataQuorum: ...

        @property
        def producer_ids(self) -> ProducerIds: ...

        @property
        def node_id(self) -> int: ...

        def in_thread(self, job: Callable[[], None]) -> Deferred[BaseException | None]: ...


log = logging.getLogger("odradek.broker")


def in_order(broker: PublishedBroker, begin_epochs: Callable[[], None]) -> list[Publisher]:
    """Returns the publishers of a broker in their order. The catalogue is one of them: it shows new topics.

    ``begin_epochs`` is called after an unclean stop. Raises StorageError."""
    config, directory = broker.config, broker.directory
    return [
        # Before the logs: a coordinator completes its waiting requests and stops its writes to logs that are deleted.
        *(CoordinatorResignations(coordinator, broker.node_id) for coordinator in broker.coordinators),
        # Before the logs: the broker's settings are the defaults of topics. Invalid settings end a start before it
        # changes anything on the disk.
        BrokerSettings(config, broker.node_id, broker.host_limits),
        # Before the reply to a request that stores credentials: it closes the directory to other users.
        PrivateDirectory(directory, broker.in_thread),
        # At any place: no other publisher uses quotas. They apply before the reply to the request that set them.
        broker.quotas,
        # At any place: an ACL holds before the reply to the request that makes it.
        *([] if broker.authorizer is None else [broker.authorizer]),
        # At any place: a token can be used before the reply to the request that makes it.
        *([] if broker.tokens is None else [broker.tokens]),
        # Before the image: requests see a topic only when all of its logs exist.
        PartitionLogs(directory, config, begin_epochs, broker.quorum),
        # The image: from here on, requests see new topics.
        broker.catalog,
        # After the logs: it removes deleted logs from the cleaner's checkpoint before a later log has the same name.
        CleanerPublisher(directory, config, broker),
        # After the logs and the image: a coordinator reads its topic, and looks up changed topics in the image.
        *(CoordinatorElections(coordinator, directory) for coordinator in broker.coordinators),
        # At any place: requests that wait for a producer id continue in a later round of the event loop.
        broker.producer_ids,
    ]


def authorizer_of(config: BrokerConfig) -> Authorizer | None:
    """Returns the authorizer that the settings ask for, or None."""
    if not config.authorizer_class_name:
        return None
    from odradek.broker.metadata.authorizer import Authorizer  # few brokers have one

    return Authorizer.of(config)


def tokens_of(config: BrokerConfig) -> DelegationTokens | None:
    """Returns the delegation tokens that the settings allow, or None."""
    if not config.delegation_token_secret_key:
        return None
    from odradek.broker.metadata.delegation_tokens import DelegationTokens  # few brokers have them

    return DelegationTokens.of(config)


class BrokerSettings:
    """The dynamic settings of this broker and of all brokers."""

    def __init__(self, config: BrokerConfig, node_id: int, host_limits: HostLimits) -> None:
        self._config = config
        self._own = str(node_id)
        self._host_limits = host_limits

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        """Applies changed settings.

        Raises ConfigError at the start if a host in the static ``max.connections.per.ip.overrides`` has no address."""
        if not delta.is_initial and not _alters_broker(delta) and ELIGIBLE_LEADERS not in delta.features:
            return
        config = self._config
        config.eligible_leaders = ELIGIBLE_LEADERS in image.features()
        config.set_dynamic(image.configs(BROKER, self._own), image.configs(BROKER, ""))
        self._host_limits.apply_settings(at_start=delta.is_initial)
        if delta.is_initial:
            for name, fault in config.ignored.items():
                log.warning("the dynamic value of %s is ignored: %s", name, fault)


class PartitionLogs:
    """The logs of the partitions that are assigned to this node, with their settings, leader epochs and roles."""

    def __init__(
        self, directory: LogDirectory, config: BrokerConfig, begin_epochs: Callable[[], None], quorum: MetadataQuorum
    ) -> None:
        self._directory = directory
        self._config = config
        self._begin_epochs = begin_epochs
        self._quorum = quorum

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> Steps[None]:
        """Opens, deletes and changes logs. Raises StorageError if a start cannot write."""
        directory = self._directory
        topic_ids: dict[str, UUID | None] | None = None
        if delta.is_initial:
            if not directory.clean:
                # A log may have lost its end. New records at the lost offsets get a new epoch, so that clients can find
                # the truncation by the epochs of the records that they have read.
                self._begin_epochs()
            topic_ids = directory.begin_recovery(image)
        if delta.deleted:
            yield from self._drop(delta.deleted.values())
        default = log_config(self._config, {})
        for topic in delta.new_topics:
            settings = self._settings(image, topic.name, default)
            opened = yield from directory.open_topic(topic, settings, topic_ids)
            directory.add(opened)
        for key, registration in delta.partitions.items():
            yield from self._change(key, registration, image, default)
        for name in self._reconfigured(delta, image):
            changed = image.topic(name)
            if changed is not None:
                yield from directory.reconfigure(changed, self._settings(image, name, default))
        if self._quorum.is_newest(image.log_end_offset):
            directory.end_recovery(image)

    def _change(
        self, key: tuple[str, int], registration: PartitionRegistration, image: CatalogView, default: LogConfig
    ) -> Steps[None]:
        """Opens, changes or removes the log of a partition whose registration has changed."""
        directory = self._directory
        if key in directory.partitions:
            directory.remove_later(directory.apply(key, registration), self._config.log_segment_delete_delay_ms)
        elif directory.is_assigned(registration):
            topic = image.topic(key[0])
            if topic is not None:
                directory.add((yield from directory.open_topic(topic, self._settings(image, key[0], default))))
        yield None

    def _drop(self, topics: Collection[Topic]) -> Steps[None]:
        directory = self._directory
        paths = []
        for topic in topics:
            paths += yield from directory.drop_topic(topic)
        yield from directory.forget(topics)
        directory.remove_later(paths, self._config.log_segment_delete_delay_ms)

    def _settings(self, image: CatalogView, name: str, default: LogConfig) -> LogConfig:
        own = image.topic_configs(name)
        return log_config(self._config, own) if own else default

    def _reconfigured(self, delta: Delta, image: CatalogView) -> Iterable[str]:
        """Returns the topics whose open logs get other settings."""
        if delta.is_initial:
            return ()
        if _alters_broker(delta):
            return [topic.name for topic in image.topics()]
        new = {topic.name for topic in delta.created.values()}
        return [name for kind, name in delta.configs if kind == TOPIC and name not in new]


class CleanerPublisher:
    """Publisher that starts the log cleaner for the first compacted log, and makes the cleaner forget deleted logs."""

    def __init__(self, directory: LogDirectory, config: BrokerConfig, owner: LogCleanerOwner) -> None:
        self._directory = directory
        self._config = config
        self._owner = owner

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        if not delta.is_initial and not _alters_logs(delta):
            return
        directory = self._directory
        has_work = directory.has_compacted or (delta.is_initial and directory.was_cleaned())
        if self._owner.existing_log_cleaner is None and not has_work:
            return
        self._owner.log_cleaner.forget_dropped()
        if self._config.log_cleaner_enable:
            self._owner.log_cleaner.start()


class CoordinatorResignations:
    """Publisher that unloads the shards of a coordinator that this node does not lead any more, and all of them when
    the internal topic is deleted."""

    def __init__(self, coordinator: AnyCoordinator, node_id: int) -> None:
        self._coordinator = coordinator
        self._node_id = node_id

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        runtime = self._coordinator.made_runtime
        if runtime is None:
            return
        for topic in delta.deleted.values():
            if topic.name == self._coordinator.topic:
                for index in range(topic.partition_count):
                    runtime.unload(index)
                runtime.partition_count = None
        for (name, index), registration in delta.partitions.items():
            if name == self._coordinator.topic and registration.leader != self._node_id:
                runtime.unload(index, registration.leader_epoch)


class CoordinatorElections:
    """Publisher that informs a coordinator of changed topics, and loads the partitions of its new internal topic."""

    def __init__(self, coordinator: AnyCoordinator, directory: LogDirectory) -> None:
        self._coordinator = coordinator
        self._directory = directory

    def on_metadata_update(self, delta: Delta, image: CatalogView) -> None:
        coordinator = self._coordinator
        coordinator.on_metadata_update(delta)
        for topic in delta.created.values():
            if topic.name == coordinator.topic:
                self._elect(topic, is_start=delta.is_initial)
        runtime = coordinator.made_runtime
        if runtime is not None and runtime.partition_count is not None:
            for (name, index), described in delta.partitions.items():
                partition = self._directory.led.get((name, index))
                if name == coordinator.topic and partition is not None and not partition.failure:
                    partition.on_high_watermark = runtime.on_high_watermark
                    runtime.load(index, partition, described.leader_epoch)

    def _elect(self, topic: Topic, *, is_start: bool) -> None:
        coordinator = self._coordinator
        configured = coordinator.topic_spec.partition_count
        if not is_start and topic.partition_count != configured:
            # As in Kafka: a coordinator reads the number of partitions at the start and cannot use another number.
            log.warning(
                "%s was created with %d partitions, but %s is %d: the broker serves %s only after a restart",
                topic.name, topic.partition_count, coordinator.type.partitions_setting, configured,
                coordinator.type.name,
            )  # fmt: skip
            return
        runtime = coordinator.runtime
        runtime.partition_count = topic.partition_count
        for described in topic.partitions:
            partition = self._directory.led.get((topic.name, described.partition_id))
            if partition is not None and not partition.failure:
                partition.on_high_watermark = runtime.on_high_watermark
                runtime.load(described.partition_id, partition, partition.leader_epoch)


def _alters_logs(delta: Delta) -> bool:
    has_topics = bool(delta.created or delta.grown or delta.deleted)
    return has_topics or any(kind in (TOPIC, BROKER) for kind, _ in delta.configs)


def _alters_broker(delta: Delta) -> bool:
    return any(kind == BROKER for kind, _ in delta.configs)
