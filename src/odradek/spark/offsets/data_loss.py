"""Data loss: messages about records that a query had to read and that no longer exist, with the cause.

Pure, except for implementations of ``Causes``, for the logs of ``note`` and ``warn``, and for the file of ``warn``.

| observation                                               | cause                                                  |
|-----------------------------------------------------------|--------------------------------------------------------|
| the log start offset is higher than the position          | retention or DeleteRecords                             |
| the log end offset is lower than the position, same topic | truncation: a replica without the records became leader|
| in the log of a later leader epoch, that of the position  | truncation too, even if that log has grown again       |
| ends below the position                                   |                                                        |
| the topic has another id, or fewer partitions             | the topic was deleted and created again                |
| the topic does not exist                                  | the topic was deleted                                  |
| a group's committed offset is outside of the log          | as for a position outside of the log                   |
| a group has no committed offset                           | never committed, expired or deleted. This is no loss;  |
|                                                           | ``auto.offset.reset`` decides                          |
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from odradek.core.counts import are, span
from odradek.core.errors import CorruptRecord, OdradekError
from odradek.core.ids import LogTail, TopicPartition
from odradek.spark.offsets import loss_file

logger = logging.getLogger("odradek.spark.data_loss")
_LAST_SHOWN_MS = 253_402_300_800_000
"""The year 10000."""
_TRUNCATED = (
    "truncation: a replica without the lost records became leader, or its broker's data was put back from an older copy"
)
_PUT_BACK = (
    "the data directory of its broker was put back from an older copy and has grown again, or the log was truncated"
)
_RESET = "odradek groups reset --mark with --to-datetime or --to-offset, and with --create if the group is missing"
READ_ON = f"Put the newer directory back; or find the first new record by its time, and read on from there: {_RESET}"
GOES_ON = "data may have been lost: %s. The query continues, because failOnDataLoss=false"


class DataLoss(OdradekError):
    """Records that the query had to read no longer exist; the message names partitions, ranges and causes."""


class Causes(Protocol):
    """Looks up the causes of a loss. The methods are called only after a loss, and raise nothing if a request fails."""

    def removed_by(self, topic: str) -> str:
        """Returns what may have raised the log start offset of the topic's partitions, as text for a message."""
        ...

    def is_there(self, topic: str) -> bool | None:
        """Returns whether the cluster still has a topic of this name; None if it is unknown."""
        ...


class LogBounds(Protocol):
    """The attributes of ``offset_ranges.LogRange``."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def leader_epoch(self) -> int: ...


class UnknownCauses:
    """Causes without a cluster to look them up."""

    def removed_by(self, topic: str) -> str:
        return "retention or DeleteRecords"

    def is_there(self, topic: str) -> bool | None:
        return None


UNKNOWN_CAUSES = UnknownCauses()


def corrupt_message(error: CorruptRecord, end: int) -> str:
    """Returns the message about a batch that cannot be read in a range that ends at ``end``. Its offsets are known."""
    assert error.partition is not None
    assert error.offset is not None
    assert error.next_offset is not None
    reason = error.__cause__.message if isinstance(error.__cause__, CorruptRecord) else error.message
    offsets = span(error.offset, min(end, error.next_offset))
    return f"{TopicPartition(*error.partition)}: {offsets} cannot be read, because the batch is corrupt ({reason})"


def removed_by(settings: Mapping[str, str | None]) -> str:
    """Returns what may have removed records of a topic with these settings. They may have been others then."""
    retention_ms, retention_bytes = settings.get("retention.ms"), settings.get("retention.bytes")
    limits = f"retention.ms={retention_ms}, retention.bytes={retention_bytes}"
    if retention_ms is None or retention_bytes is None:
        return "retention or DeleteRecords"
    if "delete" not in (settings.get("cleanup.policy") or "delete"):
        return f"DeleteRecords, or retention before the topic had cleanup.policy={settings['cleanup.policy']}"
    if retention_ms == retention_bytes == "-1":
        return f"DeleteRecords, or retention before the topic had {limits}"
    return f"retention ({limits}) or DeleteRecords"


def removed_message(
    partition: TopicPartition, first: int, log_start: int, causes: Causes, *, end: int | None = None
) -> str:
    """Returns the message that offsets from ``first`` up to the log start offset (excluded) no longer exist.

    ``end``: the end of the range that had to be read, exclusive; None for a range without an end.
    """
    following = log_start if end is None else min(end, log_start)
    return (
        f"{partition}: {span(first, following)} {are(first, following)} lost (its log starts at {log_start}), "
        f"removed by {causes.removed_by(partition.topic)}"
    )


def truncated_message(partition: TopicPartition, position: int, log_end: int, *, same_topic: bool) -> str:
    """Returns the message that the log ends below the offset that was read or committed."""
    cause = (
        "it was truncated: a replica without them became leader, or its broker's data was put back from an older copy"
    )
    if not same_topic:
        cause = "it was truncated, or deleted and created again"
    return (
        f"{partition}: it was read up to offset {position} but ends at {log_end}, "
        f"so {span(log_end, position)} {are(log_end, position)} lost ({cause})"
    )


def reset_beyond_message(partition: TopicPartition, offset: int, log_end: int, group: str) -> str:
    """Returns the message that the offset of a reset is above the end of the log."""
    return (
        f"{partition}: group {group} was reset to offset {offset}, and the log ends at {log_end}: the offset was set "
        "by hand, or the log has lost records since (truncation, or its broker's data was put back from an older "
        "copy). Reset the group to an offset of the log: odradek groups reset --mark with --to-offset or --to-datetime;"
        " failOnDataLoss=false reads on at the log end"
    )


def read_again_message(log_start: int) -> str:
    """Returns the end of the message about a truncated log: what the two ways on do."""
    return (
        f". To go on with the new records only, find the first one by its time, and reset the group to it: {_RESET}. "
        f"With failOnDataLoss=false the partition is read once more from its start, offset {log_start}"
    )


def committed_beyond_message(partition: TopicPartition, committed: int, log_end: int, group: str) -> str:
    """Returns the message that a query without a position of its own begins at a commit beyond the end of the log."""
    return (
        f"{partition}: group {group} is committed at offset {committed}, and the log ends at {log_end}: the commit was "
        "set by hand, or the topic was truncated, or deleted and created again. Set the group to an offset of the log: "
        f"odradek groups reset --group {group} --topic {partition.topic} with --to-latest, --to-earliest or --to-offset"
    )


def diverged_message(partition: TopicPartition, position: int, epoch_end: int, bounds: LogBounds) -> str:
    """Returns the message that the log of a later epoch diverges at ``epoch_end`` from the one that was read or
    committed."""
    first = max(epoch_end, bounds.start)
    others = f"other records at {span(first, bounds.end)}" if bounds.end > first else "no other records there"
    return (
        f"{partition}: it was read up to offset {position}, but the log of its leader (epoch {bounds.leader_epoch}) "
        f"diverges at offset {epoch_end}: the records that were read at {span(epoch_end, position)} are lost, and the "
        f"log has {others} ({_TRUNCATED})"
    )


def diverged_reset_message(partition: TopicPartition, offset: int, epoch_end: int, bounds: LogBounds) -> str:
    """Returns the message that a query follows a group reset, but from another offset than the reset's.

    The reason: the log diverges below the reset's offset. No record that the query read is lost.
    """
    return (
        f"{partition}: the group was reset to offset {offset}, but the log of its leader (epoch {bounds.leader_epoch}) "
        f"diverges at offset {epoch_end} from the log of that commit ({_TRUNCATED}): reading from offset "
        f"{max(epoch_end, bounds.start)}"
    )


def diverged_after_plan_message(partition: TopicPartition, epoch_end: int, end: int) -> str:
    """Returns the message that the log diverged after a micro-batch up to ``end`` was planned under an earlier
    leader."""
    return (
        f"{partition}: the log of its leader diverges at offset {epoch_end} from the log for which the micro-batch was "
        f"planned: the planned records at {span(epoch_end, end)} are lost ({_TRUNCATED})"
    )


def replaced_message(partition: TopicPartition, tail: LogTail, remedy: str = READ_ON) -> str:
    """Returns the message that the log has other records at offsets that were read. ``tail``: the last batch that was
    read. ``remedy``: what the user can do."""
    return (
        f"{partition}: it was read up to offset {tail.end}, and the log has another batch of records at offset "
        f"{tail.base} now: {_PUT_BACK}. So records below offset {tail.end} are new, and were not read. {remedy}"
    )


def replayed_beyond_message(partition: TopicPartition, position: int, log_end: int, remedy: str) -> str:
    """Returns the message that the log ends below the offset up to which a replay has read it."""
    return (
        f"{partition}: earlier runs of this replay have read it up to offset {position}, and it ends at {log_end}: the "
        f"data directory of its broker was put back from an older copy, or the log was truncated. So new records below "
        f"offset {position} would be left out. {remedy}"
    )


def other_record_message(
    partition: TopicPartition,
    position: int,
    offset: int,
    time_ms: int | None,
    remedy: str = READ_ON,
    *,
    than: str = "the table",
) -> str:
    """Returns the message that the log has another record at an offset than ``than``. ``time_ms``: that of the log's
    record. ``remedy``: what the user can do."""
    of = ""
    if time_ms is not None and 0 <= time_ms < _LAST_SHOWN_MS:
        of = f" of {datetime.fromtimestamp(time_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return (
        f"{partition}: it was read up to offset {position}, and the log has another record{of} at offset {offset} now "
        f"than {than}: {_PUT_BACK}. So records below offset {position} are new, and were not read. {remedy}"
    )


def missing_message(partition: TopicPartition, position: int, causes: Causes) -> str:
    """Returns the message that a partition is no longer among those to read."""
    is_there = causes.is_there(partition.topic)
    if is_there is None:
        why = "it is unknown whether its topic exists"
    elif is_there:
        why = "its topic exists, but was created again with fewer partitions or is not read by this query any more"
    else:
        why = "its topic was deleted"
    return f"{partition} is missing (it was read up to offset {position}): {why}"


def former_leader_message(partition: TopicPartition, bounds: LogBounds, known_epoch: int) -> str:
    """Returns the message that the log end offset came from a former leader. This is no loss."""
    return (
        f"{partition}: leader epoch {bounds.leader_epoch} of the log end offset is older than the known leader epoch "
        f"{known_epoch}: waiting for the log end offset from the current leader"
    )


def note(what: str) -> None:
    """Logs a warning about unexpected behaviour of a query without data loss."""
    logger.warning("%s", what)


def fail_or_warn(lost: Collection[str], *, fail: bool, cause: Exception | None = None, file: str | None = None) -> None:
    """Logs the losses, or raises DataLoss if there are any and ``fail`` is set. ``file``: as for ``warn``."""
    if lost and fail:
        raise DataLoss(loss_message(lost)) from cause
    warn(lost, file)


def warn(lost: Iterable[str], file: str | None = None) -> None:
    """Logs the losses of a query with ``failOnDataLoss=false``. ``file``: where they are noted (``loss_file``): the
    driver logs what is there, so it is no warning here, too."""
    for one in lost:
        is_noted = file is not None and loss_file.append(file, one)
        logger.log(logging.INFO if is_noted else logging.WARNING, GOES_ON, one)


def loss_message(lost: Iterable[str]) -> str:
    return (
        f"data may have been lost: {'; '.join(lost)}. With failOnDataLoss=false the query continues with the records "
        "that exist"
    )
