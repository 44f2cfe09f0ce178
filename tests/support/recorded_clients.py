"""Real clients that work during faults, and write what they see as a history for ``odradek.consistency``.

Each client is a thread with client objects of its own. All outcomes without an answer are ``unknown``, and so are all
errors: a client that repeats its requests does not say whether an earlier one was written.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import ConsumerRebalanceListener as AioListener
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import TopicPartition as AioPartition
from kafka import ConsumerRebalanceListener as PythonListener
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata as PythonOffset

from odradek import Consumer, Producer
from odradek.client import Admin
from odradek.consistency.anomalies import Anomaly
from odradek.consistency.checks import find_anomalies
from odradek.consistency.client_history import history_of
from odradek.core.errors import OdradekError
from odradek.core.ids import LATEST, TopicPartition
from support.worker_thread import WorkerThread

REQUEST_MS, DELIVERY_MS = 4_000, 180_000
"""No record expires within a round: librdkafka begins an epoch of its producer id then, and repeats in it what the
brokers may have of the former one, so idempotence ends."""
PRODUCE_MS = 1_500
"""Shorter than a session: a producer repeats what a leader without followers has written."""
POLL_S = 0.2
NEVER_ASKED_AGAIN = "Failed to fetch committed offsets for 0 partition(s)"
for _name in ("kafka", "aiokafka"):  # they log each attempt to reach a broker that is down
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class RecordedHistory:
    """The lines of all clients."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[dict[str, Any]] = []
        self.stale: list[tuple[float, float]] = []
        """From when to when a resumed broker may have answered lookups with what it had when it was paused."""

    def add(self, op: str, client: str, start: float, **fields: Any) -> None:
        with self._lock:
            self._rows.append({"op": op, "client": client, "start": start} | fields)

    def count(self, op: str, client: str | None = None) -> int:
        """How many of these operations are done."""
        with self._lock:
            return sum(
                row["op"] == op and client in (None, row["client"]) and row.get("outcome", "done") == "done"
                for row in self._rows
            )

    def lines(self) -> list[str]:
        """The lines. A lookup is stale if a broker may have answered before it learned that it leads no more."""
        with self._lock:
            return [json.dumps(row | {"stale": True} if self._may_be_stale(row) else row) for row in self._rows]

    def _may_be_stale(self, row: dict[str, Any]) -> bool:
        if row["op"] not in ("list_offsets", "offset_fetch") or "end" not in row:
            return False
        return any(row["start"] <= until and row["end"] >= since for since, until in self.stale)

    def check(self) -> list[Anomaly]:
        return find_anomalies(history_of((f"line {number}", line) for number, line in enumerate(self.lines(), 1)))

    def write(self, path: Path) -> None:
        path.write_text("\n".join(self.lines()) + "\n")


class RecordedClient(WorkerThread):
    """One client. ``done``: how many of its operations had an answer."""

    number: ClassVar[int] = 0
    pause_s: ClassVar[float] = 0.02

    def __init__(self, history: RecordedHistory, bootstrap: str, topic: str, partitions: int, kind: str = "") -> None:
        RecordedClient.number += 1
        self.number_of_client = RecordedClient.number
        super().__init__(f"{type(self).__name__}{kind}-{RecordedClient.number}")
        self.history, self.bootstrap, self.topic, self.partitions = history, bootstrap, topic, partitions
        self.ended = threading.Event()
        self.done = 0
        self.errors: dict[str, int] = {}

    def rest(self) -> None:
        self.ended.wait(self.pause_s)

    def evidence(self) -> list[str]:
        """What else is known about this client when it does not go on."""
        return []

    def note(self, error: object) -> None:
        name = str(error)[:80] or type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1

    def record(self, op: str, start: float, *, outcome: str = "done", end: float | None = None, **fields: Any) -> None:
        """``end``: now, unless the operation is known to have ended before."""
        ends = {"end": time.time() if end is None else end} if outcome == "done" else {}
        self.done += outcome == "done"
        self.history.add(op, self.name, start, outcome=outcome, **ends, **fields)


# --- producers ------------------------------------------------------------------------------------------------------


class RecordedProducer(RecordedClient):
    """Sends records with numbers as values, to all partitions in turn."""

    def __init__(self, *arguments: Any, idempotent: bool = True) -> None:
        super().__init__(*arguments)
        self.idempotent, self.sent = idempotent, 0

    def next_record(self) -> dict[str, Any]:
        """The fields of the next send."""
        number = self.sent
        self.sent += 1
        return {
            "topic": self.topic, "partition": number % self.partitions, "value": f"{self.name}.{number}",
            "number": number, "idempotent": self.idempotent,
        }  # fmt: skip


class NewEpochs(logging.Handler):
    """Calls a function when librdkafka begins an epoch of its producer id: it says so in its log."""

    def __init__(self, name: str, begun: Callable[[], None]) -> None:
        super().__init__(logging.DEBUG)
        self._begun = begun
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if "epoch bump for" in record.getMessage():
            self._begun()


class ConfluentProducer(RecordedProducer):
    """confluent-kafka, with several requests in flight.

    librdkafka begins an epoch of its producer id when a batch is out of order because the one before it failed. In the
    new epoch it sends again what has no answer, and the brokers may have that of the former epoch
    (github.com/confluentinc/librdkafka/issues/4953). So the history does not call that idempotent."""

    def __init__(self, *arguments: Any, idempotent: bool = True) -> None:
        super().__init__(*arguments, idempotent=idempotent)
        self._epochs = NewEpochs(self.name, self._begin_epoch)
        self._repeated = 0

    def _begin_epoch(self) -> None:
        self.note("an epoch begins")
        self._repeated = self.sent

    def work(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.bootstrap, "enable.idempotence": self.idempotent, "acks": "all", "debug": "eos",
             "delivery.timeout.ms": DELIVERY_MS, "request.timeout.ms": PRODUCE_MS, "linger.ms": 2},
            logger=self._epochs.logger,
        )  # fmt: skip
        while not self.ended.is_set():
            if len(producer) < 20:
                fields = self.next_record()
                report = partial(self._delivered, time.time(), fields)
                value = fields["value"].encode()
                producer.produce(self.topic, value, partition=fields["partition"], on_delivery=report)
            producer.poll(self.pause_s)
        producer.flush(2 * DELIVERY_MS / 1000)

    def _delivered(self, start: float, fields: dict[str, Any], error: Any, message: Any) -> None:
        if error is not None:
            self.note(error)
        if fields["number"] < self._repeated:
            fields["idempotent"] = False
        outcome = "done" if error is None else "unknown"
        self.record("send", start, outcome=outcome, **fields, offset=None if error is not None else message.offset())


class KafkaPythonProducer(RecordedProducer):
    """kafka-python, which waits for each record."""

    def work(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap, enable_idempotence=self.idempotent, acks="all",
            request_timeout_ms=REQUEST_MS, delivery_timeout_ms=DELIVERY_MS, max_block_ms=DELIVERY_MS,
            reconnect_backoff_max_ms=500,
        )  # fmt: skip
        try:
            while not self.ended.is_set():
                fields, start = self.next_record(), time.time()
                try:
                    sent = producer.send(self.topic, fields["value"].encode(), partition=fields["partition"])
                    offset = sent.get(2 * DELIVERY_MS / 1000).offset
                except Exception as error:
                    self.note(repr(error))
                    self.record("send", start, outcome="unknown", **fields)
                else:
                    self.record("send", start, offset=offset, **fields)
                self.rest()
        finally:
            producer.close(timeout=10)


class AioKafkaProducer(RecordedProducer):
    """aiokafka, in a loop of its own."""

    def work(self) -> None:
        asyncio.run(self._send())

    async def _send(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            enable_idempotence=self.idempotent,
            acks="all",
            request_timeout_ms=REQUEST_MS,
        )
        await producer.start()
        try:
            while not self.ended.is_set():
                fields, start = self.next_record(), time.time()
                value, partition = fields["value"].encode(), fields["partition"]
                try:
                    sent = await producer.send_and_wait(self.topic, value, partition=partition)
                except Exception as error:
                    self.note(repr(error))
                    self.record("send", start, outcome="unknown", **fields)
                else:
                    self.record("send", start, offset=sent.offset, **fields)
                await asyncio.sleep(self.pause_s)
        finally:
            await asyncio.wait_for(producer.stop(), 30)


class OdradekProducer(RecordedProducer):
    """Ours, with several requests in flight."""

    def work(self) -> None:
        with Producer(
            self.bootstrap, acks="all", delivery_timeout_ms=DELIVERY_MS, enable_idempotence=self.idempotent
        ) as producer:
            while not self.ended.is_set():
                fields = self.next_record()
                report = partial(self._delivered, time.time(), fields)
                value = fields["value"].encode()
                producer.send(self.topic, value, partition=fields["partition"], on_delivery=report)
                self.rest()
            producer.flush(2 * DELIVERY_MS / 1000)

    def _delivered(self, start: float, fields: dict[str, Any], metadata: Any, error: Any) -> None:
        if error is not None:
            self.note(error)
            self.record("send", start, outcome="unknown", **fields)
        else:
            self.record("send", start, offset=metadata.offset, **fields)


# --- readers of all records -----------------------------------------------------------------------------------------


class RecordedReader(RecordedClient):
    """Reads all partitions from their beginning. ``positions``: the next offset of each."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.positions = dict.fromkeys(range(self.partitions), 0)

    def begin(self, offset: int | None = 0) -> None:
        for number in range(self.partitions):
            self.record("assign", time.time(), topic=self.topic, partition=number, offset=offset)

    def polled(self, start: float, rows: Iterable[tuple[int, int, bytes]], **fields: Any) -> None:
        """``rows``: partition, offset and value of each record, in the order of the poll."""
        found: dict[int, list[tuple[int, str]]] = {}
        for partition, offset, value in rows:
            found.setdefault(partition, []).append((offset, value.decode()))
        for partition, records in found.items():
            self.positions[partition] = records[-1][0] + 1
            self.record("poll", start, topic=self.topic, partition=partition, records=records, **fields)

    def has_read(self, ends: dict[int, int]) -> bool:
        return all(self.positions[number] >= end for number, end in ends.items())


class ConfluentReader(RecordedReader):
    def work(self) -> None:
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "log_level": 0, "group.id": self.name, "enable.auto.commit": False,
             "auto.offset.reset": "error", "isolation.level": "read_uncommitted", "fetch.wait.max.ms": 100}
        )  # fmt: skip
        consumer.assign([confluent_kafka.TopicPartition(self.topic, one, 0) for one in range(self.partitions)])
        self.begin()
        while not self.ended.is_set():
            start = time.time()
            messages = consumer.consume(500, timeout=POLL_S)
            for message in messages:
                if message.error() is not None:
                    self.note(message.error())
            self.polled(start, [(one.partition(), one.offset(), one.value()) for one in messages if not one.error()])
        consumer.close()


class OdradekReader(RecordedReader):
    def work(self) -> None:
        with Consumer(
            self.bootstrap, auto_offset_reset="none", enable_auto_commit=False, isolation_level="read_committed"
        ) as consumer:
            partitions = [TopicPartition(self.topic, one) for one in range(self.partitions)]
            consumer.assign(partitions)
            for one in partitions:
                consumer.seek(one, 0)
            self.begin()
            while not self.ended.is_set():
                start = time.time()
                rows = rows_of(consumer.poll(POLL_S))
                self.polled(start, rows, isolation="read_committed")


def rows_of(polled: Any) -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of each record of a poll of ours."""
    found = []
    for where, batches in polled.items():
        for batch in batches:
            offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
            found += [(where.partition, offset, value) for offset, value in zip(offsets, values, strict=True)]
    return found


# --- members of groups ----------------------------------------------------------------------------------------------


class RecordedMember(RecordedReader):
    """A member of a group that commits after each poll. ``lookups_wait``: its lookups of committed offsets wait for
    open transactions."""

    lookups_wait: ClassVar[bool] = False

    def __init__(self, *arguments: Any, group: str, protocol: str = "classic") -> None:
        super().__init__(*arguments)
        self.group, self.protocol = group, protocol

    def membership(self) -> tuple[str, int]:
        """The member id, and the generation or the epoch. Not all clients know them."""
        return "", -1

    def identity(self) -> dict[str, Any]:
        """The fields of the history that name the member; none outside of the group."""
        member, number = self.membership()
        number_name = "epoch" if self.protocol == "consumer" else "generation"
        return {"member": member, number_name: number} if member and number > 0 else {}

    def assigned(self, partitions: Iterable[int]) -> None:
        """Each assignment sets positions, also one of the same partitions again."""
        named = self.identity()
        for number in partitions:
            where = {"topic": self.topic, "partition": number, "group": self.group}
            self.record("assign", time.time(), offset=None, stable=self.lookups_wait, **where, **named)

    def revoked(self, partitions: Iterable[int]) -> None:
        """No progress: it is no answer to a request."""
        for number in partitions:
            self.history.add("revoke", self.name, time.time(), group=self.group, topic=self.topic, partition=number)

    def committed(
        self,
        start: float,
        offsets: dict[int, int],
        outcome: str,
        end: float | None = None,
        before: dict[str, Any] | None = None,
    ) -> None:
        """``before``: the identity at the begin of the call. If it is another one now, the request may have had
        either."""
        named = before if before and before == self.identity() else {}
        for partition, offset in offsets.items():
            fields = {"group": self.group, "topic": self.topic, "partition": partition, "offset": offset}
            self.record("commit", start, outcome=outcome, end=end, **fields, **named)


class ConfluentMember(RecordedMember):
    """After NOT_COORDINATOR in place of committed offsets, librdkafka never asks for them again, and its partitions are
    not read (github.com/confluentinc/librdkafka/issues/5586). Then another consumer goes on, as after a restart."""

    def work(self) -> None:
        while not self.ended.is_set():
            self._consumer = consumer = self._opened()
            self._read(consumer)
            consumer.close()

    def membership(self) -> tuple[str, int]:
        """librdkafka gives its metadata of the group as bytes: a magic, the number, the group and the member id."""
        magic, _, found = self._consumer.consumer_group_metadata().partition(b":")
        assert magic == b"CGMDv2", magic
        _, member, *_ = found[4:].split(b"\0")
        return member.decode(), int.from_bytes(found[:4], sys.byteorder, signed=True)

    def _opened(self) -> Any:
        settings = {
            "bootstrap.servers": self.bootstrap, "group.id": self.group,
            "group.protocol": self.protocol,
            "enable.auto.commit": False, "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted",
            "fetch.wait.max.ms": 100,
        }  # fmt: skip
        if self.protocol == "classic":
            settings |= {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
        consumer = confluent_kafka.Consumer(settings | {"debug": "cgrp"})  # a failed test shows what it wrote
        consumer.subscribe(
            [self.topic],
            on_assign=lambda _, given: self.assigned(one.partition for one in given),
            on_revoke=lambda _, taken: self.revoked(one.partition for one in taken),  # also of lost ones
        )
        return consumer

    def _read(self, consumer: Any) -> None:
        while not self.ended.is_set():
            start = time.time()
            polled = consumer.consume(500, timeout=POLL_S)
            messages = [one for one in polled if not one.error()]
            self.polled(start, [(one.partition(), one.offset(), one.value()) for one in messages])
            if messages:
                self._commit(consumer, {one.partition(): one.offset() + 1 for one in messages})
            if any(one.error() and NEVER_ASKED_AGAIN in one.error().str() for one in polled):
                self.note(NEVER_ASKED_AGAIN)
                return

    def _commit(self, consumer: Any, offsets: dict[int, int]) -> None:
        start, before = time.time(), self.identity()
        rows = [confluent_kafka.TopicPartition(self.topic, *one) for one in offsets.items()]
        try:
            results = consumer.commit(offsets=rows, asynchronous=False)
        except confluent_kafka.KafkaException as error:
            self.note(error)
            self.committed(start, offsets, "unknown")
            return
        for one in results:
            outcome = "unknown" if one.error else "done"
            self.committed(start, {one.partition: offsets[one.partition]}, outcome, before=before)


class PythonAssignments(PythonListener):
    """Lost partitions are revoked ones for kafka-python, too, unless a listener has a method for them."""

    def __init__(self, member: RecordedMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[PythonPartition]) -> None:
        self._member.revoked(one.partition for one in revoked)

    def on_partitions_assigned(self, assigned: Iterable[PythonPartition]) -> None:
        self._member.assigned(one.partition for one in assigned)


class AioAssignments(AioListener):
    """The same for aiokafka."""

    def __init__(self, member: RecordedMember) -> None:
        self._member = member

    def on_partitions_revoked(self, revoked: Iterable[AioPartition]) -> None:
        self._member.revoked(one.partition for one in revoked)

    def on_partitions_assigned(self, assigned: Iterable[AioPartition]) -> None:
        self._member.assigned(one.partition for one in assigned)


class KafkaPythonMember(RecordedMember):
    def membership(self) -> tuple[str, int]:
        found = self._consumer.group_metadata()
        return found.member_id, found.generation_id

    def work(self) -> None:
        self._consumer = consumer = KafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=6_000, heartbeat_interval_ms=500, fetch_max_wait_ms=100,
            request_timeout_ms=8_000, reconnect_backoff_max_ms=500,
        )  # fmt: skip
        consumer.subscribe([self.topic], listener=PythonAssignments(self))
        while not self.ended.is_set():
            start = time.time()
            try:
                polled = consumer.poll(timeout_ms=int(POLL_S * 1000))
            except KafkaError as error:  # no broker can be reached
                self.note(repr(error))
                self.rest()
                continue
            rows = [(one.partition, one.offset, one.value) for records in polled.values() for one in records]
            self.polled(start, rows)
            if rows:
                self._commit(consumer, {partition: offset + 1 for partition, offset, _ in rows})
        consumer.close(autocommit=False)

    def _commit(self, consumer: Any, offsets: dict[int, int]) -> None:
        start, before = time.time(), self.identity()
        try:
            consumer.commit({PythonPartition(self.topic, one): PythonOffset(at, "", -1) for one, at in offsets.items()})
        except Exception as error:
            self.note(repr(error))
            self.committed(start, offsets, "unknown")
        else:
            self.committed(start, offsets, "done", before=before)


class AioKafkaMember(RecordedMember):
    def membership(self) -> tuple[str, int]:
        """aiokafka has no call for it."""
        coordinator = self._consumer._coordinator
        return coordinator.member_id, coordinator.generation

    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        self._consumer = consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap, group_id=self.group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=6_000, heartbeat_interval_ms=500, fetch_max_wait_ms=100,
            request_timeout_ms=8_000, partition_assignment_strategy=[RangePartitionAssignor],
        )  # fmt: skip
        consumer.subscribe([self.topic], listener=AioAssignments(self))
        await consumer.start()
        try:
            while not self.ended.is_set():
                start = time.time()
                polled = await consumer.getmany(timeout_ms=int(POLL_S * 1000))
                rows = [(one.partition, one.offset, one.value) for records in polled.values() for one in records]
                self.polled(start, rows)
                if rows:
                    await self._commit(consumer, {partition: offset + 1 for partition, offset, _ in rows})
        finally:
            await asyncio.wait_for(consumer.stop(), 30)

    async def _commit(self, consumer: Any, offsets: dict[int, int]) -> None:
        start, before = time.time(), self.identity()
        try:
            await asyncio.wait_for(
                consumer.commit({AioPartition(self.topic, one): at for one, at in offsets.items()}), 15
            )
        except Exception as error:
            self.note(repr(error))
            self.committed(start, offsets, "unknown")
        else:
            self.committed(start, offsets, "done", before=before)


class OdradekMember(RecordedMember):
    lookups_wait = True

    def membership(self) -> tuple[str, int]:
        found = self._consumer.group_metadata()
        return found.member_id, found.generation

    def work(self) -> None:
        with Consumer(
            self.bootstrap, group_id=self.group, group_protocol=self.protocol, enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer:  # fmt: skip
            self._consumer = consumer
            consumer.subscribe(
                [self.topic],
                on_assigned=lambda given: self.assigned(one.partition for one in given),
                on_revoked=lambda taken: self.revoked(one.partition for one in taken),  # also of lost ones
            )
            while not self.ended.is_set():
                start = time.time()
                try:
                    rows = rows_of(consumer.poll(POLL_S))
                except OdradekError as error:
                    self.note(error)
                    continue
                self.polled(start, rows)
                if rows:
                    self._commit(consumer, {partition: offset + 1 for partition, offset, _ in rows})

    def _commit(self, consumer: Consumer, offsets: dict[int, int]) -> None:
        start, before = time.time(), self.identity()
        try:
            consumer.commit({TopicPartition(self.topic, one): at for one, at in offsets.items()})
        except OdradekError as error:
            self.note(error)
            self.committed(start, offsets, "unknown")
        else:
            self.committed(start, offsets, "done", before=before)


class JoiningMembers(RecordedClient):
    """Members of ours that join a group and leave it, one after another, after a time by chance."""

    def __init__(self, *arguments: Any, group: str, protocol: str) -> None:
        super().__init__(*arguments)
        self.group, self.protocol = group, protocol

    def work(self) -> None:
        dice = random.Random(self.number_of_client)
        while not self.ended.is_set():
            member = OdradekMember(
                self.history, self.bootstrap, self.topic, self.partitions, group=self.group, protocol=self.protocol
            )
            member.start()
            self.ended.wait(dice.uniform(0.5, 5))
            member.ended.set()
            member.join()
            if member.failure is not None:
                raise member.failure
            self.done += member.done
            self.ended.wait(dice.uniform(0, 2))


# --- lookups and commits of no member -------------------------------------------------------------------------------


class OdradekLookups(RecordedClient):
    """Asks for the latest offset of each partition, and for the commits of groups."""

    pause_s = 0.1

    def __init__(self, *arguments: Any, groups: Sequence[str]) -> None:
        super().__init__(*arguments)
        self._groups = groups

    def work(self) -> None:
        with Admin(self.bootstrap, request_timeout_ms=REQUEST_MS, default_api_timeout_ms=REQUEST_MS) as admin:
            partitions = [TopicPartition(self.topic, one) for one in range(self.partitions)]
            while not self.ended.is_set():
                for one in partitions:
                    self._list(admin, one)
                for group in self._groups:
                    self._fetch(admin, group, partitions)
                self.rest()

    def _list(self, admin: Admin, one: TopicPartition) -> None:
        start = time.time()
        try:
            found = admin.list_offsets({one: LATEST})[one]
        except OdradekError as error:
            self.note(error)
            return
        self.record("list_offsets", start, topic=one.topic, partition=one.partition, offset=found.offset)

    def _fetch(self, admin: Admin, group: str, partitions: Sequence[TopicPartition]) -> None:
        start = time.time()
        try:
            found = admin.list_group_offsets(group, partitions, require_stable=True)
        except OdradekError as error:
            self.note(error)
            return
        for one in partitions:
            offset = None if found.get(one) is None else found[one].offset
            fields = {"group": group, "topic": one.topic, "partition": one.partition, "offset": offset}
            self.record("offset_fetch", start, stable=True, **fields)


class SentCommits(logging.Handler):
    """Counts the requests of librdkafka that commit: it says each that it has sent in its log."""

    def __init__(self, name: str) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.count += "Sent OffsetCommitRequest" in record.getMessage()


class ConfluentCommits(RecordedClient):
    """Commits offsets of a group without members, and fetches them, in an order by chance.

    Two of them commit to the same partitions. Such a commit replaces a newer one if librdkafka sends it again, so the
    history has the number of requests."""

    pause_s = 0.03

    def __init__(self, *arguments: Any, group: str) -> None:
        super().__init__(*arguments)
        self.group = group
        self.sent = 0
        self._requests = SentCommits(self.name)

    def work(self) -> None:
        dice = random.Random(self.name)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": self.bootstrap, "debug": "protocol", "group.id": self.group,
             "enable.auto.commit": False},
            logger=self._requests.logger,
        )  # fmt: skip
        while not self.ended.is_set():
            one, start = confluent_kafka.TopicPartition(self.topic, 0, dice.randrange(1 << 40)), time.time()
            fields = {"group": self.group, "topic": self.topic, "partition": 0}
            self.sent += 1
            if dice.random() < 0.5:
                self._commit(consumer, one, start, fields)
            else:
                self._fetch(consumer, one, start, fields)
            self.rest()
        consumer.close()

    def _commit(self, consumer: Any, one: Any, start: float, fields: dict[str, Any]) -> None:
        before = self._requests.count
        try:
            (result,) = consumer.commit(offsets=[one], asynchronous=False)
            outcome = "unknown" if result.error else "done"
        except confluent_kafka.KafkaException as error:
            self.note(error)
            outcome = "unknown"
        consumer.poll(0)  # librdkafka gives its log to Python in a poll
        attempts = max(1, self._requests.count - before)
        self.record("commit", start, outcome=outcome, offset=one.offset, attempts=attempts, **fields)

    def _fetch(self, consumer: Any, one: Any, start: float, fields: dict[str, Any]) -> None:
        asked = confluent_kafka.TopicPartition(self.topic, 0)
        try:
            (found,) = consumer.committed([asked], timeout=REQUEST_MS / 1000)
        except confluent_kafka.KafkaException as error:
            self.note(error)
            return
        if not found.error:
            self.record("offset_fetch", start, offset=found.offset if found.offset >= 0 else None, **fields)
