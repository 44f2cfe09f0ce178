"""The marker that ends a transaction in a partition, as the coordinator passes it to the log."""

from __future__ import annotations

from typing import NamedTuple


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction in a partition. ``transaction_version`` decides which epochs the marker may
    have. At version 2 the marker's epoch is one above the epoch of the transaction's records.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    commit: bool
    transaction_version: int
