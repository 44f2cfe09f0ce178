"""The periodic work on all logs of a data directory. If one log fails, only this log goes offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from odradek.broker.loop.scheduler import Steps
from odradek.broker.partitions.partition import Partition
from odradek.core.errors import KafkaError
from odradek.core.ids import PartitionKey


def is_usable(partition: Partition) -> bool:
    """Returns whether the log is open and online."""
    return not partition.failure and partition.log.disk.offline is None


class LogUpkeep:
    """``partitions``: those with a log in the directory, as they change."""

    def __init__(self, partitions: Mapping[PartitionKey, Partition], now_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._now_ms = now_ms

    def retain(self) -> None:
        """Applies retention to all logs."""
        for partition in tuple(self._partitions.values()):
            if is_usable(partition):
                with suppress(KafkaError):  # the log has logged the reason and is offline from now on
                    partition.log.retain(self._now_ms())

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
