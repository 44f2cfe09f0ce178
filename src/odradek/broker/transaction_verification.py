"""Verifies that the partitions of transactional batches are in their transaction, before the batches are appended.

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
    from odradek.storage.verification import Guard

ADDS_PARTITIONS = 12
"""From this version of Produce on the broker adds partitions to transactions."""
ABORTABLE = 11
"""From this version of Produce on clients know the error TRANSACTION_ABORTABLE."""
_UNAVAILABLE = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class BatchVerification:
    """The verification of one Produce request. All its transactional batches are of one producer."""

    def __init__(self, broker: BrokerServices, transactional_id: str | None, version: int) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._version = version
        self._producer: ProducerIdentity | None = None

    def begin(self, partition: Partition, data: bytes) -> tuple[Guard, Deferred[KafkaError | None] | None]:
        """Returns the guard for the append of a batch, and the promise of the coordinator's refusal, None if it agrees.

        Without a promise the batch needs no verification. Raises KafkaError if the batch is refused at once.
        """
        transactional_id = self._transactional_id
        if transactional_id is None:
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
        adds = self._version >= ADDS_PARTITIONS
        if not adds and not self._broker.config.transaction_partition_verification_enable:
            return None, None
        guard = partition.log.begin_verification(*producer, header.base_sequence, supports_epoch_bump=adds)
        return guard, None if guard is None else self._ask(transactional_id, producer, partition, adds=adds)

    def _ask(
        self, transactional_id: str, producer: ProducerIdentity, partition: Partition, *, adds: bool
    ) -> Deferred[KafkaError | None]:
        asked = (partition.topic, partition.index)
        runtime = self._broker.coordinators.runtime(TRANSACTIONS)
        if adds:
            added = runtime.ask(transactional_id, AddPartitions(transactional_id, producer, (asked,), 2))
            return added.map(self._refusal)
        errors = runtime.ask(transactional_id, VerifyPartitions(transactional_id, producer, (asked,)))
        return errors.map(lambda found: self._refusal(found[asked]))

    def _refusal(self, code: ErrorCode) -> KafkaError | None:
        """Returns Produce's error for an error of the coordinator, with a message where Kafka has one."""
        if code is ErrorCode.none:
            return None
        if code is ErrorCode.producer_fenced:
            return KafkaError(ErrorCode.invalid_producer_epoch)
        if code is ErrorCode.invalid_txn_state or (
            code is ErrorCode.transaction_abortable and self._version < ABORTABLE
        ):
            return KafkaError(ErrorCode.invalid_txn_state, "The partition was not added to the transaction.")
        if code in _UNAVAILABLE or (code is ErrorCode.concurrent_transactions and self._version < ADDS_PARTITIONS):
            text = f"The transaction coordinator cannot verify the partition now: {code.name.upper()}"
            return KafkaError(ErrorCode.not_enough_replicas, text)
        return KafkaError(code)
