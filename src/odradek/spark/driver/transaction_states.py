"""The state of a transactional id, which a driver asks for to learn what other drivers have done with it."""

from __future__ import annotations

from odradek.client.admin import Admin
from odradek.core.errors import ErrorCode, KafkaError, OdradekError

COMMITTED = ("PrepareCommit", "CompleteCommit")
"""The states of a transactional id whose last transaction was committed."""
_BEGUN = ("Empty", "Ongoing", *COMMITTED)
"""The states after InitProducerId, until the next transaction is aborted."""


def state_of(admin: Admin, transactional_id: str) -> str | None:
    """Returns the state of a transactional id; None if the broker does not know the id.

    If the broker has no DescribeTransactions, returns Empty, the state before the first transaction.
    """
    try:
        return admin.describe_transactions([transactional_id])[transactional_id].state
    except KafkaError as error:
        if error.code is ErrorCode.transactional_id_not_found:
            return None
        if error.code is not ErrorCode.unsupported_version:  # before Kafka 3.0
            raise
        return "Empty"


def is_taken_over(admin: Admin, transactional_id: str) -> bool:
    """Returns whether another producer has taken over a transactional id whose last transaction is overdue: the broker
    aborts such a transaction, so the id stays aborted unless another producer begins with it. False if that is unknown.
    """
    try:
        return admin.describe_transactions([transactional_id])[transactional_id].state in _BEGUN
    except OdradekError:
        return False
