"""A broker process with planted faults: ``python -m support.faulty_broker NAME[,NAME…]`` and the broker's arguments.

* ``FAULTS``: the checker and the simulator of transactions have to find each of them.
* ``EARLY_REPLY``: a fault that only the checker has to find.
* ``LATE_MARKERS``: no fault. Markers are written late, as in a cluster of several brokers. So readers and kill -9 come
  between a decision and its markers, and between two markers.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from typing import Any

from odradek.broker.coordinators.group_runtime import GroupRuntime
from odradek.broker.coordinators.transaction_markers import MarkerWriter
from odradek.broker.coordinators.transaction_runtime import TransactionRuntime
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.core.ids import OFFSETS_TOPIC, EndTransactionMarker, PartitionKey
from odradek.storage.log import Log
from odradek.storage.producers.producers import Producers
from odradek.transactions.messages import Markers, MarkersDelayed

CHANCE = random.Random(1)
RARELY = 0.1
LONGEST_DELAY_S = 0.1


def lose_markers() -> None:
    write = MarkerWriter.write_marker

    def lost(self: MarkerWriter, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        if CHANCE.random() < RARELY:
            done: Deferred[ErrorCode] = Deferred()
            done.resolve(ErrorCode.none)
            return done
        return write(self, partition, marker)

    MarkerWriter.write_marker = lost  # the planted fault


def write_wrong_epochs() -> None:
    write = MarkerWriter.write_marker

    def wrong(self: MarkerWriter, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        if CHANCE.random() < RARELY:
            marker = marker._replace(producer_epoch=marker.producer_epoch + 1)
        return write(self, partition, marker)

    MarkerWriter.write_marker = wrong  # the planted fault


def raise_last_stable_offset() -> None:
    Log.last_stable_offset = Log.high_watermark  # the planted fault


def take_sequences_twice() -> None:
    Producers.find_duplicate = lambda self, header: None  # the planted fault
    Producers._check_sequence = lambda self, state, header: None  # the planted fault


def apply_offsets_at_prepare() -> None:
    """The decision to commit already commits the offsets of the transaction, before their marker is in the log.

    An abort correctly drops the offsets at its marker. So aborted transactions do not show the fault.
    """
    make, announced = GroupRuntime.__init__, TransactionRuntime.on_announced
    runtimes: list[GroupRuntime] = []

    def known(self: GroupRuntime, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        runtimes[:] = [self]

    def applied(self: TransactionRuntime, index: int, value: Markers) -> None:
        for topic, partition in value.partitions if value.commit else ():
            shard = runtimes[0].shard(partition) if topic == OFFSETS_TOPIC and runtimes else None
            if shard is not None:
                for _ in shard.end_transaction(value.producer.producer_id, commit=True):
                    pass
        announced(self, index, value)

    GroupRuntime.__init__ = known  # the planted fault
    TransactionRuntime.on_announced = applied  # the planted fault


def reply_at_prepare() -> None:
    """EndTxn gets its reply when the decision is in the log, before the markers."""
    announced = TransactionRuntime.on_announced

    def answered(self: TransactionRuntime, index: int, value: Markers) -> None:
        announced(self, index, value)
        self.submit(index, MarkersDelayed(value.transactional_id, value.producer))

    TransactionRuntime.on_announced = answered  # the planted fault


def delay_markers() -> None:
    """About half of the markers are written up to a tenth of a second late, independently for each partition."""
    write = MarkerWriter.write_marker

    def late(self: MarkerWriter, partition: PartitionKey, marker: EndTransactionMarker) -> Deferred[ErrorCode]:
        if CHANCE.random() < 0.5:
            return write(self, partition, marker)
        written: Deferred[ErrorCode] = Deferred()

        def write_now() -> None:
            write(self, partition, marker).then(written.resolve)

        asyncio.get_running_loop().call_later(CHANCE.random() * LONGEST_DELAY_S, write_now)
        return written

    MarkerWriter.write_marker = late  # no fault, only late


FAULTS: dict[str, Callable[[], None]] = {
    "a marker is lost": lose_markers,
    "a marker has a wrong epoch": write_wrong_epochs,
    "the last stable offset is too high": raise_last_stable_offset,
    "a sequence is taken twice": take_sequences_twice,
    "offsets are applied at Prepare": apply_offsets_at_prepare,
}
EARLY_REPLY = "EndTxn is answered at Prepare"
LATE_MARKERS = "markers are late"

if __name__ == "__main__":
    from odradek.broker.__main__ import main  # not for importers: it stops the garbage collector

    plants = FAULTS | {EARLY_REPLY: reply_at_prepare, LATE_MARKERS: delay_markers}
    for name in sys.argv[1].split(","):
        plants[name]()
    sys.exit(main(sys.argv[2:]))
