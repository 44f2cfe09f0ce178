"""Errors that only consumers raise."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.client.errors import IllegalState
from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition

__all__ = [
    "CommitFailed",
    "FencedInstance",
    "IllegalState",
    "InvalidGroupId",
    "NoOffsetForPartition",
    "RebalanceInProgress",
    "RetriableCommitFailed",
    "UnreleasedInstance",
    "Wakeup",
]

_SLOW = "If the time between two polls exceeded max_poll_interval_ms, increase it, or decrease max_poll_records"


class CommitFailed(KafkaError):
    """The group has removed this member, so it cannot commit.

    The new owners of its partitions read all records after its last commit again."""

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
    """No committed offset, and ``auto_offset_reset`` is none."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        self.partitions = tuple(sorted(partitions))
        names = ", ".join(map(str, self.partitions))
        super().__init__(
            f"no committed offset for {names}, and auto_offset_reset is none: seek() first, or set earliest or latest"
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
    """``wakeup()`` ended the waiting call. The broker may have processed its request."""

    def __init__(self, what: str = "wakeup() was called") -> None:
        super().__init__(what)
