"""Committed offsets of a group after all open transactions, and the error if one of these does not end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from odradek.client.admin import Admin
from odradek.client.errors import RequestTimedOut
from odradek.client.model import HangingTransaction
from odradek.core.errors import ErrorCode, OdradekError
from odradek.core.ids import OFFSETS_TOPIC, OffsetAndMetadata, TopicPartition, partition_for_key


def stable_offsets(
    admin: Admin, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Returns the group's commits after the end of all transactions with offsets of these partitions.

    Raises RequestTimedOut if a transaction does not end in time. The message says whether a coordinator knows the
    transaction: otherwise no timeout ends it.
    """
    try:
        return admin.list_group_offsets(group, partitions, require_stable=True)
    except RequestTimedOut as error:
        if getattr(error.__cause__, "code", None) is not ErrorCode.unstable_offset_commit:
            raise
        hanging = _hanging(admin, group)
        if hanging is None:
            remedy = (
                "of an open transaction, of another query or of this query's last micro-batch: wait for its timeout, or"
                " find it with `odradek transactions list` and end it with `odradek transactions force-terminate`"
            )
        else:
            topic, partition = hanging.partition
            remedy = (
                f"of a transaction that hangs in {topic}-{partition}: its coordinator does not know it, so no timeout"
                f" ends it. `odradek transactions abort --topic {topic} --partition {partition} --start-offset"
                f" {hanging.producer.transaction_start_offset}` ends it, and the group keeps its earlier offsets. The"
                " transaction can hang in other topics, too: `odradek transactions find-hanging"
                " --max-transaction-timeout 0`"
            )
        raise RequestTimedOut(f"group {group} has offsets {remedy}") from error


def _hanging(admin: Admin, group: str) -> HangingTransaction | None:
    """Returns a transaction that hangs in the group's partition of the offsets topic, if the cluster reports one."""
    with contextlib.suppress(OdradekError):  # the caller has an error already
        partition = TopicPartition(OFFSETS_TOPIC, partition_for_key(group, len(admin.partitions(OFFSETS_TOPIC))))
        return next(iter(admin.find_hanging_transactions([partition], max_timeout_ms=0)), None)
    return None
