"""``isolation_level``: the records of transactions that a consumer reads, on a scripted broker and on Apache Kafka."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from support.brokers import eventually, kafka_with_transactions, unique
from support.scripted import FETCH, ScriptedCluster, fetch_reply, scripted

from odradek import Admin, Consumer, TopicPartition
from odradek.batches.encode import encode_batch
from odradek.client import NewTopic, PartitionReader
from odradek.core.effects import SimpleRecord

T0 = TopicPartition("t", 0)
QUICK = {"auto_offset_reset": "earliest", "fetch_max_wait_ms": 20, "default_api_timeout_ms": 20_000,
         "retry_backoff_ms": 1}  # fmt: skip


# --- a scripted log with transactions -----------------------------------------------------------------------------


@dataclass
class ScriptedLog:
    """A log with interleaved transactions of several producers. Some are aborted; one may be open at the end."""

    log: list[tuple[int, int, bytes]] = field(default_factory=list)
    """First offset, last offset and bytes of each batch."""
    sent: list[int] = field(default_factory=list)
    """Offsets of all records, with and without a transaction."""
    hidden: set[int] = field(default_factory=set)
    """Offsets of records in aborted or open transactions."""
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """Producer id, first offset, offset of the marker."""
    end: int = 0
    stable: int = 0

    def append(self, count: int, producer: int, *, control: bool = False, committed: bool = False) -> int:
        first = self.end
        if control:
            records = [SimpleRecord(b"\0\0\0" + bytes([committed]), b"\0\0\0\0\0\0")]
        else:
            records = [SimpleRecord(b"k", b"%d" % (first + n)) for n in range(count)]
            self.sent += range(first, first + count)
        data = encode_batch(
            records, now_ms=1, base_offset=first, leader_epoch=0, producer_id=producer, producer_epoch=0,
            base_sequence=-1 if control else first, transactional=producer >= 0, control=control,
        )  # fmt: skip
        self.end += len(records)
        self.log.append((first, self.end - 1, data))
        return first


def random_log(chance: random.Random, steps: int, *, leave_open: bool) -> ScriptedLog:
    made = ScriptedLog()
    open_since: dict[int, tuple[int, list[int]]] = {}

    def finish(producer: int) -> None:
        first, own = open_since.pop(producer)
        committed = chance.random() < 0.5
        marker = made.append(1, producer, control=True, committed=committed)
        if not committed:
            made.aborted.append((producer, first, marker))
            made.hidden.update(own)

    for _ in range(steps):
        producer = chance.choice([-1, 1, 2, 3])
        if producer in open_since and chance.random() < 0.4:
            finish(producer)
            continue
        count = chance.randint(1, 5)
        first = made.append(count, producer)
        if producer >= 0:
            open_since.setdefault(producer, (first, []))[1].extend(range(first, first + count))
    for producer in list(open_since)[1 if leave_open else 0 :]:
        finish(producer)
    made.stable = min((first for first, _ in open_since.values()), default=made.end)
    made.hidden.update(offset for _, own in open_since.values() for offset in own)
    return made


def serve(cluster: ScriptedCluster, scripted_log: ScriptedLog, chance: random.Random) -> None:
    """Makes the broker reply to each fetch with up to four batches. With read_committed, the reply has only batches
    below the last stable offset, and the aborted transactions that overlap with them."""

    def answer(message: Any, version: int) -> Any:
        asked = message.topics[0].partitions[0].fetch_offset
        committed = message.isolation_level == 1
        limit = scripted_log.stable if committed else scripted_log.end
        found = [one for one in scripted_log.log if one[1] >= asked and one[1] < limit][: chance.randint(1, 4)]
        if not found:
            time.sleep(0.02)  # as a broker that waits for more records
        reply = fetch_reply(cluster, b"".join(data for _, _, data in found))
        row = reply["responses"][0]["partitions"][0]
        row |= {"high_watermark": scripted_log.end, "last_stable_offset": scripted_log.stable}
        if committed and found:
            bound = found[-1][1] + 1
            row["aborted_transactions"] = [
                {"producer_id": producer, "first_offset": first}
                for producer, first, marker in scripted_log.aborted
                if marker >= asked and first < bound
            ]
        return reply

    cluster.brokers[1].answers[FETCH] = answer
    cluster.log = [(last, data) for _, last, data in scripted_log.log]


def read_to(one: Consumer, end: int) -> list[int]:
    found: list[int] = []

    def is_read() -> bool:
        found.extend(record.offset for record in one.poll(0.2).records())
        return one.position(T0) >= end

    eventually(is_read, within_s=30)
    return found


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted(1) as made:
        yield made


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 20))])
def test_records_of_aborted_and_open_transactions_are_skipped(cluster: ScriptedCluster, seed: int) -> None:
    chance = random.Random(seed)
    scripted_log = random_log(chance, 80, leave_open=seed % 2 == 0)
    assert scripted_log.aborted
    serve(cluster, scripted_log, chance)
    stable = [n for n in scripted_log.sent if n not in scripted_log.hidden and n < scripted_log.stable]
    assert len(stable) < len(scripted_log.sent)
    with Consumer(cluster.bootstrap, max_poll_records=7, **QUICK) as everything:
        everything.assign([T0])
        assert read_to(everything, scripted_log.end) == scripted_log.sent
    with Consumer(cluster.bootstrap, isolation_level="read_committed", max_poll_records=7, **QUICK) as one:
        one.assign([T0])
        assert read_to(one, scripted_log.stable) == stable
        # A read may also start within a transaction.
        for start in chance.sample(range(scripted_log.stable), 4):
            one.seek(T0, start)
            assert read_to(one, scripted_log.stable) == [n for n in stable if n >= start]
    reader = PartitionReader(cluster.bootstrap, T0, isolation_level="read_committed")
    assert [n for batch in reader.read(0, scripted_log.stable) for n in batch.column("offset").to_pylist()] == stable
    assert [row.offset for row in reader.read_rows(0, scripted_log.stable)] == stable


# --- Apache Kafka -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transactional(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_with_transactions(Path(tmp_path_factory.mktemp("apache"))) as bootstrap:
        yield bootstrap


def confluent_reads(bootstrap: str, tp: TopicPartition, level: str) -> list[tuple[int, bytes]]:
    """The records that librdkafka's consumer reads until the end of the partition."""
    settings = {"bootstrap.servers": bootstrap, "group.id": unique("group"), "isolation.level": level,
                "enable.partition.eof": True, "auto.offset.reset": "earliest"}  # fmt: skip
    other = confluent_kafka.Consumer(settings)
    other.assign([confluent_kafka.TopicPartition(*tp, 0)])
    found: list[tuple[int, bytes]] = []
    try:
        while True:
            message = other.poll(30)
            assert message is not None
            error = message.error()
            if error is not None:
                assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF
                return found
            found.append((message.offset(), message.value()))
    finally:
        other.close()


Transactional = list[confluent_kafka.Producer]


def _take_turns(producers: Transactional, plain: confluent_kafka.Producer, topic: str) -> list[bytes]:
    """150 random steps of producers with and without transactions; returns the values that were not aborted."""
    chance = random.Random(5)
    kept: list[bytes] = []
    pending: dict[int, list[bytes]] = {}
    for step in range(150):
        number = chance.randrange(4)
        value = b"%d" % step
        if number == 3:
            plain.produce(topic, value, partition=0)
            plain.flush(30)
            kept.append(value)
            continue
        if number in pending and chance.random() < 0.4:
            if chance.random() < 0.5:
                producers[number].commit_transaction(30)
                kept += pending.pop(number)
            else:
                producers[number].abort_transaction(30)
                del pending[number]
            continue
        if number not in pending:
            producers[number].begin_transaction()
        producers[number].produce(topic, value, partition=0)
        producers[number].flush(30)
        pending.setdefault(number, []).append(value)
    for number in list(pending):
        producers[number].abort_transaction(30)
    return kept


@pytest.mark.slow
def test_read_committed_on_apache_kafka_gives_the_records_of_librdkafka(
    transactional: str, topic: str, group: str
) -> None:
    """Three transactional producers and a plain one take turns; at the end one transaction is open."""
    tp = TopicPartition(topic, 0)
    with Admin(transactional) as admin:
        admin.create_topics([NewTopic(topic, 1, 1)])
    producers = []
    for number in range(3):
        settings = {"bootstrap.servers": transactional, "transactional.id": f"{topic}-{number}"}
        producers.append(confluent_kafka.Producer(settings))
        producers[-1].init_transactions(30)
    plain = confluent_kafka.Producer({"bootstrap.servers": transactional})
    kept = _take_turns(producers, plain, topic)

    def ours(level: str, **settings: Any) -> tuple[list[tuple[int, bytes]], int]:
        with Consumer(transactional, isolation_level=level, **(QUICK | settings)) as one:
            one.assign([tp])
            end = one.end_offsets([tp])[tp]
            found: list[tuple[int, bytes]] = []

            def is_read() -> bool:
                found.extend((r.offset, r.value or b"") for r in one.poll(0.5).records())
                return one.position(tp) >= end

            eventually(is_read, within_s=60)
            return found, end

    producers[0].begin_transaction()
    producers[0].produce(topic, b"open", partition=0)
    producers[0].flush(30)
    plain.produce(topic, b"behind it", partition=0)
    plain.flush(30)
    everything, log_end = ours("read_uncommitted")
    assert everything == confluent_reads(transactional, tp, "read_uncommitted")
    for size in (1, 300, 1_048_576):
        found, stable = ours("read_committed", max_partition_fetch_bytes=size, max_poll_records=9)
        assert found == confluent_reads(transactional, tp, "read_committed")
        assert sorted(value for _, value in found) == sorted(kept)
        assert stable < log_end
    with Consumer(transactional, group_id=group, isolation_level="read_committed", **QUICK) as member:
        member.subscribe([topic])
        eventually(lambda: (member.poll(0.5), tp in member.assignment() and member.position(tp) == stable)[1])
        assert member.lag() == {tp: 0}
        producers[0].commit_transaction(30)
        rest: list[bytes] = []
        eventually(lambda: (rest.extend(r.value or b"" for r in member.poll(0.5).records()), len(rest) == 2)[1])
        assert rest == [b"open", b"behind it"]
        eventually(lambda: (member.poll(0.2), member.position(tp) == member.end_offsets([tp])[tp])[1])
        member.commit()
        assert member.committed([tp])[tp].offset == member.position(tp)
