"""Verifies that the partitions of transactional batches are in their transaction before the batches are appended.

* Produce 12 and newer (transaction.version 2): the broker adds the partition to the transaction itself.
* Older requests: the producer has added it with AddPartitionsToTxn, and the broker asks the coordinator for it, unless
  ``transaction.partition.verification.enable`` is false. Without this check, a batch that arrives after the end of its
  transaction would begin another one without an end.
* An open transaction of the same producer and epoch in the partition is its own proof.

The coordinator is in this process, so its reply is usually there at once. A request to a busy shard waits, and the
connection with it: otherwise the producer's next batch would overtake this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odradek.batches.header import HEADER_BYTES, read_header
from odradek.broker.transaction_coordinator import TRANSACTIONS
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import ProducerIdentity
from odradek.transactions.messages import AddPartitions, VerifyPartitions

if TYPE_CHECKING:
    from odradek.broker.api import BrokerServices
    from odradek.broker.partition import Partition
    from odradek.core.deferred import Deferred
    from odradek.storage.verification import Guard, VerificationGuard

ADDS_PARTITIONS = 12
"""From this version of Produce on the broker adds partitions to transactions."""
ABORTABLE = 11
"""From this version of Produce on clients know the error TRANSACTION_ABORTABLE."""
_UNAVAILABLE = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)
_RETRIED = (*_UNAVAILABLE, ErrorCode.concurrent_transactions)
"""After these errors the producer sends its batch again. Until then no later batch may be appended."""


class PartitionVerification:
    """The verification of the partitions of one request. ``adds``: they are added to the transaction."""

    def __init__(
        self, broker: BrokerServices, transactional_id: str, *, adds: bool, knows_transaction_abortable: bool
    ) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._adds = adds
        self._knows_transaction_abortable = knows_transaction_abortable

    def begin(
        self, partition: Partition, producer: ProducerIdentity, sequence: int
    ) -> tuple[Guard, Deferred[ErrorCode] | None]:
        """Returns the guard for the append of a batch, and the promise of the coordinator's error.

        Without a promise the batch needs no verification. Raises KafkaError (INVALID_PRODUCER_EPOCH).
        """
        if not self._adds and not self._broker.config.transaction_partition_verification_enable:
            return None, None
        guard = partition.log.begin_verification(*producer, sequence, supports_epoch_bump=self._adds)
        return guard, None if guard is None else self._ask(partition, producer, guard)

    def _ask(self, partition: Partition, producer: ProducerIdentity, guard: VerificationGuard) -> Deferred[ErrorCode]:
        runtime, transactional_id = self._broker.coordinators.runtime(TRANSACTIONS), self._transactional_id
        asked = partition.topic, partition.index

        def error(code: ErrorCode) -> ErrorCode:
            if code is not ErrorCode.none and code not in _RETRIED:
                partition.log.end_verification(producer.producer_id, guard)
            return self._error(code)

        if self._adds:
            added = runtime.ask(transactional_id, AddPartitions(transactional_id, producer, (asked,), 2))
            return added.map(error)
        errors = runtime.ask(transactional_id, VerifyPartitions(transactional_id, producer, (asked,)))
        return errors.map(lambda found: error(found[asked]))

    def _error(self, code: ErrorCode) -> ErrorCode:
        if code is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if code is ErrorCode.transaction_abortable and not self._knows_transaction_abortable:
            return ErrorCode.invalid_txn_state
        return code


class BatchVerification:
    """The verification of one Produce request. All its transactional batches are of one producer."""

    def __init__(self, broker: BrokerServices, transactional_id: str | None, version: int) -> None:
        self._adds = version >= ADDS_PARTITIONS
        self._transactional_id = transactional_id
        self._partitions = PartitionVerification(
            broker, transactional_id or "", adds=self._adds, knows_transaction_abortable=version >= ABORTABLE
        )
        self._producer: ProducerIdentity | None = None

    def begin(self, partition: Partition, data: bytes) -> tuple[Guard, Deferred[KafkaError | None] | None]:
        """Returns the guard for the append of a batch, and the promise of its refusal, None if it is verified.

        Without a promise the batch needs no verification. Raises KafkaError if the batch is refused at once.
        """
        if self._transactional_id is None:
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
        if len(data) < HEADER_BYTES:
            return None, None  # the log refuses it
        header = read_header(data)
        if header.producer_id < 0:
            return None, None
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif self._producer != producer:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        guard, error = self._partitions.begin(partition, producer, header.base_sequence)
        return guard, None if error is None else error.map(self._refusal)

    def _refusal(self, code: ErrorCode) -> KafkaError | None:
        """Returns Produce's error for an error of the coordinator, with a message where Kafka has one."""
        if code is ErrorCode.none:
            return None
        if code is ErrorCode.invalid_txn_state:
            return KafkaError(code, "The partition was not added to the transaction.")
        if code in _UNAVAILABLE or (code is ErrorCode.concurrent_transactions and not self._adds):
            text = f"The transaction coordinator cannot verify the partition now: {code.name.upper()}"
            return KafkaError(ErrorCode.not_enough_replicas, text)
        return KafkaError(code)
