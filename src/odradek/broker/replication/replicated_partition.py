"""A partition with several replicas: what a follower does with its log.

A follower's log gets the bytes of its leader, and is cut where it differs from the leader's log. Each cut is noted on
the disk first: the recovery point must never be above the end of the log (``LogDirectory.note_truncation``). All work
on the log ends with NOT_LEADER_OR_FOLLOWER when the role or the leader epoch changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.partition_roles import PartitionRole
from odradek.core.errors import ErrorCode, KafkaError
from odradek.storage.fetched_batches import UnexpectedOffset

if TYPE_CHECKING:
    from odradek.batches.steps import BatchSteps
    from odradek.storage.appends import AppendInfo


class ReplicatedPartition(Partition):
    """A partition of several replicas.

    ``note_truncation``: lowers the noted recovery point of the partition to an offset, before the log is cut there.
    Raises StorageError.
    """

    __slots__ = ("_note_truncation",)

    def __init__(
        self,
        topic: str,
        index: int,
        now_ms: Callable[[], int],
        note_truncation: Callable[[Partition, int], None],
    ) -> None:
        super().__init__(topic, index, None, now_ms)
        self._note_truncation = note_truncation

    # --- a follower's log ---------------------------------------------------------------------------------------

    def append_fetched(self, data: bytes) -> BatchSteps[AppendInfo | None]:
        """Appends what this follower has fetched from its leader, in steps. See ``Log.begin_append_fetched``.

        An empty log may begin below the offset that was asked for: the leader's log start may be inside of a batch.
        Raises NOT_LEADER_OR_FOLLOWER if the role or the leader epoch changes before the last step.
        """
        epoch, log = self.leader_epoch, self.log
        steps = log.begin_append_fetched(data, now_ms=self._now_ms, leader_epoch=epoch)
        while True:
            self._check_follows(epoch)
            try:
                yield next(steps)
            except StopIteration as done:
                info: AppendInfo | None = done.value
                return info
            except UnexpectedOffset as error:
                end = log.log_end_offset
                if log.log_start_offset != end or not error.first_offset < end <= error.last_offset:
                    raise
                self.restart_at(error.first_offset)
                steps = log.begin_append_fetched(data, now_ms=self._now_ms, leader_epoch=epoch)

    def truncate_to(self, offset: int) -> BatchSteps[None]:
        """Removes the batch with ``offset`` and all later ones, in steps. See ``Log.begin_truncation``.

        The first step cuts the log, the later ones find out what its producers have written. Raises StorageError if
        the cut cannot be noted: nothing is cut then.
        """
        epoch, log = self.leader_epoch, self.log
        self._check_follows(epoch)
        if offset < log.log_end_offset:
            self._note_truncation(self, self._end_before(offset))
        rest = log.begin_truncation(offset, self._now_ms())
        for _ in rest:
            yield None
            self._check_follows(epoch)

    def _end_before(self, offset: int) -> int:
        """Returns the end of the log after a cut at ``offset``: a batch is removed as a whole."""
        log = self.log
        if offset <= log.log_start_offset:
            return min(offset, log.segments[0].base_offset)
        return min(offset, log.read(offset, 1, max_offset=log.log_end_offset).base_offset)

    def restart_at(self, offset: int) -> None:
        """Removes all records: the log begins again, empty, at ``offset``. Raises StorageError, KafkaError."""
        self._check_follows(self.leader_epoch)
        self._note_truncation(self, min(offset, self.log.log_start_offset))
        self.log.restart_at(offset, self._now_ms())

    def _check_follows(self, epoch: int) -> None:
        if self.role is not PartitionRole.FOLLOWER or self.leader_epoch != epoch:
            raise KafkaError(
                ErrorCode.not_leader_or_follower, f"{self.topic}-{self.index} does not follow in epoch {epoch} now"
            )
