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

ADDS_PARTITIONS = 12
"""From this version of Produce on the broker adds partitions to transactions."""
ABORTABLE = 11
"""From this version of Produce on clients know the error TRANSACTION_ABORTABLE."""
_UNAVAILABLE = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


class Verification:
    """The verification of one Produce request. All its transactional batches are of one producer."""

    def __init__(self, broker: BrokerServices, transactional_id: str | None, version: int) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._version = version
        self._producer: ProducerIdentity | None = None

    def begin(self, partition: Partition, data: bytes) -> Deferred[ErrorCode] | None:
        """Returns the promise of the error of a batch, or None if it needs no verification. Raises KafkaError."""
        transactional_id = self._transactional_id
        if transactional_id is None:
            raise KafkaError(ErrorCode.transactional_id_authorization_failed)
        if len(data) < HEADER_BYTES:
            return None  # the log refuses it
        header = read_header(data)
        if header.producer_id < 0:
            return None
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif self._producer != producer:
            raise KafkaError(ErrorCode.invalid_producer_id_mapping)
        adds = self._version >= ADDS_PARTITIONS
        if not adds and not self._broker.config.transaction_partition_verification_enable:
            return None
        state = partition.log.producers.get(producer.producer_id)
        if state is not None and state.transaction_start >= 0 and state.epoch == producer.producer_epoch:
            return None
        asked = (partition.topic, partition.index)
        runtime = self._broker.coordinators.runtime(TRANSACTIONS)
        if adds:
            return runtime.ask(transactional_id, AddPartitions(transactional_id, producer, (asked,), 2)).map(
                self._error
            )
        errors = runtime.ask(transactional_id, VerifyPartitions(transactional_id, producer, (asked,)))
        return errors.map(lambda found: self._error(found[asked]))

    def _error(self, code: ErrorCode) -> ErrorCode:
        """Returns the error of Produce for an error of the coordinator."""
        if code is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if code is ErrorCode.transaction_abortable and self._version < ABORTABLE:
            return ErrorCode.invalid_txn_state
        if code in _UNAVAILABLE or (code is ErrorCode.concurrent_transactions and self._version < ADDS_PARTITIONS):
            return ErrorCode.not_enough_replicas
        return code
