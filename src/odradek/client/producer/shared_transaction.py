"""The engine of producers that write into a transaction of another producer, maybe of another process.

The owner gets the producer id and the epoch, shares the transaction and ends it. A joined producer only sends records.
A partition belongs to one producer of a transaction: brokers count the sequences of a partition, and each producer
starts at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from odradek.batches.header import TRANSACTIONAL_BIT
from odradek.client.config import ClientConfig
from odradek.client.producer.accumulator import ProducerBatch
from odradek.client.producer.config import ProducerConfig
from odradek.client.producer.engine import PRODUCE_NAMES_CEILING, ProducerEngine
from odradek.client.producer.transaction import BROKER_ADDS_PARTITIONS
from odradek.core.errors import ConfigError, ErrorCode
from odradek.core.ids import ProducerIdentity, TopicPartition


class SharedTransaction(NamedTuple):
    """The data of an open transaction that another producer needs to write into it. It can be pickled."""

    transactional_id: str
    producer: ProducerIdentity
    version: int
    """The transaction.version of this transaction."""


def produce_ceiling(version: int) -> int:
    """Returns the highest version of Produce to use in a transaction of this transaction.version.

    From version ``PRODUCE_NAMES_CEILING`` of Produce on, the broker adds the partitions to the transaction. This is
    allowed only from transaction.version ``BROKER_ADDS_PARTITIONS`` on."""
    return PRODUCE_NAMES_CEILING if version >= BROKER_ADDS_PARTITIONS else PRODUCE_NAMES_CEILING - 1


class JoinedEngine(ProducerEngine):
    """The engine of a producer that joins a shared transaction. After the first failed record it sends nothing, because
    the owner has to abort the transaction."""

    def __init__(
        self,
        shared: SharedTransaction,
        config: ProducerConfig,
        client: ClientConfig,
        on_loop: Callable[[Callable[[], None]], object],
    ) -> None:
        super().__init__(config, client, on_loop)
        if config.transactional_id is not None:
            raise ConfigError("transactional_id: the shared transaction has one: leave it out")
        if not config.enable_idempotence:
            raise ConfigError("a shared transaction needs acks=all and enable_idempotence=True: leave both out")
        self._transactional_id = shared.transactional_id
        self._attributes = TRANSACTIONAL_BIT
        self.producer_id, self._epoch = shared.producer
        self.ceiling = produce_ceiling(shared.version)
        self._first_failure: Exception | None = None

    async def _leaders(self, wanted: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if self._first_failure is not None:
            self._give_up_all(self._first_failure)
            return {}
        return await super()._leaders(wanted)

    def _is_worth_retrying(self, batch: ProducerBatch, code: ErrorCode | None, error: Exception) -> bool:
        return self._first_failure is None and super()._is_worth_retrying(batch, code, error)

    def _report(self, batch: ProducerBatch, offset: int, error: Exception | None) -> None:
        if error is not None and self._first_failure is None:
            self._first_failure = error
            self._wake.set()
        super()._report(batch, offset, error)
