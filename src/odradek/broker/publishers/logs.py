"""The publishers of the logs of a node: its partitions, and the log cleaner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.broker.publishers.broker_settings import alters_broker
from odradek.broker.settings.config import log_config
from odradek.catalog.state import BROKER, TOPIC, Topic

if TYPE_CHECKING:
    from typing import Protocol
    from uuid import UUID

    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.metadata.quorum import MetadataQuorum
    from odradek.broker.partitions.log_cleaner import BrokerLogCleaner
    from odradek.broker.partitions.log_directory import LogDirectory
    from odradek.broker.settings.config import BrokerConfig
    from odradek.catalog.delta import Delta
    from odradek.catalog.registrations import PartitionRegistration
    from odradek.storage.config import LogConfig

    # For type checks only: at run time the Protocol would occupy kilobytes.

    class LogCleanerOwner(Protocol):
        """The part of a broker that makes the log cleaner at its first use."""

        @property
        def log_cleaner(self) -> BrokerLogCleaner: ...

        @property
        def existing_log_cleaner(self) -> BrokerLogCleaner | None: ...


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
        if alters_broker(delta):
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
        has_work = directory.opener.has_compacted or (delta.is_initial and directory.was_cleaned())
        if self._owner.existing_log_cleaner is None and not has_work:
            return
        self._owner.log_cleaner.forget_dropped()
        if self._config.log_cleaner_enable:
            self._owner.log_cleaner.start()


def _alters_logs(delta: Delta) -> bool:
    has_topics = bool(delta.created or delta.grown or delta.deleted)
    return has_topics or any(kind in (TOPIC, BROKER) for kind, _ in delta.configs)
