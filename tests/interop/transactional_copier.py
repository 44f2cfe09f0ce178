"""Copies a topic in transactions, with one of several clients.

Usage: ``python transactional_copier.py CLIENT BOOTSTRAP SOURCE TARGET GROUP TRANSACTIONAL_ID``. Each transaction has up
to ten records and their offsets. Every fourth transaction is aborted and repeated. A record of the output,
``PARTITION/OFFSET``, names its source record. The program prints one line for each event: ``assigned 0,3`` if the
assignment has changed, ``committed``, ``aborted`` (planned, or after an error that allows an abort), ``renewed ERROR``
for new clients after an error that allows no abort, ``restarted`` for a new process after a call that does not return.
The copy ends with ``left`` when the input ends.
TransactionalCopier.java and franz_copier do the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Any

CLIENT, BOOTSTRAP, SOURCE, TARGET, GROUP, TRANSACTIONAL_ID = sys.argv[1:7]
SESSION_MS, HEARTBEAT_MS, TRANSACTION_MS, PIECE, PAUSE_S = 6_000, 300, 10_000, 10, 0.02
STEP_S = 30
stopped = threading.Event()
_reported: list[int] | None = None


def report(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def assigned(partitions: Iterable[int]) -> None:
    global _reported  # noqa: PLW0603
    now = sorted(partitions)
    if now != _reported:
        _reported = now
        report(f"assigned {','.join(map(str, now))}")


def is_planned_abort(number: int) -> bool:
    return number % 4 == 1


# --- confluent-kafka ----------------------------------------------------------------------------------------------


class Confluent:
    """A consumer and a producer, which are used until an error after which only new clients can continue."""

    def __init__(self) -> None:
        from confluent_kafka import Consumer, Producer

        self.batch: list[Any] = []
        self.number = 0
        self.producer = Producer(
            {
                "bootstrap.servers": BOOTSTRAP, "transactional.id": TRANSACTIONAL_ID, "linger.ms": 0, "log_level": 2,
                "transaction.timeout.ms": TRANSACTION_MS,
                # with the default strategy, librdkafka 2.16.0 does not return from send_offsets_to_transaction after
                # the broker's restart
                "metadata.recovery.strategy": "none",
            }
        )  # fmt: skip
        self.producer.init_transactions(60)
        self.consumer = Consumer(
            {
                "bootstrap.servers": BOOTSTRAP, "group.id": GROUP, "isolation.level": "read_committed",
                "auto.offset.reset": "earliest", "enable.auto.commit": False, "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS, "fetch.wait.max.ms": 100, "log_level": 2,
            }
        )  # fmt: skip
        self.consumer.subscribe([SOURCE], on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed)

    def _changed(self, *_: Any) -> None:
        self.batch.clear()

    def close(self) -> None:
        self.consumer.close()

    def step(self) -> None:
        deadline = time.monotonic() + 0.2
        while len(self.batch) < PIECE and time.monotonic() < deadline:
            message = self.consumer.poll(0.05)
            if message is not None and message.error() is None:
                self.batch.append(message)
        assigned(tp.partition for tp in self.consumer.assignment())
        if self.batch:
            self._copy()
            self.batch.clear()

    def _copy(self) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        self.number += 1
        ends = {message.partition(): message.offset() + 1 for message in self.batch}
        try:
            self.producer.begin_transaction()
            for message in self.batch:
                value = f"{message.partition()}/{message.offset()}"
                self.producer.produce(TARGET, value, partition=message.partition())
            offsets = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
            self.producer.send_offsets_to_transaction(offsets, self.consumer.consumer_group_metadata(), 60)
            if is_planned_abort(self.number):
                self.producer.flush(60)
                self._abort()
            else:
                self.producer.commit_transaction(60)
                report("committed")
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort()

    def _abort(self) -> None:
        from confluent_kafka import TopicPartition

        self.producer.abort_transaction(60)
        report("aborted")
        where = self.consumer.assignment()
        for tp in self.consumer.committed(where, 60) if where else ():
            self.consumer.seek(TopicPartition(SOURCE, tp.partition, max(tp.offset, 0)))


# --- kafka-python -------------------------------------------------------------------------------------------------


class KafkaPython:
    def __init__(self) -> None:
        from kafka import KafkaConsumer, KafkaProducer

        self.number = 0
        self.producer = KafkaProducer(
            bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=TRANSACTION_MS
        )
        self.producer.init_transactions()
        self.consumer = KafkaConsumer(
            SOURCE, bootstrap_servers=BOOTSTRAP, group_id=GROUP, isolation_level="read_committed",
            auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=PIECE, fetch_max_wait_ms=100,
            session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
        )  # fmt: skip

    def close(self) -> None:
        self.consumer.close(autocommit=False)
        self.producer.close(timeout=1)

    def step(self) -> None:
        polled = self.consumer.poll(timeout_ms=200)
        assigned(tp.partition for tp in self.consumer.assignment())
        if polled:
            self._copy(polled)

    def _copy(self, polled: Any) -> None:
        from kafka import OffsetAndMetadata
        from kafka.errors import KafkaError, ProducerFencedError

        self.number += 1
        try:
            self.producer.begin_transaction()
            for tp, records in polled.items():
                for record in records:
                    self.producer.send(TARGET, f"{tp.partition}/{record.offset}".encode(), partition=tp.partition)
            offsets = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in polled.items()}
            self.producer.send_offsets_to_transaction(offsets, self.consumer.group_metadata())
            if is_planned_abort(self.number):
                self.producer.flush()
                self._abort()
            else:
                self.producer.commit_transaction()
                report("committed")
        except ProducerFencedError:
            raise
        except KafkaError:
            self._abort()

    def _abort(self) -> None:
        self.producer.abort_transaction()
        report("aborted")
        for tp in self.consumer.assignment():
            self.consumer.seek(tp, self.consumer.committed(tp) or 0)


class Watchdog:
    """Starts the process again if a step takes too long, as a supervisor does.

    kafka-python 3.0.12 drops a transaction's request if the connection to the coordinator is refused at that moment;
    the call that waits for this request has no time limit (``Sender._maybe_send_pending_request``)."""

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while time.monotonic() - self.begun_s < STEP_S:
            time.sleep(1)
        report("restarted")
        os.execv(sys.executable, [sys.executable, *sys.argv])


def run(make: type[Confluent | KafkaPython]) -> None:
    clients = None
    watchdog = Watchdog()
    while not stopped.is_set():
        watchdog.begun_s = time.monotonic()
        try:
            clients = clients or make()
            clients.step()
            time.sleep(PAUSE_S)
        except Exception as error:
            report(f"renewed {type(error).__name__}: {error}".replace("\n", " "))
            old, clients = clients, None
            if old is not None:
                old.close()
    if clients is not None:
        clients.close()


# --- aiokafka -----------------------------------------------------------------------------------------------------


class AioKafka:
    """aiokafka sends no generation with a transaction's offsets. A rebalance waits for the end of the transaction."""

    def __init__(self) -> None:
        from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
        from aiokafka.abc import ConsumerRebalanceListener

        self.number = 0
        self.in_transaction = asyncio.Lock()
        self.producer = AIOKafkaProducer(
            bootstrap_servers=BOOTSTRAP, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=TRANSACTION_MS
        )
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=BOOTSTRAP, group_id=GROUP, isolation_level="read_committed",
            auto_offset_reset="earliest", enable_auto_commit=False, fetch_max_wait_ms=100,
            session_timeout_ms=SESSION_MS, heartbeat_interval_ms=HEARTBEAT_MS,
        )  # fmt: skip
        outer = self

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked: Any) -> None:
                async with outer.in_transaction:
                    pass

            async def on_partitions_assigned(self, given: Any) -> None:
                pass

        self.listener = Listener()

    async def start(self) -> None:
        await self.producer.start()
        await self.consumer.start()
        self.consumer.subscribe([SOURCE], listener=self.listener)

    async def close(self) -> None:
        await self.consumer.stop()
        await asyncio.wait_for(self.producer.stop(), 5)

    async def step(self) -> None:
        polled = await self.consumer.getmany(timeout_ms=200, max_records=PIECE)
        # The lock is not held during getmany(), because getmany() waits for the end of a rebalance.
        async with self.in_transaction:
            assigned(tp.partition for tp in self.consumer.assignment())
            if polled:
                await self._copy(polled)

    async def _copy(self, polled: Any) -> None:
        from aiokafka.errors import KafkaError, ProducerFenced

        self.number += 1
        try:
            await self.producer.begin_transaction()
            for tp, records in polled.items():
                for record in records:
                    await self.producer.send(TARGET, f"{tp.partition}/{record.offset}".encode(), partition=tp.partition)
            offsets = {tp: records[-1].offset + 1 for tp, records in polled.items()}
            await self.producer.send_offsets_to_transaction(offsets, GROUP)
            if is_planned_abort(self.number):
                await self.producer.flush()
                await self._abort()
            else:
                await self.producer.commit_transaction()
                report("committed")
        except ProducerFenced:
            raise
        except KafkaError:
            await self._abort()

    async def _abort(self) -> None:
        await self.producer.abort_transaction()
        report("aborted")
        for tp in self.consumer.assignment():
            self.consumer.seek(tp, await self.consumer.committed(tp) or 0)


async def aiokafka() -> None:
    clients = None
    while not stopped.is_set():
        try:
            if clients is None:
                clients = AioKafka()
                await clients.start()
            await clients.step()
            await asyncio.sleep(PAUSE_S)
        except Exception as error:
            report(f"renewed {type(error).__name__}: {error}".replace("\n", " "))
            old, clients = clients, None
            if old is not None:
                await old.close()
    if clients is not None:
        await clients.close()


def _wait_for_the_end_of_input() -> None:
    while os.read(0, 100):  # not sys.stdin: no thread may hold its lock when Python ends
        pass
    stopped.set()


logging.disable(logging.WARNING)
threading.Thread(target=_wait_for_the_end_of_input, daemon=True).start()
if CLIENT == "aiokafka":
    asyncio.run(aiokafka())
else:
    run({"confluent-kafka": Confluent, "kafka-python": KafkaPython}[CLIENT])
report("left")
