"""A process with one transactional producer, for the checker of transactions, which ends it with ``kill -9``.

``python -m support.transaction_worker HOST:PORT NAME SEED``. A line on stdin, ``first count``, asks for the
transactions with the numbers first to first + count - 1. The process prints these lines of JSON without a buffer,
so that the ledger of the test survives this process:

| line | meaning |
|---|---|
| ``{"plan": n, "counts": {partition: records}, "offset": n or null}`` | the transaction begins |
| ``{"committing": n}``, ``{"aborting": n}`` | the producer asks for this end |
| ``{"committed": n}``, ``{"aborted": n}`` | the producer has the reply |
| ``{"done": true}`` | these transactions are over |
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from typing import Any

from odradek import Producer, TopicPartition
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata
from odradek.wire.api_keys import END_TXN
from support.brokers import Wire
from support.insides import engine_of

TOPIC = "lists"
INPUT = "input"
PARTITIONS = 3
TRANSACTION_TIMEOUT_MS = 60_000


def note(**line: Any) -> None:
    os.write(1, json.dumps(line).encode() + b"\n")


class Worker:
    def __init__(self, bootstrap: str, name: str, seed: int) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.chance = random.Random(seed)
        self.producer: Producer | None = None
        self.earlier: tuple[int, int] | None = None
        """Producer id and epoch of an earlier transaction."""

    def run(self, first: int, count: int) -> None:
        for number in range(first, first + count):
            try:
                if self.producer is None:
                    self.producer = self.made()
                self.transaction(self.producer, number)
            except OdradekError as error:
                sys.stderr.write(f"{self.name} {number}: {type(error).__name__}: {error}\n")
                self.give_up()
        if self.producer is None:  # the last transaction may be open: a successor ends it
            self.producer = self.made()

    def made(self) -> Producer:
        while True:
            producer = Producer(
                self.bootstrap, transactional_id=self.name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, linger_ms=0,
                request_timeout_ms=1_000, delivery_timeout_ms=8_000, max_block_ms=8_000,
            )  # fmt: skip
            try:
                producer.init_transactions()
            except OdradekError as error:
                sys.stderr.write(f"{self.name}: {type(error).__name__}: {error}\n")
                self.producer = producer
                self.give_up()
            else:
                return producer

    def give_up(self) -> None:
        """Closes the producer within 0.1 s, which may leave a transaction open: the next producer ends it."""
        producer, self.producer = self.producer, None
        if producer is not None:
            with contextlib.suppress(OdradekError):
                producer.close(0.1)

    def transaction(self, producer: Producer, number: int) -> None:
        chance = self.chance
        counts = {partition: chance.randint(1, 4) for partition in range(PARTITIONS) if chance.random() < 0.7} or {0: 1}
        has_offset = chance.random() < 0.5
        note(plan=number, counts=counts, offset=number if has_offset else None)
        producer.begin_transaction()
        for place in range(max(counts.values())):
            for partition, records in counts.items():
                if place < records:
                    producer.send(TOPIC, f"{self.name}:{number}:{place}".encode(), partition=partition)
            if chance.random() < 0.3:
                producer.flush(8)
        if has_offset:
            offsets = {TopicPartition(INPUT, partition): number for partition in range(PARTITIONS)}
            producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(self.name))
        if chance.random() < 0.2:
            time.sleep(chance.random() * 0.02)
        if chance.random() < 0.3:
            self.repeat_end()
        self.end(producer, number, commit=chance.random() < 0.7)

    def end(self, producer: Producer, number: int, *, commit: bool) -> None:
        identity = engine_of(producer).transaction.producer  # to send its EndTxn twice
        note(**{"committing" if commit else "aborting": number})
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
        note(**{"committed" if commit else "aborted": number})
        self.earlier = (identity.producer_id, identity.producer_epoch)

    def repeat_end(self) -> None:
        """Sends EndTxn of an earlier transaction again, like a network that repeats a request late."""
        if self.earlier is None:
            return
        producer_id, epoch = self.earlier
        message = {"transactional_id": self.name, "producer_id": producer_id, "producer_epoch": epoch}
        with contextlib.suppress(OSError), Wire(self.bootstrap, timeout_s=2) as wire:
            wire.call(END_TXN, 5, message | {"committed": self.chance.random() < 0.5})


def main() -> None:
    worker = Worker(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    for line in sys.stdin:
        first, count = map(int, line.split())
        worker.run(first, count)
        os.write(1, b'{"done": true}\n')


if __name__ == "__main__":
    main()
