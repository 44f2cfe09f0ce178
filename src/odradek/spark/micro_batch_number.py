"""The number of the last micro-batch that a query has written; a consumer group stores it. Pure.

The transaction of a micro-batch commits the number together with the records. So after any crash the number says
whether a micro-batch that Spark runs again is in the topic already.
"""

from __future__ import annotations

from odradek.core.errors import OdradekError
from odradek.core.ids import OffsetAndMetadata

BATCH_MARK = "odradek-batch:1:"


class MicroBatchRefused(OdradekError):
    """The writer refuses a micro-batch that it could write twice or lose; the message names the remedy."""


def commit_of(batch: int, query: str) -> OffsetAndMetadata:
    """Returns the commit that stores the number of a micro-batch."""
    return OffsetAndMetadata(batch, metadata=BATCH_MARK + query)


def is_written(batch: int, commit: OffsetAndMetadata | None, group: str, first_batch: int | None) -> bool:
    """Returns whether a micro-batch is in the topic already.

    ``first_batch``: the user states that this micro-batch is not in the topic, and that all earlier ones are.
    Raises MicroBatchRefused.
    """
    last = None if commit is None else commit.offset
    if commit is not None and not commit.metadata.startswith(BATCH_MARK):
        raise MicroBatchRefused(
            f"group {group} has offset {last} of another client instead of the number of the last micro-batch. Stop "
            f"that client and delete the group. {_remedy(batch)}"
        )
    if last == batch:
        return True
    if last is not None and last > batch:
        raise MicroBatchRefused(
            f"the checkpoint is older than its output: it asks for micro-batch {batch}, and group {group} says that "
            f"micro-batch {last} is in the topic. Restore the checkpoint, or use a new one that starts after the "
            "records in the topic"
        )
    if last is None and first_batch is not None and batch <= first_batch:
        return batch < first_batch
    if batch == (0 if last is None else last + 1):
        return False
    if first_batch is not None and batch <= first_batch:
        return batch < first_batch
    if last is None:
        raise MicroBatchRefused(
            f"micro-batch {batch} is not the query's first, and group {group} has no number of a last micro-batch: "
            "another function has written the earlier micro-batches, or the number has expired or was deleted. "
            f"{_remedy(batch)}"
        )
    raise MicroBatchRefused(
        f"group {group} says that micro-batch {last} was written last, so micro-batch {batch} is not the next one: the "
        f"group was restored, or another function has written the micro-batches between. {_remedy(batch)}"
    )


def check_first(begun_ms: int | None, retention_ms: int, now_ms: float, group: str) -> None:
    """Checks a query's first micro-batch, 0, without a number in the group. ``begun_ms``: when Spark has planned it, by
    the checkpoint; None if unknown.

    Usually no driver has written it. But if it was planned longer ago than the group keeps offsets, an earlier driver
    may have committed it, and the number has expired. Raises MicroBatchRefused.
    """
    if begun_ms is not None and now_ms - begun_ms >= retention_ms:
        raise MicroBatchRefused(
            f"micro-batch 0 was planned {(now_ms - begun_ms) / 3_600_000:,.1f} hours ago, and group {group} has no "
            f"number of a last micro-batch. It keeps the number for {retention_ms / 3_600_000:,.1f} hours "
            f"(offsets.retention.minutes), so the micro-batch may have been written. {_remedy(0)}"
        )


def _remedy(batch: int) -> str:
    return (
        f"Check whether the records of micro-batch {batch} are in the topic: if not, pass first_batch={batch}, else "
        f"first_batch={batch + 1}"
    )
