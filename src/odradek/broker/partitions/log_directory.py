"""The data directory of a broker: its identity, the partitions' logs, and the checkpoint files.

``topic-N`` has a partition's log. ``topic-N.<32 hex digits>-delete`` has a log that is to be deleted, and
``topic-N.<32 hex digits>-stray`` a log that the catalogue did not know (``broker/metadata_log/stray_logs``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from odradek.broker.loop.scheduler import Steps
from odradek.broker.loop.world import NodeWorld
from odradek.broker.metadata.stored_catalog import StoredCatalog
from odradek.broker.metadata_log.log import DIRECTORY as METADATA_DIRECTORY
from odradek.broker.metadata_log.log import MetadataConfig, MetadataLog
from odradek.broker.metadata_log.mark import MetadataMark, encode_id
from odradek.broker.metadata_log.replay import DamagedMetadata
from odradek.broker.metadata_log.reserved_ids import NO_UUID
from odradek.broker.metadata_log.stray_logs import (
    DELETE_SUFFIX,
    UndecidedDirectories,
    remove_directory,
    renamed,
)
from odradek.broker.partitions import directory_identity
from odradek.broker.partitions.checkpoints import OffsetCheckpoints
from odradek.broker.partitions.directory_identity import DirectoryLock
from odradek.broker.partitions.log_opener import LogOpener
from odradek.broker.partitions.log_upkeep import LogUpkeep, is_usable
from odradek.broker.partitions.partition_roles import PartitionRole, role_of
from odradek.broker.settings.config import BrokerConfig
from odradek.catalog.state import CatalogState, Topic
from odradek.core.errors import ErrorCode, KafkaError, StorageError
from odradek.core.ids import TopicPartition
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.disk.write_failures import WriteFailures, is_passing
from odradek.storage.log import Log

if TYPE_CHECKING:
    from odradek.broker.metadata.catalog_view import CatalogView
    from odradek.broker.partitions.partition import Partition
    from odradek.catalog.registrations import PartitionRegistration

log = logging.getLogger("odradek.broker")

Job = Callable[[], None]

GROWTH_LOGS = 500
CLOSING_THREADS = 16
"""The number of logs that are synced and closed at the same time when the broker stops. Kafka uses
num.recovery.threads.per.data.dir."""


class LogDirectory:
    """The logs of one data directory. Only one broker at a time may use it, so ``acquire`` is the first call."""

    def __init__(
        self, path: Path, now_ms: Callable[[], int], files: Files | None = None, world: NodeWorld | None = None
    ) -> None:
        self.path = path
        self.partitions: dict[tuple[str, int], Partition] = {}
        """The partitions whose logs are assigned to this node."""
        self.led: dict[tuple[str, int], Partition] = {}
        """Those of them that this node leads: only they serve clients."""
        self.cluster_id = ""
        self.node_id = 1
        self.clean = False
        self.on_growth: Job = _do_nothing
        """Called after each ``GROWTH_LOGS`` new logs."""
        self.broker_epoch = -1
        """The broker epoch of this incarnation, which the mark of a clean stop keeps; −1 for a lone broker."""
        self.steady_ms: Callable[[], int] = lambda: 0
        """The clock of the fetches of followers, which no test moves."""
        self.new_partition: Callable[[Topic, PartitionRegistration], Partition] = self._new_partition
        """Makes the object of a partition, before its log is opened."""
        self.is_new = False
        """Whether no broker has used the directory before this start."""
        self._made, self._has_undecided = 0, False
        self._directory_id = NO_UUID
        self._now_ms = now_ms
        own = world or NodeWorld.of_process()
        self._files, self._new_uuid, self._new_threads = files or own.files, own.new_uuid, own.new_threads
        self.failures = WriteFailures()
        self.lock = DirectoryLock(path, self._files)
        offsets = self._offsets = OffsetCheckpoints(path, self._files)
        self.upkeep = LogUpkeep(path, self.partitions, now_ms, offsets=offsets, failures=self.failures)
        self.opener = LogOpener(path, self._files, self.partitions, now_ms, offsets=offsets, failures=self.failures)
        self._undecided = UndecidedDirectories(path, self._files)

    @property
    def files(self) -> Files:
        """The file system of the logs."""
        return self._files

    @property
    def directory_id(self) -> UUID:
        """The id in meta.properties, after ``acquire``."""
        return self._directory_id

    # --- lock and identity --------------------------------------------------------------------------------------

    def acquire(self, config: BrokerConfig, address: tuple[str, int] | None = None) -> None:
        """Creates the directory if it is missing, locks it, and reads or writes meta.properties.

        Raises StorageError if the directory is locked or not usable, ConfigError if it belongs to another node.id.
        """
        self.lock.acquire(address)
        self.identify(config)

    def identify(self, config: BrokerConfig) -> None:
        """Reads or writes meta.properties in the locked directory, and reads whether the last stop was clean.

        Raises StorageError if there are logs of topics, but neither a metadata log nor a sign that it was lost.

        Apache Kafka has such directories with ZooKeeper, and with a metadata log elsewhere (``metadata.log.dir``).
        """
        follows = config.roles is not None and not config.roles.is_controller
        directory_identity.end_conversion(self.path, self._files, self._now_ms, follows=follows)
        # A broker of a cluster gets a lost metadata log from the controller again.
        has_catalog = not follows and directory_identity.check_origin(self.path, self._files)
        identity = directory_identity.identify(self.path, self._files, config, self._new_uuid, is_used=has_catalog)
        self.node_id, self.cluster_id, self._directory_id, self.is_new = identity
        self.clean = checkpoints.read_clean_shutdown(self.path, self._files)
        if config.roles is None and has_catalog:
            directory_identity.check_lone(self.path, self._files, self.node_id)

    # --- start --------------------------------------------------------------------------------------------------

    def open_catalog(self, config: MetadataConfig | None = None, state: CatalogState | None = None) -> StoredCatalog:
        """Reads the catalogue into ``state``; None: that of a lone broker. Raises StorageError."""
        try:
            catalog = StoredCatalog.read_into(
                state or CatalogState(lambda data: UUID(bytes=data), (self.node_id,), self._directory_id),
                self.path,
                MetadataMark(0, str(self.node_id), self.cluster_id, encode_id(self._directory_id)),
                clean=self.clean,
                now_ms=self._now_ms,
                files=self._files,
                config=config,
            )
        except DamagedMetadata:
            raise
        except (KafkaError, StorageError, OSError, ValueError) as error:
            raise StorageError(f"{self.path / METADATA_DIRECTORY} cannot be read: {error}") from error
        self.adopt_metadata_log(catalog.log)
        return catalog

    def adopt_metadata_log(self, metadata_log: MetadataLog) -> None:
        """Uses a metadata log that is open already: the copy of a node that follows the controller."""
        metadata_log.report_failures_to(self.failures)
        self.opener.metadata_log = self.upkeep.metadata_log = metadata_log

    def begin_recovery(self, image: CatalogView) -> dict[str, UUID | None]:
        """Reads the checkpoints, removes the mark of a clean stop, and deletes the directories of removed topics. Then
        the logs can be opened.

        Returns the topic's id for each directory of a partition, or None where it is not known. Raises StorageError.
        """
        self._offsets.read(clean=self.clean)
        checkpoints.remove_clean_shutdown(self.path, self._files)
        try:
            topic_ids = self._undecided.sort(image)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be used: {error}") from error
        self._has_undecided = True
        self.opener.begin(self._files.list(self.path), clean=self.clean)
        return topic_ids

    def end_recovery(self, image: CatalogView) -> None:
        """Sets aside the directories that the catalogue does not know, and removes their checkpoints.

        For a node that has applied the newest record that it knows of. Later calls do nothing. Raises StorageError.
        """
        if not self._has_undecided:
            return
        self._has_undecided = False
        try:
            self._undecided.decide(image, self._offsets.starts)
        except OSError as error:
            raise StorageError(f"{self.path} cannot be used: {error}") from error
        self._offsets.keep_known({topic.name for topic in image.topics()})
        # A recovery may keep records below a noted start. The file may have no witness against it at the next start.
        self.upkeep.checkpoint_log_starts()

    def is_assigned(self, registration: PartitionRegistration) -> bool:
        """Returns whether this node has a replica of the partition."""
        return role_of(registration, self.node_id) is not PartitionRole.REMOVED

    def apply(self, key: tuple[str, int], registration: PartitionRegistration) -> list[Path]:
        """Applies a changed registration to an open partition (``Partition.apply``).

        Returns paths for ``remove_later``: those of a log that is not assigned to this node any more."""
        partition = self.partitions.get(key)
        if partition is None:
            return []
        try:
            partition.apply(registration, self.node_id, self.steady_ms())
        except KafkaError as error:
            if not partition.failure:
                log.error("partition %s-%d is offline: %s", *key, error.message)
        if partition.role is PartitionRole.LEADER:
            self.led[key] = partition
        else:
            self.led.pop(key, None)
        if partition.role is not PartitionRole.REMOVED:
            return []
        paths = self._drop(key)
        self._offsets.try_remove({TopicPartition(*key)})
        return paths

    def note_truncations(self, ends: Mapping[TopicPartition, int]) -> None:
        """Lowers recovery points in the checkpoint. Call it before the logs of followers are cut there; a thread may.

        After a crash, a log that ends below its recovery point has lost records, and one of an internal topic goes
        offline. Raises OSError.
        """
        self._offsets.lower_points(ends)

    def check_room(self) -> None:
        """Raises KafkaError (KAFKA_STORAGE_ERROR) if no more logs can be created now.

        Clients retry after this error. A retry can succeed when connections or files have been closed.
        """
        if len(self.failures) and self.failures.retry():
            raise KafkaError(ErrorCode.kafka_storage_error, "The disk is full, or a limit of files is reached.")
        if not self._files.has_room():
            raise KafkaError(ErrorCode.kafka_storage_error, "Too few file descriptors are left for more partitions.")

    def was_cleaned(self) -> bool:
        """Returns whether there is a checkpoint of the log cleaner."""
        return self._files.exists(self.path / checkpoints.CLEANER)

    def open_topic(
        self, topic: Topic, settings: LogConfig, topic_ids: Mapping[str, UUID | None] | None = None
    ) -> Steps[dict[tuple[str, int], Partition]]:
        """Opens or creates the logs of a topic's partitions that are assigned to this node and not open yet.

        Returns these partitions, for ``add``. ``topic_ids``: at a start, for each existing directory, the topic's id in
        its partition.metadata, or None.
        """
        opened = {}
        last = _last_index(topic, topic_ids) if topic_ids is not None else -1
        for described in topic.partitions:
            key = (topic.name, described.partition_id)
            if key in self.partitions or not self.is_assigned(described):
                continue
            name = TopicPartition(*key)
            if self._has_undecided and self._undecided.give(topic, str(name), self._offsets.starts):
                self.opener.forget(str(name))
            if topic_ids is not None and str(name) not in topic_ids:
                self.opener.report_missing(topic, name, has_later=last > name.partition)
            partition = opened[key] = self.new_partition(topic, described)
            partition.apply(described, self.node_id, self.steady_ms())
            self.opener.open(topic, partition, settings, topic_ids or {})
            self._made += 1
            if self._made % GROWTH_LOGS == 0:
                self.on_growth()
            yield None
        return opened

    def _new_partition(self, topic: Topic, registration: PartitionRegistration) -> Partition:
        from odradek.broker.partitions.partition import Partition  # here, because a start without topics needs none

        return Partition(topic.name, registration.partition_id, None, self._now_ms)

    def add(self, opened: Mapping[tuple[str, int], Partition]) -> None:
        """Adds opened partitions: from here on, those that this node leads serve clients."""
        self.partitions.update(opened)
        self.led.update((key, one) for key, one in opened.items() if one.role is PartitionRole.LEADER)

    # --- deletion -----------------------------------------------------------------------------------------------

    def drop_topic(self, topic: Topic) -> Steps[list[Path]]:
        """Stops serving a topic's logs and renames their directories. Returns the new paths, for ``remove_later``.

        The caller has to call ``forget`` afterwards.
        """
        paths: list[Path] = []
        for described in topic.partitions:
            key = (topic.name, described.partition_id)
            if key in self.partitions:
                partition = self.partitions[key]
                paths += self._drop(key)
                partition.remove(ErrorCode.unknown_topic_or_partition)
                yield None
        return paths

    def _drop(self, key: tuple[str, int]) -> list[Path]:
        """Takes a log out of service. Returns the new path of its directory."""
        partition = self.partitions.pop(key)
        self.led.pop(key, None)
        name = TopicPartition(*key)
        path, paths = self.path / str(name), []
        try:
            if partition.failure:
                remove_directory(path, self._files)
            else:
                partition.log.path = self._take_away(path, self.path / renamed(name, DELETE_SUFFIX, self._new_uuid))
                partition.log.retire()
                paths.append(partition.log.path)
        except (OSError, KafkaError) as error:
            log.error("%s could not be removed: %s", path, error)
        return paths

    def _take_away(self, path: Path, doomed: Path) -> Path:
        """Renames a directory that is to be deleted. Returns its present path."""
        try:
            self._files.rename(path, doomed)
        except OSError as error:  # a full disk may have no room for the longer name
            if not is_passing(error):
                raise
            remove_directory(path, self._files)  # now: a topic of the same name may be created before the delay is over
            return path
        return doomed

    def forget(self, topics: Iterable[Topic]) -> Steps[None]:
        """Removes deleted topics from the checkpoints."""
        names = set()
        for topic in topics:
            for described in topic.partitions:
                names.add(TopicPartition(topic.name, described.partition_id))
                yield None
        self._offsets.try_remove(names)

    def remove_later(self, paths: Sequence[Path], delay_ms: int) -> None:
        """Removes directories after a delay. If the broker stops before, its next start removes them."""

        def remove() -> None:
            for path in paths:
                try:
                    remove_directory(path, self._files)
                except OSError as error:
                    log.error("%s could not be removed: %s", path, error)

        if not paths:
            return
        if self.opener.work.removal is None:
            remove()
        else:
            self.opener.work.removal(delay_ms, remove)

    # --- upkeep -------------------------------------------------------------------------------------------------

    def reconfigure(self, topic: Topic, settings: LogConfig) -> Steps[None]:
        """Applies new settings to the open logs of a topic."""
        for index in range(topic.partition_count):
            partition = self.partitions.get((topic.name, index))
            if partition is not None and not partition.failure:
                self.opener.has_compacted |= settings.is_compacted
                partition.reconfigure(settings)
            yield None

    def close(self, *, whole: bool = True) -> None:
        """Closes every log, writes the checkpoints and releases the lock.

        Also writes the mark of a clean stop, unless a log could not be closed or ``whole`` is False.
        """
        watermarks = {}
        logs = []
        for key, partition in self.partitions.items():
            if not is_usable(partition):
                whole = False
                continue
            watermarks[TopicPartition(*key)] = partition.high_watermark
            logs.append(partition.log)
        # A close mostly waits for the disk, and a disk executes many syncs at once nearly as fast as one.
        with self._new_threads(CLOSING_THREADS, "closing") as pool:
            whole = all([*pool.map(_close_log, logs), whole])
        try:
            self.upkeep.write_last(watermarks)
            if whole:
                checkpoints.write_clean_shutdown(self.path, self._files, self.broker_epoch)
        except OSError as error:
            log.error("the checkpoints of %s could not be written: %s", self.path, error)
        self.lock.release()

    def abandon(self) -> None:
        """Releases the logs and the lock without any write. The next broker finds the directory as after a kill."""
        if self.opener.metadata_log is not None:
            self.opener.metadata_log.abandon()
        for partition in self.partitions.values():
            if is_usable(partition):
                partition.log.abandon()
        self.lock.release()


def _do_nothing() -> None: ...


def _close_log(closing: Log) -> bool:
    """Closes a log. Returns whether this succeeded. A log that fails has logged the reason."""
    try:
        closing.close()
    except KafkaError:
        return False
    return True


def _last_index(topic: Topic, topic_ids: Mapping[str, UUID | None]) -> int:
    """Returns the index of the topic's last partition with a directory, or −1."""
    indexes = reversed(range(topic.partition_count))
    return next((index for index in indexes if f"{topic.name}-{index}" in topic_ids), -1)
