"""What a consumer raises beyond the errors of every client."""

from __future__ import annotations

from collections.abc import Iterable

from odradek.core.errors import ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition

_SLOW = (
    "If the time between two polls was longer than max_poll_interval_ms, raise that, or lower max_poll_records so that "
    "each poll brings less work"
)


class CommitFailed(KafkaError):
    """The group has gone on without this member, so its offsets cannot be committed: what it read since the last
    commit is read again by whoever owns the partitions now."""

    def __init__(self, why: str, remedy: str = _SLOW) -> None:
        super().__init__(ErrorCode.unknown_member_id, f"the commit was refused, since {why}. {remedy}")


class RetriableCommitFailed(KafkaError):
    """An asynchronous commit failed for a reason that passes. It was not tried again, lest it overwrite a later one."""

    def __init__(self, cause: BaseException) -> None:
        code = cause.code if isinstance(cause, KafkaError) else ErrorCode.network_exception
        super().__init__(code, f"an asynchronous commit failed and is not tried again: {cause}")

    @property
    def retriable(self) -> bool:
        return True


class RebalanceInProgress(KafkaError):
    """The group is being rebalanced: poll, so that this member takes part, then commit again."""

    def __init__(self) -> None:
        super().__init__(
            ErrorCode.rebalance_in_progress, "the group is being rebalanced: call poll(), then commit again"
        )


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
    """Another process uses this ``group_instance_id``: this consumer must end."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            ErrorCode.fenced_instance_id,
            f"group_instance_id {instance_id!r} is used by another consumer now: give each process one of its own",
        )


class UnreleasedInstance(KafkaError):
    """Another member holds this ``group_instance_id`` and has not left (``group_protocol=consumer``)."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(
            ErrorCode.unreleased_instance_id,
            f"group_instance_id {instance_id!r} is held by another consumer: close that one first, or wait until its "
            "session has ended",
        )


class Wakeup(OdradekError):
    """``wakeup()`` was called: the waiting call ended early. What it had sent may have been done."""

    def __init__(self, what: str = "wakeup() was called") -> None:
        super().__init__(what)


class IllegalState(OdradekError):
    """The call contradicts an earlier one; the message names both."""
