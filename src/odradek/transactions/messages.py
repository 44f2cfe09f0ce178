"""Requests, replies and announcements of the transaction coordinator, independent of API versions.

Every request is a ``core.effects.Request``. A handler maps the errors to those of its API version.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

from odradek.codecs.transaction_state import Transaction, TransactionState
from odradek.core.effects import ParkKey
from odradek.core.errors import ErrorCode
from odradek.core.ids import NO_PRODUCER, PartitionKey, ProducerIdentity


class TransactionalRequest(Protocol):
    """A request to one transactional id: all but ``ListTransactions``."""

    transactional_id: str


@dataclass(slots=True)
class InitProducerId:
    """Requests the next identity of a producer. ``expected``: the identity that a running producer has (KIP-360), or
    None for a new producer."""

    batched: ClassVar[bool] = False
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdentity | None = None

    def error_reply(self, error: ErrorCode) -> ProducerReply:
        return ProducerReply(error)


@dataclass(slots=True)
class EndTransaction:
    """Ends a transaction. ``client_version`` is the version of the client's protocol: 2 from EndTxn v5 on, otherwise
    0."""

    batched: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    client_version: int

    def error_reply(self, error: ErrorCode) -> ProducerReply:
        return ProducerReply(error)


@dataclass(slots=True)
class ProducerReply:
    """The producer's next identity.

    It is ``NO_PRODUCER`` with an error, and for a repeated EndTxn of an older client.
    """

    error: ErrorCode = ErrorCode.none
    producer: ProducerIdentity = NO_PRODUCER


EndTxnKey = ParkKey[ProducerReply]
"""The key of an EndTxn that waits for its decision and its markers: the transactional id."""


@dataclass(slots=True)
class AddPartitions:
    """Adds partitions to a transaction. The reply is one error code for all of them."""

    batched: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[PartitionKey]
    client_version: int

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class VerifyPartitions:
    """Asks which partitions are in the producer's transaction. The reply has an error code for each partition."""

    batched: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity
    partitions: Collection[PartitionKey]

    def error_reply(self, error: ErrorCode) -> Mapping[PartitionKey, ErrorCode]:
        return dict.fromkeys(self.partitions, error)


class Markers(NamedTuple):
    """The announcement of a decision: these partitions get a marker with this producer's identity.

    ``version`` is the client's version, with which the log checks the epoch. ``decided_ms`` is the time of the
    decision in its record.
    """

    transactional_id: str
    producer: ProducerIdentity
    commit: bool
    partitions: frozenset[PartitionKey]
    version: int
    decided_ms: int

    @classmethod
    def of(cls, transactional_id: str, transaction: Transaction) -> Markers:
        """Returns the announcement of a decided transaction."""
        return cls(
            transactional_id,
            ProducerIdentity(transaction.producer_id, transaction.producer_epoch),
            transaction.state is TransactionState.PREPARE_COMMIT,
            transaction.partitions,
            transaction.client_version,
            transaction.last_update_ms,
        )


@dataclass(slots=True)
class MarkersWritten:
    """All partitions of a decision have their markers, or no longer exist. The reply is NONE."""

    batched: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class MarkersDelayed:
    """The partitions of a decision that have no marker yet are offline or refuse it. The producer gets its reply now.

    The marker of an offline partition follows. The reply to this report is NONE.
    """

    batched: ClassVar[bool] = False
    transactional_id: str
    producer: ProducerIdentity

    def error_reply(self, error: ErrorCode) -> ErrorCode:
        return error


@dataclass(slots=True)
class DescribeTransaction:
    batched: ClassVar[bool] = False
    transactional_id: str

    def error_reply(self, error: ErrorCode) -> DescribedTransaction:
        return DescribedTransaction(error)


@dataclass(slots=True)
class DescribedTransaction:
    error: ErrorCode = ErrorCode.none
    transaction: Transaction | None = None


@dataclass(slots=True)
class ListTransactions:
    """Lists transactional ids. No filter: ``states`` None, ``producer_ids`` empty, ``duration_ms`` negative.

    Empty ``states`` match no transaction.
    """

    batched: ClassVar[bool] = False
    states: frozenset[TransactionState] | None = None
    producer_ids: Set[int] = frozenset()
    duration_ms: int = -1

    def error_reply(self, error: ErrorCode) -> ListedTransactions:
        # Each broker lists the ids of the partitions that it has loaded. One that moved or cannot be read is no error.
        return ListedTransactions(ErrorCode.none if error is ErrorCode.not_coordinator else error)


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: TransactionState


@dataclass(slots=True)
class ListedTransactions:
    error: ErrorCode = ErrorCode.none
    transactions: Sequence[ListedTransaction] = ()
