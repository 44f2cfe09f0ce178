"""Errors of the clients.

``KafkaError`` (``core.errors``) has every error code of the protocol; the classes here are those that callers catch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TypeVar

from odradek.core.errors import CorruptRecord, ErrorCode, KafkaError, OdradekError
from odradek.core.ids import OFFSETS_TOPIC, TRANSACTION_TOPIC, TopicPartition
from odradek.net.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConnectionLost,
    ReplyTooLarge,
    UnsupportedVersion,
)

__all__ = [
    "LOOKUP_REFUSED",
    "AuthenticationFailed",
    "BrokerUnreachable",
    "ConnectionLost",
    "CorruptRecord",
    "GroupIdNotFound",
    "GroupNotEmpty",
    "IllegalState",
    "KafkaError",
    "LogTruncated",
    "OdradekError",
    "OffsetOutOfRange",
    "OffsetStoreUnreachable",
    "RecordsWithheld",
    "ReplyTooLarge",
    "RequestTimedOut",
    "TopicRecreated",
    "UnknownTopic",
    "UnsupportedVersion",
    "corrupt_record",
    "error_for",
    "first_row",
]

T = TypeVar("T")

LOOKUP_REFUSED = (
    ErrorCode.topic_authorization_failed,
    ErrorCode.cluster_authorization_failed,
    ErrorCode.unsupported_version,
)
"""Error codes of brokers that refuse to report settings or leader epochs, to this client or to all clients."""


class RequestTimedOut(OdradekError):
    """A call with its retries did not succeed in time; the message has the reason of the last retry, if any."""

    @property
    def retriable(self) -> bool:
        return True


class LastFailure:
    """Why the last attempt of a call failed, and since when each attempt fails in this way. Its text is for the error
    of the call; it is empty if no attempt has failed."""

    def __init__(self) -> None:
        self.error: OdradekError | None = None
        self._text = ""
        self._since_s = 0.0

    def note(self, error: OdradekError, text: str = "") -> None:
        """Notes a failure. ``text``: the error in words, if these are better than its own."""
        text = text or str(error)
        if text != self._text:
            self._since_s = time.monotonic()
        self.error, self._text = error, text

    def __str__(self) -> str:
        if getattr(self.error, "code", None) is not ErrorCode.coordinator_not_available:
            return self._text
        return (
            f"for {time.monotonic() - self._since_s:.1f} s, brokers have answered {self._text}. {OFFSETS_TOPIC} (for "
            f"groups) or {TRANSACTION_TOPIC} (for transactional ids) cannot be created, or a partition of it has no "
            "leader or too few replicas in sync: look at the topic with odradek topics describe, and into the brokers' "
            "logs for the cause"
        )


class OffsetStoreUnreachable(OdradekError):
    """The store of a group's offsets outside Kafka does not respond, or its reply was lost. It is unknown whether
    offsets were stored."""

    @property
    def retriable(self) -> bool:
        return True


class IllegalState(OdradekError):
    """The call is not allowed in the client's state; the message has the state and the remedy."""


class RecordsWithheld(RequestTimedOut):
    """The log reaches beyond the fetch offset and is not compacted, but the broker's replies have no records.

    The broker may be unable to read the records now (tiered storage), so the client does not skip them."""


class UnknownTopic(KafkaError):
    """The cluster does not have the topic or partition. ``names``: the unknown topics, if the error is about topics."""

    def __init__(self, message: str, names: Sequence[str] = ()) -> None:
        super().__init__(ErrorCode.unknown_topic_or_partition, message)
        self.names = tuple(names)


class TopicRecreated(KafkaError):
    """The topic was deleted and created again with the same name: offsets of the former topic are not valid."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.inconsistent_topic_id, message)


class GroupIdNotFound(KafkaError):
    """The cluster does not have the group ``group``."""

    def __init__(self, message: str, group: str | None = None) -> None:
        super().__init__(ErrorCode.group_id_not_found, message)
        self.group = group


class GroupNotEmpty(KafkaError):
    """The group has live members: only they can commit, and the group cannot be deleted."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.non_empty_group, message)


class OffsetOutOfRange(KafkaError):
    """The partition's log does not have the offset.

    ``log_start_offset`` and ``log_end_offset`` are those of the leader's log (-1 if unknown).
    """

    def __init__(self, partition: TopicPartition, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        held = f"the log starts at {log_start_offset} and ends at {log_end_offset}"
        super().__init__(ErrorCode.offset_out_of_range, f"offset {offset} of {partition}: {held}")


class LogTruncated(KafkaError):
    """The leader's log diverges from the log that was read, for example after an unclean election or a power loss.

    Records below ``offset``, the reader's offset, are lost. ``divergence_offset`` is the first offset at which the two
    logs differ.
    """

    def __init__(self, partition: TopicPartition, offset: int, divergence_offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.divergence_offset = divergence_offset
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"{partition} was truncated to offset {divergence_offset}, which is below the reader's offset {offset}",
        )


_BY_CODE = {
    ErrorCode.unknown_topic_or_partition: UnknownTopic,
    ErrorCode.unsupported_version: UnsupportedVersion,
    ErrorCode.group_id_not_found: GroupIdNotFound,
    ErrorCode.non_empty_group: GroupNotEmpty,
}


def shown_group(group_id: str) -> str:
    """Returns a group in words: old clients commit for a group whose name is empty."""
    return f"group {group_id}" if group_id else "the group with an empty name"


def first_row(rows: Sequence[T], what: str) -> T:
    """Returns the first row of a reply. Raises KafkaError if the reply has no row."""
    if not rows:
        raise KafkaError(ErrorCode.unknown_server_error, f"{what}: the broker's reply has no row for it")
    return rows[0]


def error_for(code: ErrorCode, message: str = "") -> KafkaError:
    """Returns the error for an error code: an instance of its own class, if there is one, or else of ``KafkaError``."""
    kind = _BY_CODE.get(code)
    return kind(message) if kind is not None else KafkaError(code, message)


def corrupt_record(error: CorruptRecord, partition: TopicPartition, position: int) -> CorruptRecord:
    """Returns the error of a batch with its partition and offset, and the offset from which a reader can go on.

    ``position``: the offset that was asked for.
    """
    behind = error.next_offset
    offset = position if error.offset is None else max(error.offset, position)
    there = "an offset behind it" if behind is None else f"offset {behind}, behind it,"
    error_at = CorruptRecord(f"{partition} offset {offset}: {error.message}. Seek to {there} to read on")
    error_at.partition, error_at.offset, error_at.next_offset = partition, offset, behind
    return error_at
