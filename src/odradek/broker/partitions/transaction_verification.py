"""Verifies that the partitions of transactional batches are in their transaction before the batches are appended.

* Produce 12 and newer (transaction.version 2): the broker adds the partitions to the transaction itself.
* Older requests: the producer has added the partitions with AddPartitionsToTxn, and the broker asks the coordinator
  whether they are in the transaction, unless ``transaction.partition.verification.enable`` is false. Without this
  check, a batch that arrives after the end of its transaction would begin another transaction, which nothing ends.
* If a transaction of the same producer and epoch is open in the partition, the broker does not ask.
* The broker asks once for all partitions of a request, as in Kafka: for each question that adds partitions, the
  coordinator writes a record with all partitions of the transaction.

The coordinator of a lone broker is in this process, so its reply is usually there at once. A reply may also come later:
from a busy shard, or from another broker (``coordinators/remote_calls``). Then the connection serves no other request:
otherwise the producer's next batch would overtake this one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from typing import TYPE_CHECKING

from odradek.batches.header import HEADER_BYTES, read_header
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import PartitionKey, ProducerIdentity
from odradek.core.pace import Pace

if TYPE_CHECKING:
    from typing import Protocol

    from odradek.broker.partitions.partition import Partition
    from odradek.broker.settings.config import BrokerConfig
    from odradek.core.deferred import Deferred
    from odradek.storage.producers.verification import Guard

_WORK_PER_PARTITION = 4  # elements of a step (core/pace)
_UNAVAILABLE = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
)
_RETRIED = (*_UNAVAILABLE, ErrorCode.concurrent_transactions)
"""After these errors the producer sends its batch again. Until then no later batch may be appended."""

if TYPE_CHECKING:
    # For type checks only: at run time each Protocol would occupy kilobytes.

    class PartitionsOfTransactions(Protocol):
        """Adds partitions to transactions, or verifies them, at the coordinators of the transactional ids.

        Every promise holds an error code for each asked partition, and is resolved once. It never raises.
        """

        def add(
            self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
        ) -> Deferred[Mapping[PartitionKey, ErrorCode]]:
            """Adds partitions to the transaction of a producer."""

        def verify(
            self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
        ) -> Deferred[Mapping[PartitionKey, ErrorCode]]:
            """Checks that the transaction of a producer has these partitions."""

    class TransactionServices(Protocol):
        """The parts of a broker that a verification uses."""

        config: BrokerConfig

        @property
        def partitions_of_transactions(self) -> PartitionsOfTransactions: ...


class PartitionVerification:
    """The verification of the partitions of one request. ``adds``: the coordinator adds them to the transaction."""

    def __init__(
        self, broker: TransactionServices, transactional_id: str, *, adds: bool, knows_transaction_abortable: bool
    ) -> None:
        self._broker = broker
        self._transactional_id = transactional_id
        self._adds = adds
        self._knows_transaction_abortable = knows_transaction_abortable

    def begin(
        self, partition: Partition, producer: ProducerIdentity, sequence: int
    ) -> tuple[Guard, Deferred[ErrorCode] | None]:
        """Returns the guard for the append of a batch, and the promise of the error for the client.

        Without a promise the batch needs no verification. Raises KafkaError (INVALID_PRODUCER_EPOCH).
        """
        guard = self.guard(partition, producer, sequence)
        if guard is None:
            return None, None
        asked = partition.topic, partition.index
        return guard, self.ask(producer, (asked,)).map(
            lambda error_of: self.error(partition, producer, guard, error_of(asked))
        )

    def guard(self, partition: Partition, producer: ProducerIdentity, sequence: int) -> Guard:
        """Returns the guard for the append of a batch, None if it needs no verification. Raises KafkaError."""
        if not self._adds and not self._broker.config.transaction_partition_verification_enable:
            return None
        return partition.log.producers.begin_verification(*producer, sequence, supports_epoch_bump=self._adds)

    def ask(
        self, producer: ProducerIdentity, asked: Collection[PartitionKey]
    ) -> Deferred[Callable[[PartitionKey], ErrorCode]]:
        """Returns the promise of a function from a partition to the coordinator's error."""
        calls = self._broker.partitions_of_transactions
        call = calls.add if self._adds else calls.verify
        return call(self._transactional_id, producer, asked).map(lambda codes: codes.__getitem__)

    def error(self, partition: Partition, producer: ProducerIdentity, guard: Guard, code: ErrorCode) -> ErrorCode:
        """Returns the error for the client that follows from the coordinator's error ``code``.

        Ends the verification after an error that the producer does not retry.
        """
        if code is not ErrorCode.none and code not in _RETRIED:
            partition.log.producers.end_verification(*producer, guard)
        if code is ErrorCode.producer_fenced:
            return ErrorCode.invalid_producer_epoch
        if code is ErrorCode.transaction_abortable and not self._knows_transaction_abortable:
            return ErrorCode.invalid_txn_state
        return code


class BatchVerification:
    """The verification of the batches of one Produce request, at most one for each partition."""

    def __init__(
        self,
        broker: TransactionServices,
        transactional_id: str | None,
        *,
        adds: bool,
        knows_transaction_abortable: bool,
    ) -> None:
        self._adds = adds
        self._transactional_id = transactional_id
        self._partitions = PartitionVerification(
            broker, transactional_id or "", adds=adds, knows_transaction_abortable=knows_transaction_abortable
        )
        self._producer: ProducerIdentity | None = None
        self._guards: dict[PartitionKey, Guard] = {}
        self._terms: dict[PartitionKey, int] = {}
        self._refused: dict[PartitionKey, KafkaError] = {}
        self._error: KafkaError | None = None
        self._errors: Deferred[Callable[[PartitionKey], ErrorCode]] | None = None

    def ask(self, batches: Iterable[tuple[Partition, bytes] | None]) -> Generator[None, None, None]:
        """Makes the guards of all transactional batches of the request, in steps, and asks the coordinator once.

        None in ``batches`` stands for an entry without a batch to verify; it counts for the length of a step.
        """
        if self._transactional_id is None:
            self._error = KafkaError(ErrorCode.transactional_id_authorization_failed)
            return
        pace = Pace()
        for batch in batches:
            if batch is not None:
                self._add_guard(*batch)
            if pace.spend(_WORK_PER_PARTITION):
                yield
        if self._guards and self._error is None and self._producer is not None:
            self._errors = self._partitions.ask(self._producer, self._guards.keys())

    def _add_guard(self, partition: Partition, data: bytes) -> None:
        asked = partition.topic, partition.index
        try:
            guard = self._guard(partition, data)
        except KafkaError as error:
            self._refused[asked] = error
        else:
            if guard is not None:
                self._guards[asked], self._terms[asked] = guard, partition.leader_epoch

    def _guard(self, partition: Partition, data: bytes) -> Guard:
        """Returns the guard of a batch, None if it needs no verification. Raises KafkaError if it is refused now."""
        if len(data) < HEADER_BYTES:
            return None  # the log refuses it
        header = read_header(data)
        if header.producer_id < 0:
            return None
        producer = ProducerIdentity(header.producer_id, header.producer_epoch)
        if self._producer is None:
            self._producer = producer
        elif self._producer != producer:  # Kafka appends nothing of such a request
            self._error = KafkaError(ErrorCode.invalid_producer_id_mapping)
            return None
        return self._partitions.guard(partition, producer, header.base_sequence)

    def term(self, partition: Partition) -> int:
        """Returns the leader epoch in which the coordinator was asked about a partition, otherwise the present one."""
        return self._terms.get((partition.topic, partition.index), partition.leader_epoch)

    def result(self, partition: Partition) -> tuple[Guard, Deferred[KafkaError | None] | None]:
        """Returns the guard for the append of a batch, and the promise of its refusal.

        The promise holds None if the batch is verified. Without a promise the batch needs no verification. Raises
        KafkaError if the batch is refused at once.
        """
        asked = partition.topic, partition.index
        refused = self._error or self._refused.get(asked)
        if refused is not None:
            raise refused
        guard = self._guards.get(asked)
        if guard is None or self._errors is None:
            return None, None

        def refusal(error_of: Callable[[PartitionKey], ErrorCode]) -> KafkaError | None:
            assert self._producer is not None
            return self._refusal(self._partitions.error(partition, self._producer, guard, error_of(asked)))

        return guard, self._errors.map(refusal)

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
