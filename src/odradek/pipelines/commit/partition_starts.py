"""Where a run may begin to read partitions that its checkpoint does not have. Pure.

The group's commits are evidence, too: a commit that names this table comes from a run or an adoption of it, after the
table had noted the partition. If the notes do not have the partition, the table is an older copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from odradek.core.ids import TopicPartition
from odradek.pipelines.commit.state import REMEDY, TableRefused, TableState


def check_starts(
    state: TableState, ours: Mapping[TopicPartition, int], at_end: Collection[TopicPartition], table: str
) -> None:
    """Checks that a run skips no record which the table does not have. ``ours``, ``at_end``: as in ``BatchPlan``.
    ``table``: its name for messages. Raises TableRefused.

    Tables without notes of a query cannot say it. Earlier versions forgot partitions, so their notes say nothing about
    ``ours``.
    """
    query = state.newest_query
    if query is None or query.offsets is None:
        return
    lacking = sorted(ours.keys() - query.offsets.keys()) if state.is_whole else []
    if lacking:
        tp = lacking[0]
        raise TableRefused(
            f"a pipeline has committed offset {ours[tp]} of {tp} to the group, and {table} has no note of this "
            "partition. Either the table is an older copy, which lacks these records; or it was deleted and begun "
            f"again with this group; or another table has the same group. {REMEDY}. The adoption begins this partition "
            "at its first record"
        )
    noted = {tp.topic for tp in query.offsets}
    if skipped := sorted(tp for tp in at_end if tp.topic in noted and tp not in query.offsets):
        raise TableRefused(
            f"{skipped[0]} was added to its topic after {table} was written, and the new checkpoint would begin it at "
            "its end (--from latest), so its records would be missing. Nothing was added. Repeat `odradek pipeline "
            "adopt`, which begins it at its start"
        )


def check_linked(unlinked: Mapping[TopicPartition, int], batch: int, table: str) -> None:
    """Checks that it is known after which micro-batch a new one was planned, if it begins partitions anywhere but at
    the end of the one before it. ``unlinked``: as in ``BatchPlan``. Raises TableRefused.

    An earlier version of odradek did not note it. If another copy of the checkpoint is laid over it, such a plan can
    follow a micro-batch that has the same offsets in all other partitions, and no evidence is left in the table or in
    the group: the records before its start would be missing, or rows would come again.
    """
    if unlinked:
        tp, start = min(unlinked.items())
        raise TableRefused(
            f"micro-batch {batch} of the checkpoint, which an earlier version of odradek has planned, begins {tp} at "
            f"offset {start}: it is not known after which micro-batch it was planned, so records before it could be "
            f"missing in {table}. {REMEDY}"
        )
