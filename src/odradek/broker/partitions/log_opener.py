"""The opening and the creation of the logs of a data directory, and what a start knows about each of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast
from uuid import UUID

from odradek.broker.loop.scheduler import Steps
from odradek.broker.partitions.checkpoints import OffsetCheckpoints
from odradek.catalog.state import Topic
from odradek.core.errors import KafkaError, StorageError
from odradek.core.ids import PartitionKey, TopicPartition
from odradek.storage.config import LogConfig
from odradek.storage.disk import checkpoints
from odradek.storage.disk.files import Files
from odradek.storage.disk.write_failures import WriteFailures, is_passing
from odradek.storage.log import Log

if TYPE_CHECKING:
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.partitions.partition import Partition

log = logging.getLogger("odradek.broker")

Job = Callable[[], None]


class _NotCreated(StorageError):
    """The broker ends because a new log cannot be created."""


class LogWork(NamedTuple):
    """How a node does what its logs can do later: a sync, the removal of files after some ms, and work in steps. None:
    the log does it at once."""

    sync: Callable[[Job], None] | None = None
    removal: Callable[[int, Job], None] | None = None
    steps: Callable[[Steps[None]], object] | None = None


class LogOpener:
    """Opens the logs of ``partitions``, the partitions of the data directory ``path`` as they change."""

    def __init__(
        self,
        path: Path,
        files: Files,
        partitions: Mapping[PartitionKey, Partition],
        now_ms: Callable[[], int],
        *,
        offsets: OffsetCheckpoints,
        failures: WriteFailures,
    ) -> None:
        self.work = LogWork()
        """Set it before the first log is opened."""
        self.may_be_new: Callable[[UUID], bool] = lambda topic_id: False
        """Whether a topic may have been made while this node was away, so that a missing directory is no loss."""
        self.on_opened: Callable[[Partition], object] = lambda partition: None
        """Called with a partition whose log could not be opened at first."""
        self.has_compacted = False
        """Whether, since the start, a log has had a cleanup policy with compaction."""
        self.metadata_log: MetadataLog | None = None
        self._path = path
        self._files = files
        self._partitions = partitions
        self._now_ms = now_ms
        self._offsets = offsets
        self._failures = failures
        self._is_clean = False
        self._names_at_start: set[str] = set()

    def begin(self, names: Iterable[str], *, clean: bool) -> None:
        """``names``: the directories at the start. ``clean``: whether the last stop was clean."""
        self._names_at_start, self._is_clean = set(names), clean

    def forget(self, name: str) -> None:
        """Treats a directory as one that was not there at the start."""
        self._names_at_start.discard(name)

    def lost_epochs(self) -> dict[tuple[str, int], int]:
        """Returns the leader epochs to begin for partitions that may have lost records. Call it once, after a recovery.

        After a clean stop, the partitions are those with a damaged or missing log. After an unclean stop, they are
        those whose log has not begun the new epoch of the catalogue. In both cases, partitions whose log has
        a later epoch than the catalogue are included, because then the metadata log has lost its end.
        """
        names, self._names_at_start = self._names_at_start, set()
        epochs = {}
        for key, partition in self._partitions.items():
            if partition.failure:
                continue
            opened = partition.log
            if self._is_clean:
                is_suspect = opened.was_cut or str(TopicPartition(*key)) not in names
            else:
                is_suspect = not opened.began_epoch
            if is_suspect or opened.epochs.latest > partition.leader_epoch:
                epochs[key] = max(partition.leader_epoch, opened.epochs.latest) + 1
        return epochs

    def report_missing(self, topic: Topic, name: TopicPartition, *, has_later: bool) -> None:
        """Reports a directory that is missing at a start, unless a clean stop knows that its log had no record.

        ``Log.reopen`` reports it if a checkpoint knows its records. ``has_later``: a later partition has one."""
        is_there = self._files.exists(self._path / str(name))
        if (
            is_there
            or self.may_be_new(cast("UUID", topic.id))
            or self._is_missed(name)
            or (self._is_clean and name in self._offsets.points)
        ):
            return
        # The logs of a topic are made in order. So a later one, or a later change, shows that this one was made.
        metadata = None if self._is_clean or has_later else self.metadata_log
        if metadata is not None and topic.id in metadata.newest_topics():
            log.warning("%s: its directory is missing, and is made now: a crash has probably interrupted that", name)
            return
        log.error(
            "%s: its directory is missing: all records that it had are lost. The partition goes on without them, with "
            "a new leader epoch. To get them back, stop the broker and restore the directory from a copy", name,
        )  # fmt: skip

    def open(
        self, topic: Topic, partition: Partition, settings: LogConfig, topic_ids: Mapping[str, UUID | None]
    ) -> None:
        """Opens or creates the log of a partition. After a passing error it is tried again."""
        try:
            self._adopt(partition, self._open_log(topic, partition, settings, topic_ids))
        except (StorageError, KafkaError, OSError) as error:
            partition.failure = str(error)
            cause = error if isinstance(error, OSError) else error.__cause__
            if isinstance(error, _NotCreated):
                return
            if not isinstance(cause, OSError) or not is_passing(cause):
                log.error("partition %s-%d is offline: %s", partition.topic, partition.index, error)
                return
            path = self._path / f"{partition.topic}-{partition.index}"
            self._failures.begin(path, path, "open", cause, lambda: self._open_again(topic, partition, settings))

    def _open_log(
        self, topic: Topic, partition: Partition, settings: LogConfig, topic_ids: Mapping[str, UUID | None]
    ) -> Log:
        name = TopicPartition(topic.name, partition.index)
        path = self._path / str(name)
        if path.name not in topic_ids and not self._files.exists(path) and not self._is_missed(name):
            try:
                return self._create(path, name, topic, partition.first_epoch, settings)
            except OSError as error:
                if is_passing(error):
                    raise
                self._failures.end(path, f"cannot be created: {error}")
                raise _NotCreated(f"cannot be created: {error}") from error
        is_known = topic_ids.get(path.name) is not None
        if not is_known and checkpoints.read_partition_metadata(path, self._files) is None:
            self._files.make_dirs(path)
            self._write_metadata(path, topic)
        known = self._offsets.witnesses(name, clean=self._is_clean, is_guarded=topic.internal)
        epoch = partition.first_epoch
        return Log.reopen(path, settings, self._now_ms(), known, leader_epoch=epoch, files=self._files)

    def _open_again(self, topic: Topic, partition: Partition, settings: LogConfig) -> None:
        """Opens a log that could not be opened before, unless its topic was deleted. Raises OSError."""
        if self._partitions.get((partition.topic, partition.index)) is not partition:
            return
        try:
            self._adopt(partition, self._open_log(topic, partition, settings, {}))
        except (StorageError, KafkaError) as error:
            if isinstance(error.__cause__, OSError):
                raise error.__cause__ from None
            partition.failure = str(error)
            log.error("partition %s-%d is offline: %s", partition.topic, partition.index, error)
        else:
            self.on_opened(partition)

    def _adopt(self, partition: Partition, opened: Log) -> None:
        self.has_compacted |= opened.config.is_compacted
        opened.disk.failures = self._failures
        opened.sync.defer = self.work.sync
        opened.removals.defer = self.work.removal
        opened.producer_snapshots.run_steps = self.work.steps
        name = TopicPartition(partition.topic, partition.index)
        partition.adopt(opened, self._offsets.high_watermarks.get(name, 0))

    def _is_missed(self, name: TopicPartition) -> bool:
        """Returns whether, at a start, a checkpoint knows records of the partition."""
        points, watermarks = self._offsets.points, self._offsets.watermarks
        return bool(self._names_at_start) and max(points.get(name, 0), watermarks.get(name, 0)) > 0

    def _create(self, path: Path, name: TopicPartition, topic: Topic, leader_epoch: int, settings: LogConfig) -> Log:
        self._offsets.remove({name})
        self._files.make_dirs(path)
        self._write_metadata(path, topic)
        return Log.create(path, settings, self._now_ms(), leader_epoch=leader_epoch, files=self._files)

    def _write_metadata(self, path: Path, topic: Topic) -> None:
        """Writes partition.metadata without a sync: if a power failure deletes it, it is written again."""
        checkpoints.write_partition_metadata(path, cast(UUID, topic.id), self._files, sync=False)
