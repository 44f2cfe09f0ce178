"""What can go wrong on the client's side, by name.

``KafkaError`` (``core.errors``) carries every code of the wire; the classes here are those that callers tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import TopicPartition
from odradek.net.errors import BrokerUnreachable, ConnectionLost, ReplyTooLarge, UnsupportedVersion, unreadable

__all__ = [
    "NOT_TOLD",
    "BrokerUnreachable",
    "ConnectionLost",
    "CorruptRecord",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "KafkaError",
    "LogTruncated",
    "OdradekError",
    "OffsetOutOfRange",
    "RecordsWithheld",
    "ReplyTooLarge",
    "RequestTimedOut",
    "TopicRecreated",
    "UnknownTopic",
    "UnsupportedVersion",
    "error_for",
    "first_row",
    "unreadable",
]

T = TypeVar("T")

NOT_TOLD = (
    ErrorCode.topic_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.unsupported_version,
)
"""Answers of brokers that do not tell (settings, or where an epoch ends): not to us, or not at all."""


class RequestTimedOut(OdradekError):
    """A call was not done within its time, tries included; the message names the last reason to try again."""

    @property
    def retriable(self) -> bool:
        return True


class RecordsWithheld(RequestTimedOut):
    """The log reaches further and is not compacted, yet the broker answers fetches with nothing: records may be there
    that it cannot get at (tiered storage), so they are not passed over."""


class UnknownTopic(KafkaError):
    """A topic or partition that the cluster does not have (any more)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, message)


class TopicRecreated(KafkaError):
    """The topic was deleted and created again under the same name: offsets of the old one mean nothing in it."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.inconsistent_topic_id, message)


class GroupIdNotFound(KafkaError):
    """A group that the cluster does not have."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.group_id_not_found, message)


class GroupNotEmpty(KafkaError):
    """The group has live members, so its offsets cannot be changed, or it cannot be deleted, from outside."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.non_empty_group, message)


class OffsetOutOfRange(KafkaError):
    """An offset that the partition's log does not hold.

    ``log_start_offset`` and ``log_end_offset`` are what the leader holds now (-1 where it could not be asked).
    """

    def __init__(self, partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        held = f"the log now reaches from {log_start_offset} to {log_end_offset}"
        super().__init__(ErrorCode.offset_out_of_range, f"offset {offset} of {partition}: {held}")


class LogTruncated(KafkaError):
    """The leader's log diverges from what was read: records below ``offset`` were lost in an unclean election.

    ``divergence_offset`` is where the two histories part.
    """

    def __init__(self, partition: TopicPartition, offset: int, divergence_offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.divergence_offset = divergence_offset
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"{partition} was truncated to offset {divergence_offset}, below {offset} where reading had come",
        )


_BY_CODE = {
    ErrorCode.unknown_topic_or_partition: UnknownTopic,
    ErrorCode.unsupported_version: UnsupportedVersion,
    ErrorCode.group_id_not_found: GroupIdNotFound,
    ErrorCode.non_empty_group: GroupNotEmpty,
}


def first_row(rows: Sequence[T], what: str) -> T:
    """The row of a reply about one thing. Raises KafkaError where a broker sent none."""
    if not rows:
        raise KafkaError(ErrorCode.unknown_server_error, f"{what}: the broker's reply holds nothing about it")
    return rows[0]


def error_for(code: ErrorCode, message: str = "") -> KafkaError:
    """The error class of a wire code, or plain ``KafkaError``."""
    kind = _BY_CODE.get(code)
    return kind(message) if kind is not None else KafkaError(code, message)
