"""Errors that only consumers raise."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from odradek.client.errors import IllegalState
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition

__all__ = [
    "CommitFailed",
    "FencedInstance",
    "IllegalState",
    "InvalidGroupId",
    "NoOffsetForPartition",
    "OffsetStoreBehind",
    "PartitionOwned",
    "RebalanceInProgress",
    "RetriableCommitFailed",
    "UnreleasedInstance",
    "Wakeup",
]

_SLOW = "If the time between two polls exceeded max_poll_interval_ms, increase it, or decrease max_poll_records"


class CommitFailed(KafkaError):
    """The commit was refused, because other consumers may own the partitions now.

    After ``subscribe``: the group has removed this member. The new owners read again from this member's last commit.
    After ``assign``: the group has live members. With ``offsets_storage=zookeeper``: another writer has changed an
    offset, another consumer owns a partition, or the ZooKeeper session has expired."""

    def __init__(self, why: str, remedy: str = _SLOW) -> None:
        super().__init__(ErrorCode.unknown_member_id, f"the commit failed: {why}. {remedy}")


class RetriableCommitFailed(KafkaError):
    """An asynchronous commit failed with a retriable error. There is no retry: it could overwrite a later commit."""

    def __init__(self, cause: BaseException) -> None:
        code = cause.code if isinstance(cause, KafkaError) else ErrorCode.network_exception
        super().__init__(code, f"an asynchronous commit failed and is not retried: {cause}")

    @property
    def retriable(self) -> bool:
        return True


class RebalanceInProgress(KafkaError):
    """The group is in a rebalance: poll, so that this member takes part, then commit again."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.rebalance_in_progress, "the group is in a rebalance: call poll(), then commit again")


class NoOffsetForPartition(OdradekError):
    """A partition has no committed offset, and ``auto_offset_reset`` is none."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = tuple(sorted(partitions))
        names = ", ".join(map(str, self.partitions))
        super().__init__(
            f"no committed offset for {names}, and auto_offset_reset is none: seek() first, or set earliest or latest"
        )


class PartitionOwned(OdradekError):
    """In ZooKeeper, another consumer owns partitions of this consumer's assignment. It did not give them up in time."""

    def __init__(self, owners: Mapping[TopicPartition, str], waited_ms: int) -> None:
        self.partitions = tuple(sorted(owners))
        names = "; ".join(f"{tp} by {owners[tp]}" for tp in self.partitions)
        super().__init__(
            f"another consumer owns partitions of the group in ZooKeeper, also after {waited_ms} ms: {names}: stop "
            "that consumer, or increase default_api_timeout_ms if it is about to end"
        )


class OffsetStoreBehind(OdradekError):
    """The group has a larger committed offset in Kafka than in ZooKeeper, so ``offsets_storage=zookeeper`` would resume
    at an old offset."""

    def __init__(self, group_id: str, offsets: Mapping[TopicPartition, tuple[int | None, int]]) -> None:
        self.partitions = tuple(sorted(offsets))
        names = "; ".join(
            f"{tp} has {'no offset' if offsets[tp][0] is None else offsets[tp][0]}, Kafka {offsets[tp][1]}"
            for tp in self.partitions
        )
        super().__init__(
            f"group {group_id}: ZooKeeper is behind Kafka: {names}. Take Kafka's offsets over with "
            "odradek zookeeper migrate --to zookeeper --on-conflict source --execute, or delete them with "
            "odradek groups delete-offsets"
        )


class InvalidGroupId(KafkaError):
    """The call needs a ``group_id``."""

    def __init__(self, what: str) -> None:
        super().__init__(ErrorCode.invalid_group_id, f"{what} needs a group_id")


class FencedInstance(KafkaError):
    """Another consumer uses this ``group_instance_id``: this consumer must stop."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            ErrorCode.fenced_instance_id,
            f"group_instance_id {instance_id!r} is used by another consumer now: each consumer needs its own",
        )


class UnreleasedInstance(KafkaError):
    """Another member uses this ``group_instance_id`` and has not left (``group_protocol=consumer``)."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            ErrorCode.unreleased_instance_id,
            f"group_instance_id {instance_id!r} is used by another consumer: close that one first, or wait for the end "
            "of its session",
        )


class Wakeup(OdradekError):
    """``wakeup()`` ended the waiting call. The broker may have processed the call's request."""

    def __init__(self, what: str = "wakeup() was called") -> None:
        super().__init__(what)
