"""The mixed workload of the crash test, and the ledger of sent and acknowledged requests.

Raw workers are threads with their own socket. They end when the broker is killed. After the broker's restart they
continue their unfinished work. confluent-kafka's clients survive all crashes and reconnect.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict, deque
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from odradek.batches.encode import encode_batch
from odradek.batches.header import CRC_OFFSET
from odradek.core.effects import SimpleRecord
from odradek.core.errors import ErrorCode
from odradek.wire.api_keys import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
)
from support.brokers import Wire, unique

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WINDOW = 4
"""Requests in flight of a raw worker. A broker recognises repeats of only the last five batches of a producer."""
NOT_YET = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)

Where = tuple[str, int]
Pair = tuple[bytes | None, bytes | None]


class Ledger:
    """What clients sent, and what the broker acknowledged. After every crash it must have all that it acknowledged."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.batches: dict[Where, dict[int, bytes]] = defaultdict(dict)
        """Acknowledged batches by base offset, without the bytes before the CRC, which the broker changes."""
        self.sent_batches: set[bytes] = set()
        self.records: dict[Where, dict[int, Pair]] = defaultdict(dict)
        """Acknowledged records by offset, for tests that check single records."""
        self.sent_values: set[bytes] = set()
        self.commits: dict[tuple[str, Where], list[int]] = defaultdict(list)
        """All sent commits, by group and partition."""
        self.acknowledged_commits: dict[tuple[str, Where], int] = {}
        """The last acknowledged commit, as an index into the list of sent commits. The committed offset must be that of
        this commit or of a later one."""
        self.topics: dict[str, set[UUID | None]] = {}
        """The ids that a topic may have. None among them: the topic may be absent. An empty set: the topic has a new,
        still unknown id."""
        self.first_values: dict[UUID, bytes] = {}
        self.acknowledgements: Counter[str] = Counter()
        self.failures: list[str] = []

    def acknowledged(self, worker: str, count: int = 1) -> None:
        with self.lock:
            self.acknowledgements[worker] += count

    def commit_sent(self, group: str, where: Where, offset: int) -> None:
        with self.lock:
            self.commits[group, where].append(offset)

    def commit_acknowledged(self, group: str, where: Where, offset: int) -> None:
        with self.lock:
            key = (group, where)
            found = self.commits[key].index(offset, self.acknowledged_commits.get(key, 0))
            self.acknowledged_commits[key] = found


class Worker:
    """A thread that works until it is stopped or its connection is lost. ``run_once`` is one unit of work."""

    def __init__(self, name: str, ledger: Ledger) -> None:
        self.name = name
        self.ledger = ledger
        self.stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, bootstrap: str) -> None:
        self.stopped.clear()
        self._thread = threading.Thread(target=self._work, args=(bootstrap,), name=self.name, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self.stopped.set()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive(), f"{self.name} hangs"

    def _work(self, bootstrap: str) -> None:
        try:
            with Wire(bootstrap, client_id=self.name) as wire:
                self.begin(wire)
                while not self.stopped.is_set():
                    self.run_once(wire)
                    time.sleep(0.002)
        except OSError:
            pass  # the broker was killed, as this test intends
        except Exception as error:
            self.ledger.failures.append(f"{self.name}: {error!r}")

    def begin(self, wire: Wire) -> None: ...

    def run_once(self, wire: Wire) -> None:
        raise AssertionError("a worker works")


class RawProducer(Worker):
    """Batches of one to five records with changing codecs. With ``idempotent``, unanswered batches are sent again in
    order; otherwise they are dropped, and may be in the log or not."""

    def __init__(
        self, name: str, ledger: Ledger, dice: random.Random, targets: list[Where], *, idempotent: bool, keys: int = 0
    ) -> None:
        super().__init__(name, ledger)
        self._dice = dice
        self._targets = targets
        self._keys = keys
        self._idempotent = idempotent
        self._producer_id = -1
        self._sequences: Counter[Where] = Counter()
        self._numbers = 0
        self._owed: deque[tuple[Where, bytes, list[Pair]]] = deque()

    def begin(self, wire: Wire) -> None:
        if not self._idempotent:
            self._owed.clear()
        elif self._producer_id < 0:
            reply = wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 1000,
                                                    "producer_id": -1, "producer_epoch": -1})  # fmt: skip
            assert reply.error_code == 0
            self._producer_id = int(reply.producer_id)

    def run_once(self, wire: Wire) -> None:
        while len(self._owed) < WINDOW:
            self._owed.append(self._batch())
        version = self._dice.choice((7, 8, 9, 12))
        ids = []
        for (topic, partition), data, _ in self._owed:
            part = {"index": partition, "records": data}
            message = {"transactional_id": None, "acks": self._dice.choice((-1, 1)), "timeout": 5000,
                       "topic_data": [{"name": topic, "partition_data": [part]}]}  # fmt: skip
            ids.append(wire.send(PRODUCE, version, message))
        for request_id in ids:
            reply = wire.receive(PRODUCE, version, request_id)
            answer = reply.responses[0].partition_responses[0]
            assert answer.error_code == 0, f"produce was refused: {answer}"
            where, data, pairs = self._owed.popleft()
            with self.ledger.lock:
                self.ledger.batches[where][answer.base_offset] = data[CRC_OFFSET:]
                if self._keys:
                    self.ledger.records[where].update(enumerate(pairs, answer.base_offset))
            self.ledger.acknowledged(self.name)

    def _batch(self) -> tuple[Where, bytes, list[Pair]]:
        dice, where = self._dice, self._dice.choice(self._targets)
        pairs: list[Pair] = []
        for _ in range(dice.randint(1, 5)):
            self._numbers += 1
            value = b"%s-%d-" % (self.name.encode(), self._numbers) + b"v" * dice.randrange(300)
            key = b"key-%d" % dice.randrange(self._keys) if self._keys else None
            deletes = bool(self._keys) and dice.random() < 0.1
            pairs.append((key, None if deletes else value))
        first = self._sequences[where] if self._idempotent else -1
        self._sequences[where] += len(pairs)
        now_ms = int(time.time() * 1000)
        data = encode_batch(
            [SimpleRecord(key, value, now_ms + n) for n, (key, value) in enumerate(pairs)],
            now_ms=now_ms,
            compression=dice.choice(CODECS),
            producer_id=self._producer_id,
            producer_epoch=0 if self._idempotent else -1,
            base_sequence=first,
        )
        with self.ledger.lock:
            self.ledger.sent_batches.add(data[CRC_OFFSET:])
            self.ledger.sent_values.update(value for _, value in pairs if value is not None)
        return where, data, pairs


class Committer(Worker):
    """Commits increasing offsets of several groups without members, with several requests in flight."""

    def __init__(self, name: str, ledger: Ledger, dice: random.Random, groups: list[str], targets: list[Where]) -> None:
        super().__init__(name, ledger)
        self._dice = dice
        self._groups = groups
        self._targets = targets
        self._offset = 0

    def run_once(self, wire: Wire) -> None:
        version = self._dice.choice((2, 7, 8, 9))
        under_way = []
        for _ in range(WINDOW):
            group = self._dice.choice(self._groups)
            chosen = self._dice.sample(self._targets, self._dice.randint(1, 3))
            self._offset += 1
            for where in chosen:
                self.ledger.commit_sent(group, where, self._offset)
            request_id = wire.send(OFFSET_COMMIT, version, _commit(group, chosen, self._offset))
            under_way.append((request_id, group, self._offset))
        for request_id, group, offset in under_way:
            reply = wire.receive(OFFSET_COMMIT, version, request_id)
            for topic in reply.topics:
                for row in topic.partitions:
                    if row.error_code == 0:
                        self.ledger.commit_acknowledged(group, (topic.name, row.partition_index), offset)
                        self.ledger.acknowledged(self.name)
                    else:
                        assert row.error_code in NOT_YET, f"commit was refused: {row}"


def _commit(group: str, targets: list[Where], offset: int) -> dict[str, Any]:
    by_topic: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for topic, partition in targets:
        by_topic[topic].append(
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": f"note {offset}",
            }
        )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [{"name": name, "partitions": rows} for name, rows in by_topic.items()],
    }


class TopicChanges(Worker):
    """Creates and deletes a few topics again and again. Each new topic gets one record with its id."""

    def __init__(self, name: str, ledger: Ledger, dice: random.Random, count: int = 5) -> None:
        super().__init__(name, ledger)
        self._dice = dice
        for _ in range(count):
            ledger.topics[unique(name)] = {None}

    def run_once(self, wire: Wire) -> None:
        topics = self.ledger.topics
        name = self._dice.choice(sorted(topics))
        (now,) = topics[name]
        if now is not None:
            topics[name] = {now, None}
            row = wire.call(DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 5000}).responses[0]
            assert row.error_code == 0, f"deletion was refused: {row}"
            topics[name] = {None}
        else:
            topics[name] = set()
            row = {"name": name, "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
            reply = wire.call(CREATE_TOPICS, 7, {"topics": [row], "timeout": 5000, "validate_only": False})
            made = reply.topics[0]
            assert made.error_code == 0, f"creation was refused: {made}"
            topics[name] = {made.topic_id}
            self._name_it(wire, name, made.topic_id)
        self.ledger.acknowledged(self.name)
        time.sleep(0.01)

    def _name_it(self, wire: Wire, name: str, topic_id: UUID) -> None:
        data = encode_batch([SimpleRecord(None, topic_id.bytes)], now_ms=int(time.time() * 1000))
        part = {"index": 1, "records": data}
        message = {"transactional_id": None, "acks": -1, "timeout": 5000,
                   "topic_data": [{"name": name, "partition_data": [part]}]}  # fmt: skip
        answer = wire.call(PRODUCE, 9, message).responses[0].partition_responses[0]
        assert (answer.error_code, answer.base_offset) == (0, 0), f"a new topic is empty: {answer}"
        self.ledger.first_values[topic_id] = topic_id.bytes


class Recreation(Worker):
    """Creates a topic of one partition, writes and commits. Sometimes deletes records at the log start, or deletes the
    topic and creates it again."""

    def __init__(self, name: str, ledger: Ledger, dice: random.Random) -> None:
        super().__init__(name, ledger)
        self._dice = dice
        self._number = 0
        self.topic, self.group = unique(name), unique(f"{name}-group")
        self.begin_life(exists=False)

    def begin_life(self, *, exists: bool) -> None:
        """Forgets the values and commits of the previous topic, because they do not apply to the next topic."""
        self.may_exist, self.may_be_gone = exists, not exists
        self.values: dict[int, bytes] = {}
        self.starts = (0, 0)
        """The log start that was acknowledged last, and the one that was requested last."""
        self.commits: list[int | None] = [None]
        self.acknowledged_commit = 0

    def run_once(self, wire: Wire) -> None:
        if self.may_be_gone:
            self._create(wire)
        for _ in range(self._dice.randint(1, 5)):
            self._produce(wire)
        self._commit(wire)
        choice = self._dice.random()
        if choice < 0.4:
            self._cut(wire)
        elif choice < 0.6:
            self._delete(wire)
        self.ledger.acknowledged(self.name)

    def _create(self, wire: Wire) -> None:
        self.may_exist = True
        row = {"name": self.topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        made = wire.call(CREATE_TOPICS, 7, {"topics": [row], "timeout": 5000, "validate_only": False}).topics[0]
        assert made.error_code == 0, f"creation was refused: {made}"
        self.begin_life(exists=True)

    def _produce(self, wire: Wire) -> None:
        self._number += 1
        value = b"%s-%d" % (self.name.encode(), self._number)
        part = {"index": 0, "records": encode_batch([SimpleRecord(None, value)], now_ms=int(time.time() * 1000))}
        message = {"transactional_id": None, "acks": -1, "timeout": 5000,
                   "topic_data": [{"name": self.topic, "partition_data": [part]}]}  # fmt: skip
        answer = wire.call(PRODUCE, 9, message).responses[0].partition_responses[0]
        assert answer.error_code == 0, f"produce was refused: {answer}"
        self.values[answer.base_offset] = value

    def _commit(self, wire: Wire) -> None:
        self._number += 1
        self.commits.append(self._number)
        reply = wire.call(OFFSET_COMMIT, 8, _commit(self.group, [(self.topic, 0)], self._number))
        code = reply.topics[0].partitions[0].error_code
        assert code in (0, *NOT_YET), f"commit was refused: {code}"
        if code == 0:
            self.acknowledged_commit = len(self.commits) - 1

    def _cut(self, wire: Wire) -> None:
        start = self._dice.randint(self.starts[1], max(self.values))
        self.starts = (self.starts[0], start)
        part = {"partition_index": 0, "offset": start}
        message = {"topics": [{"name": self.topic, "partitions": [part]}], "timeout": 5000}
        row = wire.call(DELETE_RECORDS, 2, message).topics[0].partitions[0]
        assert (row.error_code, row.low_watermark) == (0, start), f"DeleteRecords was refused: {row}"
        self.starts = (start, start)

    def _delete(self, wire: Wire) -> None:
        self.may_be_gone = True
        row = wire.call(DELETE_TOPICS, 5, {"topic_names": [self.topic], "timeout": 5000}).responses[0]
        assert row.error_code == 0, f"deletion was refused: {row}"
        self.begin_life(exists=False)


class LibrdkafkaProducer:
    """confluent-kafka's producer. It runs on when the broker crashes, and repeats records that got no reply."""

    def __init__(
        self, name: str, ledger: Ledger, bootstrap: str, targets: list[Where], codec: str, **more: Any
    ) -> None:
        self.name = name
        self._ledger = ledger
        self._targets = targets
        self._numbers = 0
        self._stopped = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": name,
                "acks": "all",
                "linger.ms": 2,
                "compression.type": codec,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 120_000,
                "log_level": 2,
                "error_cb": self._on_error,
            }
            | more
        )
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _on_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._ledger.failures.append(f"{self.name}: {error}")

    def _work(self) -> None:
        while not self._stopped.is_set():
            if len(self._producer) < 50:
                self._numbers += 1
                value = b"%s-%d" % (self.name.encode(), self._numbers)
                topic, partition = self._targets[self._numbers % len(self._targets)]
                self._producer.produce(topic, value, None, partition, on_delivery=self._on_delivery)
            self._producer.poll(0.005)

    def _on_delivery(self, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._ledger.failures.append(f"{self.name}: {error}")
            return
        with self._ledger.lock:
            where = (message.topic(), message.partition())
            self._ledger.records[where][message.offset()] = (message.key(), message.value())
        self._ledger.acknowledged(self.name)

    def stop(self) -> None:
        """Sends the remaining records; the broker must be running."""
        self._stopped.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0, f"{self.name} could not deliver"


class GroupReader:
    """A member of a real group that reads and commits each poll, across all crashes."""

    def __init__(self, name: str, ledger: Ledger, bootstrap: str, group: str, topic: str) -> None:
        self.name = name
        self.group = group
        self._ledger = ledger
        self._stopped = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._stopped.is_set():
            ends: dict[Where, int] = {}
            for message in self._consumer.consume(100, timeout=0.1):
                if message.error() is None:
                    ends[message.topic(), message.partition()] = message.offset() + 1
            if ends:
                self._commit(ends)

    def _commit(self, ends: dict[Where, int]) -> None:
        for where, offset in ends.items():
            self._ledger.commit_sent(self.group, where, offset)
        try:
            rows = self._consumer.commit(
                offsets=[TopicPartition(*where, offset) for where, offset in ends.items()], asynchronous=False
            )
        except KafkaException:
            return  # not acknowledged: the broker was killed, or the group rebalances
        for row in rows or ():
            if row.error is None:
                self._ledger.commit_acknowledged(self.group, (row.topic, row.partition), row.offset)
                self._ledger.acknowledged(self.name)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)
        self._consumer.close()


class Workload:
    """All workers together. Raw workers write to the topic ``log``, and keyed records to the compacted topic ``table``.
    confluent-kafka writes to ``lines``."""

    def __init__(self, bootstrap: str, dice: random.Random) -> None:
        ledger = self.ledger = Ledger()
        self.bootstrap = bootstrap
        self.log, self.table, self.lines = unique("log"), unique("table"), unique("lines")
        self.log_targets = [(self.log, index) for index in range(3)]
        self.table_targets = [(self.table, index) for index in range(2)]
        self.line_targets = [(self.lines, index) for index in range(3)]
        self.groups = [unique("crash-group") for _ in range(4)]
        commit_targets = self.log_targets + self.line_targets

        def own_dice() -> random.Random:
            return random.Random(dice.getrandbits(64))

        self.workers: list[Worker] = [
            RawProducer("idempotent-1", ledger, own_dice(), self.log_targets, idempotent=True),
            RawProducer("idempotent-2", ledger, own_dice(), self.log_targets, idempotent=True),
            RawProducer("plain", ledger, own_dice(), self.log_targets, idempotent=False),
            RawProducer("keyed", ledger, own_dice(), self.table_targets, idempotent=True, keys=20),
            Committer("commits-1", ledger, own_dice(), self.groups[:2], commit_targets),
            Committer("commits-2", ledger, own_dice(), self.groups[2:], commit_targets),
            TopicChanges("topics", ledger, own_dice()),
        ]
        self.recreation = Recreation("again", ledger, own_dice())
        self.workers.append(self.recreation)
        self._lasting: list[LibrdkafkaProducer | GroupReader] = []

    def begin_lasting(self) -> None:
        """Starts the clients that run on when the broker crashes. Their topic must already exist."""
        exact, at_least_once = self.line_targets[:2], self.line_targets[2:]
        for codec in ("lz4", "zstd"):
            more = {"enable.idempotence": True}
            self._lasting.append(
                LibrdkafkaProducer(f"exact-{codec}", self.ledger, self.bootstrap, exact, codec, **more)
            )
        self._lasting.append(LibrdkafkaProducer("lines-gzip", self.ledger, self.bootstrap, at_least_once, "gzip"))
        self.groups.append(unique("crash-members"))
        self._lasting.append(GroupReader("member", self.ledger, self.bootstrap, self.groups[-1], self.lines))

    def end_lasting(self) -> None:
        for client in self._lasting:
            client.stop()

    def start(self) -> None:
        for worker in self.workers:
            worker.start(self.bootstrap)

    def join(self) -> None:
        for worker in self.workers:
            worker.join()

    def busy(self, acknowledgements: int, within_s: float = 30) -> None:
        """Waits until every raw worker has got a reply, and this number of replies has arrived in total."""
        begun, names = self.ledger.acknowledgements.copy(), [worker.name for worker in self.workers]
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and not self.ledger.failures:
            now = self.ledger.acknowledgements.copy()
            if all(now[name] > begun[name] for name in names) and now.total() - begun.total() >= acknowledgements:
                return
            time.sleep(0.001)
        assert not self.ledger.failures, self.ledger.failures
        raise AssertionError(f"no progress within {within_s} s: {now - begun}")
