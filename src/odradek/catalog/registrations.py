"""The state of a partition after all its records. A change makes a new registration and leaves the former one."""

from __future__ import annotations

from typing import Any, NamedTuple

from odradek.catalog.records import Id16, PartitionChangeRecord, PartitionRecord


class PartitionRegistration(NamedTuple):
    """One partition. Without a leader, ``leader`` is −1. ``directories`` has the log directory of each replica.

    ``elr`` and ``last_known_elr`` (KIP-966): replicas outside of the ISR that have, or may have, all committed records.
    ``recovery_state``: 1 after an unclean election, until the leader has recovered. ``partition_epoch`` is the number
    of changes.
    """

    partition_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    recovery_state: int
    removing: tuple[int, ...]
    adding: tuple[int, ...]
    directories: tuple[Id16, ...]
    elr: tuple[int, ...]
    last_known_elr: tuple[int, ...]

    @classmethod
    def of(cls, record: PartitionRecord) -> PartitionRegistration:
        replicas = record.replicas
        return cls(
            partition_id=record.partition_id,
            replicas=replicas,
            isr=replicas if record.isr == replicas else record.isr,  # one tuple for both: a cluster has many partitions
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            recovery_state=record.recovery_state,
            removing=record.removing,
            adding=record.adding,
            directories=record.directories,
            elr=record.elr,
            last_known_elr=record.last_known_elr,
        )

    def changed(self, record: PartitionChangeRecord) -> PartitionRegistration:
        """Returns the partition after this change. Naming a leader begins a new leader epoch, even for the same one."""
        begins_epoch = record.leader is not None
        changes: dict[str, Any] = {
            name: value for name, value in zip(_CHANGED, record[2:], strict=True) if value is not None
        }
        return self._replace(
            **changes,
            leader_epoch=self.leader_epoch + begins_epoch,
            partition_epoch=self.partition_epoch + 1,
        )

    def least_isr(self, min_isr: int) -> int:
        """Returns ``min.insync.replicas`` as it acts here: at most the number of replicas, as in Kafka 4.3."""
        return min(min_isr, len(self.replicas))

    def directory(self, broker_id: int) -> Id16 | None:
        """Returns the log directory of a replica. None if it is not known, or the broker is no replica."""
        if not self.directories or broker_id not in self.replicas:
            return None
        return self.directories[self.replicas.index(broker_id)]

    def record(self, topic_id: Id16) -> PartitionRecord:
        """Returns the record of a snapshot."""
        return PartitionRecord(
            partition_id=self.partition_id,
            topic_id=topic_id,
            replicas=self.replicas,
            isr=self.isr,
            leader=self.leader,
            leader_epoch=self.leader_epoch,
            partition_epoch=self.partition_epoch,
            directories=self.directories,
            removing=self.removing,
            adding=self.adding,
            recovery_state=self.recovery_state,
            elr=self.elr,
            last_known_elr=self.last_known_elr,
        )


_CHANGED = PartitionChangeRecord._fields[2:]
