"""The number of the last micro-batch that a query has written; a consumer group stores it. Pure.

The transaction of a micro-batch commits the number together with the records. So after any crash the number says
whether a micro-batch that Spark runs again is in the topic already.
"""

from __future__ import annotations

from typing import NamedTuple

from odradek.core.errors import OdradekError
from odradek.core.ids import OffsetAndMetadata

BATCH_MARK = "odradek-batch:1:"


class MicroBatchRefused(OdradekError):
    """The writer refuses a micro-batch that it could write twice or lose; the message names the remedy."""


def group_of_numbers(query: str) -> str:
    """Returns the group that has a query's numbers, one for partition 0 of each topic that the query writes to."""
    return f"odradek-{query}"


def commit_of(batch: int, query: str, plan: str | None = None) -> OffsetAndMetadata:
    """Returns the commit that stores the number of a micro-batch. ``plan``: the digest of its end in the checkpoint."""
    return OffsetAndMetadata(batch, metadata=BATCH_MARK + query + ("" if plan is None else f":{plan}"))


def _plan_of(commit: OffsetAndMetadata) -> str | None:
    """Returns the digest of the planned end; None if the commit has none, because an earlier release made it or the end
    was unknown."""
    return commit.metadata.removeprefix(BATCH_MARK).partition(":")[2] or None


def is_written(
    batch: int,
    commit: OffsetAndMetadata | None,
    group: str,
    first_batch: int | None,
    plan: str | None = None,
    *,
    before: str | None = None,
) -> bool:
    """Returns whether a micro-batch is in the topic already.

    ``first_batch``: the user states that this micro-batch is not in the topic, and that all earlier ones are.
    ``plan``: the digest of the micro-batch's end in the checkpoint; None if it is unknown. ``before``: that of the
    micro-batch before. Raises MicroBatchRefused.
    """
    last = None if commit is None else commit.offset
    if commit is not None and not commit.metadata.startswith(BATCH_MARK):
        raise MicroBatchRefused(
            f"group {group} has offset {last} of another client instead of the number of the last micro-batch. Stop "
            f"that client and delete the group. {_remedy(batch)}"
        )
    if commit is not None and last == batch:
        _check_same(commit, plan)
        return True
    if last is not None and last > batch:
        raise MicroBatchRefused(
            f"the checkpoint is older than its output: it asks for micro-batch {batch}, and group {group} says that "
            f"micro-batch {last} is in the topic. Restore the checkpoint, or use a new one that starts after the "
            "records in the topic"
        )
    if commit is not None and batch == commit.offset + 1:
        _check_before(commit, before)
        return False
    if first_batch is not None and batch < first_batch - 1:
        # Spark repeats a query's last micro-batch only, so no checkpoint leads from here to first_batch.
        raise MicroBatchRefused(
            f"first_batch={first_batch} belongs to another checkpoint: the query asks for micro-batch {batch}, and "
            f"Spark repeats only the last one, so a query that continues with {first_batch} asks for {first_batch - 1} "
            "or later. Its rows would be lost: remove first_batch (--first-batch), or restore the checkpoint for which "
            "it was set"
        )
    if first_batch is not None and batch <= first_batch:
        return batch < first_batch
    if last is None and batch == 0:
        return False
    if last is None:
        raise MicroBatchRefused(
            f"micro-batch {batch} is not the query's first, and group {group} has no number of a last micro-batch: "
            "another function has written the earlier micro-batches, or the number has expired or was deleted. "
            f"{_remedy(batch)}"
        )
    between = f"micro-batch {last + 1}" if batch == last + 2 else f"micro-batches {last + 1} to {batch - 1}"
    raise MicroBatchRefused(
        f"group {group} says that micro-batch {last} was written last, so micro-batch {batch} is not the next one. If "
        "the brokers' data was put back from an older copy, records that the query has read may have been replaced: "
        "use a new checkpoint that starts after the records in the topic, as the offsets of the query's group do after "
        f"transactions. If another function has written {between}: {_remedy(batch)}"
    )


def _check_same(last: OffsetAndMetadata, plan: str | None) -> None:
    """Checks a micro-batch that is in the topic. ``plan``: the digest of its end in the checkpoint; None if it is
    unknown. Raises MicroBatchRefused."""
    written = _plan_of(last)
    if written is not None and plan is not None and written != plan:
        # Spark plans a micro-batch once, and repeats it with the same plan. So somebody has changed the checkpoint.
        raise MicroBatchRefused(
            f"the checkpoint is older than its output: micro-batch {last.offset} is in the topic, and the checkpoint "
            "has planned it again with another end, whose further rows would be lost. Restore the checkpoint, or use a "
            "new one that starts after the records in the topic"
        )


def _check_before(last: OffsetAndMetadata, before: str | None) -> None:
    """Checks that the last written micro-batch has the end that the checkpoint has for it. ``before``: the digest of
    that end; None if it is unknown. Raises MicroBatchRefused.

    A driver may be paused after its transaction, while another copy of the checkpoint is put back. It then notes its
    micro-batch as done in this copy.
    """
    written = _plan_of(last)
    if written is not None and before is not None and written != before:
        raise MicroBatchRefused(
            f"the checkpoint is another copy than the one of its output: micro-batch {last.offset} is in the topic "
            "with another end than the checkpoint has for it, so rows would be lost or written twice. Restore the "
            "checkpoint, or use a new one that starts after the records in the topic"
        )


def check_kept(transactional_id: str, first_batch: int | None, group: str) -> None:
    """Raises MicroBatchRefused, unless ``first_batch`` says which micro-batches are in the topic.

    To be called if the query asks for micro-batch 0 and the group has no number, although the last transaction of the
    transactional id was committed. That transaction has committed a number, so the number was lost.
    """
    if first_batch is None:
        raise MicroBatchRefused(
            f"group {group} has no number of a last micro-batch, but transactional id {transactional_id} has committed "
            "a transaction, which had one: the number was deleted or has expired, and micro-batch 0 may be in the "
            f"topic. {_remedy(0)}"
        )


class BatchTimes(NamedTuple):
    """``begun_ms``: the time in the checkpoint at which Spark planned a micro-batch; None if unknown.

    ``retention_ms``: how long the group keeps the micro-batch's number.
    """

    begun_ms: int | None
    retention_ms: int
    now_ms: float


def check_first(times: BatchTimes, first_batch: int | None, group: str) -> None:
    """Checks micro-batch 0 of a query whose group has no number. ``first_batch``: None, or 1. Raises MicroBatchRefused.

    Usually no driver has written the micro-batch. But Spark may have planned it longer ago than the group keeps
    offsets. Then an earlier driver may have written it, and its number has expired. Only then ``first_batch=1`` may
    skip micro-batch 0. If it was planned later, the missing number means that it was not written, and a skip would
    lose its rows.
    """
    if times.begun_ms is None:
        return
    age_ms = times.now_ms - times.begun_ms
    ages = (
        f"micro-batch 0 was planned {age_ms / 3_600_000:,.1f} hours ago, and group {group} has no number of a last "
        f"micro-batch. It keeps the number for {times.retention_ms / 3_600_000:,.1f} hours (offsets.retention.minutes)"
    )
    if first_batch is None and age_ms >= times.retention_ms:
        raise MicroBatchRefused(f"{ages}, so the micro-batch may have been written. {_remedy(0)}")
    if first_batch == 1 and age_ms < times.retention_ms:
        raise MicroBatchRefused(
            f"first_batch=1 would skip micro-batch 0, whose number cannot have expired: {ages}. If the checkpoint is "
            "new, remove first_batch (--first-batch), which is for another checkpoint. If another function has written "
            "the micro-batch, or the number was deleted, use a new checkpoint that starts after the records in the "
            "topic"
        )


def _remedy(batch: int) -> str:
    return (
        f"Check whether the records of micro-batch {batch} are in the topic: if not, pass first_batch={batch}, else "
        f"first_batch={batch + 1}"
    )
