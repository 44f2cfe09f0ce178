"""The state table of a transactional id: pure functions from a transaction and an event to the next transaction.

Each function raises IllegalTransition for a transition that ``NEXT`` does not have. The handlers refuse such requests
before.

| state | InitProducerId | AddPartitions | EndTxn | markers written | timeout |
|---|---|---|---|---|---|
| (none) | Empty | error | error | – | – |
| Empty | Empty, next epoch | Ongoing | abort at version 2: PrepareAbort | – | – |
| Ongoing | PrepareAbort (fence) | Ongoing | PrepareCommit, PrepareAbort | – | PrepareAbort (fence) |
| PrepareCommit | retriable error | retriable error | retriable error | CompleteCommit | – |
| PrepareAbort | retriable error | retriable error | retriable error | CompleteAbort | – |
| CompleteCommit, CompleteAbort | Empty, next epoch | Ongoing | as in state Empty; a repeated request succeeds | – | – |

"Version" is that of ``transaction.version`` that the producer uses: 2 from EndTxn 5 on.

Epochs: InitProducerId starts a new epoch. At version 2 each end of a transaction starts one, too, so that a late
request of the producer cannot belong to the next transaction. The markers already have the new epoch. A fence, by
InitProducerId or a timeout, starts a new epoch at every version. Epoch 32,767 is only for fences and markers. So a
producer with epoch 32,766 gets a new producer id with epoch 0: at its next InitProducerId, and at version 2 already
when its transaction is complete.
"""

from __future__ import annotations

from collections.abc import Collection

from odradek.codecs.transaction_state import Transaction, TransactionState
from odradek.core.ids import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, PartitionKey
from odradek.core.state_machines.tables import checked

_EMPTY, _ONGOING = TransactionState.EMPTY, TransactionState.ONGOING
_PREPARE_COMMIT, _PREPARE_ABORT = TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT
_COMPLETE_COMMIT, _COMPLETE_ABORT = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT

_WITHOUT_TRANSACTION = frozenset({_EMPTY, _ONGOING, _PREPARE_ABORT})
NEXT: dict[TransactionState, frozenset[TransactionState]] = {
    _EMPTY: _WITHOUT_TRANSACTION,
    _ONGOING: frozenset({_ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT}),
    _PREPARE_COMMIT: frozenset({_COMPLETE_COMMIT}),
    _PREPARE_ABORT: frozenset({_COMPLETE_ABORT}),
    _COMPLETE_COMMIT: _WITHOUT_TRANSACTION,
    _COMPLETE_ABORT: _WITHOUT_TRANSACTION,
}
"""The valid next states of each state."""

MAX_EPOCH = 32_767
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
EPOCH_PER_TRANSACTION = 2
"""From this version on every transaction has its own epoch."""
PREPARED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
CAN_EXPIRE = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)


def _next(current: Transaction, state: TransactionState) -> TransactionState:
    """Returns ``state``. Raises IllegalTransition if the table does not allow it after the current state."""
    return checked(NEXT, f"producer {current.producer_id}", current.state, state)


def is_exhausted(epoch: int) -> bool:
    """Returns whether no producer may get the next epoch."""
    return epoch >= LAST_CLIENT_EPOCH


def new_transaction(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Returns the state of an unknown transactional id before its first InitProducerId is written."""
    return Transaction(
        producer_id, NO_PRODUCER_ID, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, timeout_ms, TransactionState.EMPTY,
        frozenset(), NO_TIMESTAMP, now_ms, 0,
    )  # fmt: skip


def initialized(current: Transaction, producer_id: int, epoch: int, timeout_ms: int, now_ms: int) -> Transaction:
    """Returns the state after InitProducerId."""
    return current._replace(
        producer_id=producer_id,
        previous_producer_id=current.producer_id,
        producer_epoch=epoch,
        timeout_ms=timeout_ms,
        state=_next(current, _EMPTY),
        partitions=frozenset(),
        start_ms=NO_TIMESTAMP,
        last_update_ms=now_ms,
    )


def with_partitions(
    current: Transaction, partitions: Collection[PartitionKey], client_version: int, now_ms: int
) -> Transaction:
    """Returns the state after partitions were added. The first ones begin the transaction."""
    return current._replace(
        previous_producer_id=current.producer_id,
        state=_next(current, _ONGOING),
        partitions=current.partitions.union(partitions),
        start_ms=current.start_ms if current.state is TransactionState.ONGOING else now_ms,
        last_update_ms=now_ms,
        client_version=client_version,
    )


def prepared(
    current: Transaction, *, commit: bool, epoch: int, next_producer_id: int, client_version: int, now_ms: int
) -> Transaction:
    """Returns the state after the decision. ``next_producer_id`` is -1 if the producer keeps its id."""
    return current._replace(
        previous_producer_id=current.producer_id,
        next_producer_id=next_producer_id,
        producer_epoch=epoch,
        state=_next(current, _PREPARE_COMMIT if commit else _PREPARE_ABORT),
        start_ms=current.start_ms if current.state is TransactionState.ONGOING else now_ms,
        last_update_ms=now_ms,
        client_version=client_version,
    )


def completed(current: Transaction, now_ms: int) -> Transaction:
    """Returns the state after all markers are written."""
    is_rotated = current.client_version >= EPOCH_PER_TRANSACTION and current.next_producer_id != NO_PRODUCER_ID
    is_commit = current.state is TransactionState.PREPARE_COMMIT
    return current._replace(
        producer_id=current.next_producer_id if is_rotated else current.producer_id,
        previous_producer_id=current.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        producer_epoch=0 if is_rotated else current.producer_epoch,
        state=_next(current, _COMPLETE_COMMIT if is_commit else _COMPLETE_ABORT),
        partitions=frozenset(),
        last_update_ms=now_ms,
    )
