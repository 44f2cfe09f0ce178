"""Idempotent producers of two kinds that send to one partition for as long as a test kills its brokers."""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from collections import Counter

import confluent_kafka

import odradek
from odradek.batches.rows import iter_records
from odradek.client.producer.engine import RecordMetadata
from odradek.core.errors import OdradekError

PAUSE_S, MOST_AT_ONCE = 0.02, 4
DELIVERY_MS = 180_000


class IdempotentSender(threading.Thread, ABC):
    """Sends records with keys of its own, a few at a time, and several batches in flight.

    ``acknowledged``: offset → key. ``unplaced``: keys of acknowledged records without an offset, which were sent twice
    and whose offset the broker has forgotten. ``failures``: of records that were given up, and fatal ones.
    """

    def __init__(self, servers: str, topic: str, partition: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[int, bytes] = {}
        self.unplaced: set[bytes] = set()
        self.failures: list[str] = []
        self.sent = 0
        self._servers, self._topic, self._partition = servers, topic, partition
        self._ended = threading.Event()
        self.start()

    def end(self) -> None:
        """Sends no more. The thread ends when all is delivered."""
        self._ended.set()

    def run(self) -> None:
        try:
            self._send_until_ended()
        except Exception as error:
            self.failures.append(repr(error))

    def _send_until_ended(self) -> None:
        name = f"{type(self).__name__}.{id(self)}"
        while not self._ended.wait(PAUSE_S):
            for _ in range(random.randrange(MOST_AT_ONCE)):
                self.sent += 1
                self._send(f"{name}.{self.sent}".encode(), random.randbytes(random.randrange(400)))
            self._poll()
        self._close()

    def _note(self, offset: int, key: bytes) -> None:
        if offset < 0:
            self.unplaced.add(key)
            return
        if offset in self.acknowledged:
            self.failures.append(f"offset {offset} is that of {self.acknowledged[offset]!r} and {key!r}")
        self.acknowledged[offset] = key

    @abstractmethod
    def _send(self, key: bytes, value: bytes) -> None: ...
    @abstractmethod
    def _poll(self) -> None: ...
    @abstractmethod
    def _close(self) -> None: ...


class Librdkafka(IdempotentSender):
    """confluent-kafka's producer."""

    def _send_until_ended(self) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": self._servers, "enable.idempotence": True, "linger.ms": 2,
                "batch.num.messages": 20, "socket.timeout.ms": 10_000, "delivery.timeout.ms": DELIVERY_MS,
                "error_cb": self._on_error, "log_level": 2,
            }
        )  # fmt: skip
        super()._send_until_ended()

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self.failures.append(str(error))

    def _send(self, key: bytes, value: bytes) -> None:
        def note(error: confluent_kafka.KafkaError | None, sent: confluent_kafka.Message) -> None:
            if error is not None:
                self.failures.append(str(error))
            else:
                offset = sent.offset()
                assert offset is not None
                self._note(offset, key)

        self._producer.produce(self._topic, value, key, self._partition, on_delivery=note)

    def _poll(self) -> None:
        self._producer.poll(0)

    def _close(self) -> None:
        left = self._producer.flush(DELIVERY_MS / 1000)
        if left:
            self.failures.append(f"{left} records were not delivered")


class Own(IdempotentSender):
    """odradek's producer."""

    def _send_until_ended(self) -> None:
        self._producer = odradek.Producer(
            self._servers, linger_ms=2, batch_size=2_000, delivery_timeout_ms=DELIVERY_MS, request_timeout_ms=10_000
        )
        super()._send_until_ended()

    def _send(self, key: bytes, value: bytes) -> None:
        def note(sent: RecordMetadata | None, error: Exception | None) -> None:
            if sent is None:
                self.failures.append(repr(error))
            else:
                self._note(sent.offset, key)

        self._producer.send(self._topic, value, key, partition=self._partition, on_delivery=note)

    def _poll(self) -> None:
        pass

    def _close(self) -> None:
        try:
            self._producer.close()
        except OdradekError as error:
            self.failures.append(repr(error))


def end_all(senders: list[IdempotentSender]) -> None:
    """Returns when all records of these senders are delivered."""
    for sender in senders:
        sender.end()
    for sender in senders:
        sender.join(DELIVERY_MS / 1000 + 30)
        assert not sender.is_alive(), "the producer does not end"


def check_once(log: bytes, senders: list[IdempotentSender]) -> None:
    """Checks that each acknowledged record of these senders is at its offset in a replica's log, and that no record is
    there twice."""
    keys = {row.offset: row.key for row in iter_records(log)}
    for sender in senders:
        assert not sender.failures, sender.failures[:5]
        assert sender.acknowledged
        assert {offset: keys.get(offset) for offset in sender.acknowledged} == sender.acknowledged
        assert not sender.unplaced - set(keys.values())
    repeated = [key for key, count in Counter(keys.values()).items() if count > 1]
    assert not repeated, repeated[:5]
