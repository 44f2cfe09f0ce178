"""The checks of requests; of EndTxn the effect in each state, for a client of version 2 and for an older one.

A client has version 2 if it sends EndTxn v5 or later. For an older client the epoch stays the same from transaction to
transaction. So a late or repeated EndTxn looks like the end of the next transaction. Kafka has this weakness, too.

| state | older client, current epoch | version 2, current epoch | version 2, epoch before (a repeated request) |
|---|---|---|---|
| Empty | INVALID_TXN_STATE | abort: end; commit: INVALID_TXN_STATE | PRODUCER_FENCED |
| Ongoing | end | end | PRODUCER_FENCED |
| Prepare… | CONCURRENT_TRANSACTIONS | CONCURRENT_TRANSACTIONS | CONCURRENT_TRANSACTIONS |
| Complete… | same result: success; other result: INVALID_TXN_STATE | as in state Empty | as for the older client |
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum, auto

from odradek.codecs.transaction_state import Transaction, TransactionState
from odradek.core.effects import Result, ResultSteps
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import NO_PRODUCER_EPOCH, PartitionKey, ProducerIdentity
from odradek.core.pace import Pace
from odradek.transactions.messages import EndTransaction, ListTransactions
from odradek.transactions.transitions import (
    EPOCH_PER_TRANSACTION,
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    PREPARED,
    is_exhausted,
)

_RESULTS = {
    TransactionState.COMPLETE_COMMIT: True,
    TransactionState.COMPLETE_ABORT: False,
}


class LevelTooLow(KafkaError):
    """The level of ``transaction.version`` is too low for a record. ``warning`` is a line for the operator."""

    def __init__(self, transactional_id: str, transaction: Transaction) -> None:
        version = transaction.client_version
        super().__init__(
            ErrorCode.unsupported_version,
            f"transactional id {transactional_id!r}: a record at level 0 of transaction.version cannot hold the "
            f"client's version {version}",
        )
        self.warning = (
            f"transactional id {transactional_id!r} is refused for up to {transaction.timeout_ms} ms: its producer "
            f"uses transaction.version {version} at level 0 (start the producer again after that)"
        )


class Action(Enum):
    END = auto()
    """The coordinator has to write the decision."""
    REPEATED = auto()
    """The transaction has ended with this result: success, without a new record."""


def check_end(current: Transaction, request: EndTransaction, *, is_blocked: bool) -> Action | ErrorCode:
    """Returns the action of the request, or its error.

    ``is_blocked``: the request gets CONCURRENT_TRANSACTIONS in every state; that of an older client only after the
    checks of its producer id and epoch.
    """
    if request.client_version < EPOCH_PER_TRANSACTION:
        return _check_older(current, request, is_blocked=is_blocked)
    if is_blocked or current.state in PREPARED:  # at any epoch, even with another producer id
        return ErrorCode.concurrent_transactions
    producer_id, epoch = request.producer
    is_repeated_with_old_id = (
        current.previous_producer_id == producer_id and epoch == LAST_CLIENT_EPOCH and current.producer_epoch == 0
    )
    is_repeated = is_repeated_with_old_id or current.producer_epoch == epoch + 1
    if current.producer_id != producer_id and not is_repeated_with_old_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        is_valid = epoch == current.producer_epoch
    else:
        is_valid = is_repeated or epoch == current.producer_epoch
    if not is_valid:
        return ErrorCode.producer_fenced
    if current.state is TransactionState.ONGOING:
        if request.commit and epoch == MAX_EPOCH:  # as in Kafka; only a record that was written by hand leads here
            return ErrorCode.unknown_server_error
        return Action.END
    if is_repeated and current.state is not TransactionState.EMPTY:
        return _check_result(current, request)
    return ErrorCode.invalid_txn_state if request.commit else Action.END


def _check_older(current: Transaction, request: EndTransaction, *, is_blocked: bool) -> Action | ErrorCode:
    if current.producer_id != request.producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != request.producer.producer_epoch:
        return ErrorCode.producer_fenced
    if is_blocked:
        return ErrorCode.concurrent_transactions
    if current.state is TransactionState.ONGOING:
        return Action.END
    if current.state is TransactionState.EMPTY:
        return ErrorCode.invalid_txn_state
    return ErrorCode.concurrent_transactions if current.state in PREPARED else _check_result(current, request)


def _check_result(current: Transaction, request: EndTransaction) -> Action | ErrorCode:
    if _RESULTS[current.state] is not request.commit:
        return ErrorCode.invalid_txn_state
    return Action.REPEATED


def may_continue(current: Transaction, last: ProducerIdentity, expected: ProducerIdentity) -> bool:
    """Returns whether a producer with this identity may ask for the next epoch. The epoch itself is checked later."""
    if current.producer_epoch == NO_PRODUCER_EPOCH:  # the transactional id is new, e.g. because it had expired
        return True
    previous = (current.previous_producer_id, last.producer_id)  # a record of version 0 has no previous id
    return expected.producer_id == current.producer_id or (
        expected.producer_id in previous and is_exhausted(expected.producer_epoch)
    )


def is_listed(transaction: Transaction, request: ListTransactions, now_ms: int) -> bool:
    return (
        (request.states is None or transaction.state in request.states)
        and (not request.producer_ids or transaction.producer_id in request.producer_ids)
        and (request.duration_ms < 0 or now_ms - transaction.start_ms > request.duration_ms)
    )


def verified(partition: PartitionKey, members: Collection[PartitionKey]) -> ErrorCode:
    return ErrorCode.none if partition in members else ErrorCode.transaction_abortable


def verified_in_steps(
    partitions: Collection[PartitionKey], members: Collection[PartitionKey]
) -> ResultSteps[Mapping[PartitionKey, ErrorCode]]:
    codes: dict[PartitionKey, ErrorCode] = {}
    pace = Pace()
    for partition in partitions:
        codes[partition] = verified(partition, members)
        if pace.spend():
            yield None
    return Result(codes)
