"""The calls of a transaction that a broker makes to other brokers in a cluster.

``partitions/transaction_verification.PartitionsOfTransactions`` has the calls that verify partitions. A lone broker
leads every partition and every transactional id, so its implementations call its own coordinators:
``transaction_markers.MarkerWriter`` and ``LocalPartitions``. In a cluster ``broker/transactions`` uses these for what
the broker leads, and asks other brokers for the rest. An answer may come at once or later. A caller has to keep
the order of a producer's batches until then: Produce serves no later request of its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from odradek.transactions.messages import AddPartitions, VerifyPartitions

if TYPE_CHECKING:
    from odradek.core.deferred import Deferred
    from odradek.core.effects import Request
    from odradek.core.errors import ErrorCode
    from odradek.core.ids import EndTransactionMarker, PartitionKey, ProducerIdentity

R = TypeVar("R")
PARTITIONS_VERSION = 2
"""The client's version of a transaction to which the broker adds partitions itself."""


class WriteMarkers(Protocol):
    """Writes markers at the leaders of their partitions. The times are in milliseconds.

    ``reply_ms``: the longest time that EndTxn waits for its markers; None if it waits until they are written or held.
    """

    retry_ms: int
    refused_retry_ms: int
    reply_ms: int | None

    def exists(self, partition: PartitionKey) -> bool: ...

    def load_end(self, partition: PartitionKey) -> Deferred[None] | None:
        """Returns a promise that is resolved when the partition is loaded, or None if the marker need not wait."""

    def is_offline(self, partition: PartitionKey, code: ErrorCode) -> bool:
        """Returns whether EndTxn does not wait for the marker of a partition whose attempt has failed with ``code``."""

    def write_marker(self, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        """Writes a marker. The promise holds NONE once the high watermark has passed the marker, or an error code."""


if TYPE_CHECKING:
    # For type checks only: at run time each Protocol would occupy kilobytes.

    class Asking(Protocol):
        def __call__(self, transactional_id: str, request: Request[R], /) -> Deferred[R]:
            """Passes a request to the shard of a transactional id."""


class LocalPartitions:
    """The calls of a broker that is the coordinator of all transactional ids.

    ``ask`` passes a request to the shard of a transactional id. ``partition_of`` returns the partition of
    ``__transaction_state`` of a transactional id.
    """

    def __init__(self, ask: Asking, partition_of: Callable[[str], int]) -> None:
        self._ask = ask
        self.partition_of = partition_of

    def add(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[Mapping[PartitionKey, ErrorCode]]:
        request = AddPartitions(transactional_id, producer, partitions, PARTITIONS_VERSION)
        return self._ask(transactional_id, request).map(lambda error: dict.fromkeys(partitions, error))

    def verify(
        self, transactional_id: str, producer: ProducerIdentity, partitions: Collection[PartitionKey]
    ) -> Deferred[Mapping[PartitionKey, ErrorCode]]:
        return self._ask(transactional_id, VerifyPartitions(transactional_id, producer, partitions))
