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

    Raises RequestTimedOut if a transaction does not end in time. The message names transactions that hang in the
    group's partition of the offsets topic.
    """
    try:
        return admin.list_group_offsets(group, partitions, require_stable=True)
    except RequestTimedOut as error:
        if not is_unstable(error):
            raise
        message = (
            f"group {group} has offsets of an open transaction, of another query or of this query's last micro-batch:"
            " wait for its timeout, or find it with `odradek transactions list` and end it with `odradek transactions"
            " force-terminate`"
        )
        if hanging := _hanging(admin, group):
            topic, number = hanging[0].partition
            named = ", ".join(
                f"producer {one.producer.producer_id} from offset {one.producer.transaction_start_offset}"
                for one in hanging
            )
            message += (
                f". No timeout ends a transaction that its coordinator does not know. In {topic}-{number},"
                f" which has the offsets of this group and of others, such transactions are: {named}. See"
                " docs/transactions.md, section 'A transaction that hangs in the offsets topic'"
            )
        raise RequestTimedOut(message) from error


def is_unstable(error: RequestTimedOut) -> bool:
    """Returns whether a look-up of stable offsets has ended because a transaction is open."""
    return getattr(error.__cause__, "code", None) is ErrorCode.unstable_offset_commit


def _hanging(admin: Admin, group: str) -> list[HangingTransaction]:
    """Returns the transactions that hang in the group's partition of the offsets topic.

    The partition has the offsets of other groups, too. Without a reply the list is empty."""
    with contextlib.suppress(OdradekError):  # the caller has an error already
        partition = TopicPartition(OFFSETS_TOPIC, partition_for_key(group, len(admin.partitions(OFFSETS_TOPIC))))
        return admin.find_hanging_transactions([partition], max_timeout_ms=0)
    return []
