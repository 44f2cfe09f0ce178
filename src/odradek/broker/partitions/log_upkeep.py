"""The periodic work on all logs of a data directory, and their checkpoints. If one log fails, only it goes offline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from odradek.broker.loop.scheduler import Steps
from odradek.broker.metadata_log.check import METADATA_PARTITION
from odradek.broker.partitions.checkpoints import OffsetCheckpoints, starts_of
from odradek.core.errors import KafkaError
from odradek.core.ids import PartitionKey, TopicPartition
from odradek.storage.disk import checkpoints
from odradek.storage.disk.write_failures import WriteFailures
from odradek.storage.log import Log

if TYPE_CHECKING:
    from odradek.broker.metadata_log.log import MetadataLog
    from odradek.broker.partitions.partition import Partition


def is_usable(partition: Partition) -> bool:
    """Returns whether the log is open and online."""
    return not partition.failure and partition.log.disk.offline is None


class LogUpkeep:
    """``partitions``: those with a log in the directory ``path``, as they change."""

    def __init__(
        self,
        path: Path,
        partitions: Mapping[PartitionKey, Partition],
        now_ms: Callable[[], int],
        *,
        offsets: OffsetCheckpoints,
        failures: WriteFailures,
    ) -> None:
        self.metadata_log: MetadataLog | None = None
        self._path = path
        self._partitions = partitions
        self._now_ms = now_ms
        self._offsets = offsets
        self._failures = failures

    def retain(self) -> None:
        """Applies retention to all logs."""
        for partition in tuple(self._partitions.values()):
            if is_usable(partition):
                with suppress(KafkaError):  # the log has logged the reason and is offline from now on
                    partition.log.removals.retain(self._now_ms())

    def expire_producers(self) -> Steps[None]:
        """Removes inactive producers from all logs."""
        for partition in tuple(self._partitions.values()):
            if is_usable(partition):
                yield from partition.log.expire_producers(self._now_ms())
            yield None

    def flush_due(self) -> None:
        """Syncs the logs whose flush.ms has passed."""
        for partition in tuple(self._partitions.values()):
            if is_usable(partition):
                with suppress(KafkaError):
                    partition.log.flush_if_due(self._now_ms())

    def checkpoint_recovery_points(self) -> None:
        """Writes the offsets up to which logs are synced; after a passing error later."""
        self._failures.attempt(self._path / checkpoints.RECOVERY_POINT, self._write_recovery_points)

    def checkpoint_log_starts(self) -> None:
        """Writes the checkpoint of log start offsets that are above the first segment's base offset."""
        self._failures.attempt(self._path / checkpoints.LOG_START, self._write_log_starts)

    def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks, for partitions that wait for other replicas after a start."""
        self._failures.attempt(self._path / checkpoints.HIGH_WATERMARK, self._write_high_watermarks)

    def _write_high_watermarks(self) -> None:
        noted = self._offsets.high_watermarks
        offline = {name: noted[name] for name in self._offline() if name in noted}
        self._offsets.write_high_watermarks(
            offline
            | {TopicPartition(*key): one.high_watermark for key, one in self._partitions.items() if is_usable(one)}
        )

    def _write_recovery_points(self) -> None:
        points = {name: one.recovery_point for name, one in self._usable_logs()}
        self._offsets.write_points(points | self._without_log())

    def _write_log_starts(self) -> None:
        noted = self._offsets.starts
        self._offsets.write_starts(
            starts_of(self._usable_logs()) | {name: noted[name] for name in self._offline() if name in noted}
        )

    def _usable_logs(self) -> Iterable[tuple[TopicPartition, Log]]:
        return ((TopicPartition(*key), one.log) for key, one in self._partitions.items() if is_usable(one))

    def _offline(self) -> list[TopicPartition]:
        return [TopicPartition(*key) for key, one in self._partitions.items() if not is_usable(one)]

    def _without_log(self) -> dict[TopicPartition, int]:
        """Returns the recovery points of the metadata log, and the noted ones of partitions that are offline: the next
        start needs them as witnesses."""
        noted = self._offsets.points
        points = {name: noted[name] for name in self._offline() if name in noted}
        if self.metadata_log is not None:
            points[METADATA_PARTITION] = self.metadata_log.synced_end
        return points

    def write_last(self, watermarks: Mapping[TopicPartition, int]) -> None:
        """Writes all checkpoints at a stop, after the logs with these high watermarks were closed. Raises OSError."""
        closed = {name: self._partitions[name].log for name in watermarks}
        self._offsets.write_last(closed, watermarks, self._without_log(), self._offline())
