"""Producers with transactions as recorded clients, with offsets of a group in each transaction."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import confluent_kafka

from odradek import Producer
from odradek.core.errors import OdradekError
from odradek.core.ids import ConsumerGroupMetadata, TopicPartition
from support.recorded_clients import PRODUCE_MS, RecordedProducer

TIMEOUT_MS = 10_000
"""A transaction that its producer cannot end any more is aborted after this time."""
CALL_S = 30
RECORDS = 3


class RecordedTransactions(RecordedProducer):
    """Some records in each transaction, and an offset if there is a group; each third transaction is aborted.

    After an error, a new producer with the same transactional id goes on: what the former one left is aborted, or was
    committed. The offsets of the group rise, and only this client commits them."""

    def __init__(self, *arguments: Any, group: str | None = None) -> None:
        super().__init__(*arguments)
        self.group, self.rounds = group, 0

    @property
    def transactional_id(self) -> str:
        return self.name

    def work(self) -> None:
        producer: Any = None
        while not self.ended.is_set():
            try:
                producer = producer or self.opened()
                self._transact(producer)
            except (confluent_kafka.KafkaException, OdradekError) as error:
                self.note(error)
                if producer is not None:
                    self.closed(producer)
                producer = None
            self.rest()
        if producer is not None:
            self.closed(producer)

    def _transact(self, producer: Any) -> None:
        self.rounds += 1
        name = f"{self.name}/{self.rounds}"
        producer.begin_transaction()
        for _ in range(RECORDS):
            fields = self.next_record() | {"transaction": name}
            self.send(producer, fields, partial(self._delivered, time.time(), fields))
        if self.group is not None:
            self._commit_offset(producer, self.group, name)
        decision = "abort" if self.rounds % 3 == 2 else "commit"
        start, outcome = time.time(), "unknown"
        try:
            self.end(producer, decision)
            outcome = "done"
        finally:
            self.record("end_transaction", start, outcome=outcome, transaction=name, decision=decision)

    def _commit_offset(self, producer: Any, group: str, name: str) -> None:
        start, outcome = time.time(), "unknown"
        fields = {"group": group, "topic": self.topic, "partition": 0, "offset": self.rounds, "transaction": name}
        try:
            self.commit_offset(producer, group, self.rounds)
            outcome = "done"
        finally:
            self.record("commit", start, outcome=outcome, **fields)

    def _delivered(self, start: float, fields: dict[str, Any], error: object, offset: int | None) -> None:
        if error is not None:
            self.note(error)
        self.record("send", start, outcome="done" if error is None else "unknown", offset=offset, **fields)

    def opened(self) -> Any:
        raise AssertionError(self)

    def closed(self, producer: Any) -> None:
        raise AssertionError(self)

    def send(self, producer: Any, fields: dict[str, Any], report: Any) -> None:
        """Sends a record; ``report`` takes its error or its offset."""
        raise AssertionError(self)

    def commit_offset(self, producer: Any, group: str, offset: int) -> None:
        raise AssertionError(self)

    def end(self, producer: Any, decision: str) -> None:
        raise AssertionError(self)


class ConfluentTransactions(RecordedTransactions):
    """Without offsets: librdkafka 2.16 waits forever in ``send_offsets_to_transaction`` after the group's coordinator
    was missing in a reply to Metadata, as a broker that is down (github.com/confluentinc/librdkafka/issues/5511)."""

    def opened(self) -> Any:
        settings = {
            "bootstrap.servers": self.bootstrap, "log_level": 0, "transactional.id": self.name,
            "transaction.timeout.ms": TIMEOUT_MS, "delivery.timeout.ms": TIMEOUT_MS, "request.timeout.ms": PRODUCE_MS,
            "linger.ms": 2,
        }  # fmt: skip
        producer = confluent_kafka.Producer(settings)
        producer.init_transactions(CALL_S)
        return producer

    def closed(self, producer: Any) -> None:
        try:
            producer.purge()
            producer.flush(1)
        except confluent_kafka.KafkaException as error:  # fenced: the broker has aborted its transaction
            self.note(error)

    def send(self, producer: Any, fields: dict[str, Any], report: Any) -> None:
        def delivered(error: Any, message: Any) -> None:
            report(error, None if error is not None else message.offset())

        producer.produce(self.topic, fields["value"].encode(), partition=fields["partition"], on_delivery=delivered)

    def end(self, producer: Any, decision: str) -> None:
        if decision == "commit":
            producer.commit_transaction(CALL_S)
        else:
            producer.abort_transaction(CALL_S)


class OdradekTransactions(RecordedTransactions):
    def opened(self) -> Any:
        producer = Producer(
            self.bootstrap, transactional_id=self.name, transaction_timeout_ms=TIMEOUT_MS,
            delivery_timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        producer.init_transactions()
        return producer

    def closed(self, producer: Any) -> None:
        try:
            producer.close(timeout=1)
        except OdradekError as error:
            self.note(error)

    def send(self, producer: Any, fields: dict[str, Any], report: Any) -> None:
        def delivered(metadata: Any, error: Any) -> None:
            report(error, None if error is not None else metadata.offset)

        producer.send(self.topic, fields["value"].encode(), partition=fields["partition"], on_delivery=delivered)

    def commit_offset(self, producer: Any, group: str, offset: int) -> None:
        offsets = {TopicPartition(self.topic, 0): offset}
        producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata(group))

    def end(self, producer: Any, decision: str) -> None:
        if decision == "commit":
            producer.commit_transaction()
        else:
            producer.abort_transaction()
