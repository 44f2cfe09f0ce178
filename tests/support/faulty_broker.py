"""A broker process with a planted fault: ``python -m support.faulty_broker FAULT`` and the broker's arguments.

The checker and the simulator of transactions have to find each of them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from odradek.broker.group_runtime import GroupRuntime
from odradek.broker.transaction_markers import MarkerWriter
from odradek.broker.transaction_runtime import TransactionRuntime
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC
from odradek.core.transaction_marker import EndTransactionMarker
from odradek.storage.log_transactions import LogTransactions
from odradek.storage.producers import Producers
from odradek.transactions.messages import Markers, Partition

CHANCE = random.Random(1)
RARELY = 0.1


def lose_markers() -> None:
    write = MarkerWriter.write_marker

    def lost(self: MarkerWriter, partition: Partition, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        if CHANCE.random() < RARELY:
            done: Deferred[ErrorCode] = Deferred()
            done.resolve(ErrorCode.none)
            return done
        return write(self, partition, marker)

    MarkerWriter.write_marker = lost  # type: ignore[method-assign]  # the planted fault


def write_wrong_epochs() -> None:
    write = MarkerWriter.write_marker

    def wrong(self: MarkerWriter, partition: Partition, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        if CHANCE.random() < RARELY:
            marker = marker._replace(producer_epoch=marker.producer_epoch + 1)
        return write(self, partition, marker)

    MarkerWriter.write_marker = wrong  # type: ignore[method-assign]  # the planted fault


def raise_last_stable_offset() -> None:
    LogTransactions.last_stable_offset = LogTransactions.high_watermark  # type: ignore[assignment]  # the planted fault


def take_sequences_twice() -> None:
    Producers.find_duplicate = lambda self, header: None  # type: ignore[method-assign]  # the planted fault
    Producers._check_sequence = lambda self, state, header: None  # type: ignore[method-assign]  # the planted fault


def apply_offsets_at_prepare() -> None:
    """The decision, whichever it is, makes the offsets of the transaction committed ones, before the markers."""
    make, announced = GroupRuntime.__init__, TransactionRuntime.on_announced
    runtimes: list[GroupRuntime] = []

    def known(self: GroupRuntime, *arguments: Any) -> None:
        make(self, *arguments)
        runtimes[:] = [self]

    def applied(self: TransactionRuntime, index: int, value: Markers) -> None:
        for topic, partition in value.partitions:
            shard = runtimes[0].shard(partition) if topic == OFFSETS_TOPIC and runtimes else None
            if shard is not None:
                for _ in shard.end_transaction(value.producer.producer_id, commit=True):
                    pass
        announced(self, index, value)

    GroupRuntime.__init__ = known  # type: ignore[method-assign]  # the planted fault
    TransactionRuntime.on_announced = applied  # type: ignore[method-assign]  # the planted fault


FAULTS: dict[str, Callable[[], None]] = {
    "a marker is lost": lose_markers,
    "a marker has a wrong epoch": write_wrong_epochs,
    "the last stable offset is too high": raise_last_stable_offset,
    "a sequence is taken twice": take_sequences_twice,
    "offsets are applied at Prepare": apply_offsets_at_prepare,
}

if __name__ == "__main__":
    from odradek.broker.__main__ import main  # not for importers: it stops the garbage collector

    FAULTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
