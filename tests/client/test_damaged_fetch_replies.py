"""Damaged fetch replies to a consumer: each gives a typed error, or records in order.

Most tests use no socket: they parse a reply and pass it to the fetcher, and polls take the records. If the independent
parser kio can read a reply without tagged fields, our parser must read the same. A failure shows the reply in hex.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from support.brokers import eventually
from support.fuzzing import Mutator, resident_mib, watched
from support.scripted import FETCH, ScriptedBroker, ScriptedCluster, scripted

from odradek import Consumer, TopicPartition
from odradek.batches.arrow import RecordSet
from odradek.batches.columns import COLUMNS
from odradek.batches.columns.arrow_rows import PlainRecordSet
from odradek.batches.compression import CODES
from odradek.batches.encode import encode_batch
from odradek.batches.kernels import kernel_loader
from odradek.batches.row_sets import RowBatch
from odradek.client.consumer import fetcher
from odradek.client.consumer.engine import ConsumerEngine
from odradek.client.consumer.in_flight_fetches import InFlightFetch
from odradek.client.group.config import ConsumerConfig
from odradek.core.errors import OdradekError
from odradek.wire import fetch_messages, frames, schemas
from odradek.wire.fetch_messages import FetchPartition
from odradek.wire.schemas import Kind

VERSIONS = range(4, schemas.known_versions(FETCH)[1] + 1)
TOPIC_ID = UUID(int=7)
START = 100
"""The offset of each fetch."""
PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
MAX_GROWTH_MIB = 48
MAX_OFFSET = (1 << 63) - 1


class Item(NamedTuple):
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = 1_700_000_000_000
    headers: tuple[tuple[str, bytes | None], ...] = (("h", b"v"), ("n", None))


def batches() -> list[bytes]:
    """Record sets that start at the fetch offset or before it. Some are empty or end with an incomplete batch."""
    out = []
    for number, codec in enumerate(CODES):
        records = [Item(b"k%d" % n, b"value %d" % n * n) for n in range(9)]
        first = encode_batch(records, now_ms=7, base_offset=START - number, leader_epoch=3, compression=codec)
        more = encode_batch(records[:2], now_ms=9, base_offset=START + 20, leader_epoch=4, producer_id=9,
                            producer_epoch=1, base_sequence=0, transactional=True)  # fmt: skip
        end = encode_batch(records[:1], now_ms=9, base_offset=START + 22, leader_epoch=4, producer_id=9,
                           producer_epoch=1, base_sequence=-1, transactional=True, control=True)  # fmt: skip
        out += [first, first + more + end, first + more[:-5]]
    return [b"", *out]


def reply(version: int, sets: tuple[bytes, bytes], dice: Any) -> bytes:
    """A valid reply, from the correlation id on."""
    rows = []
    for index, records in enumerate(sets):
        aborted = [{"producer_id": 9, "first_offset": START + 20}] if dice.random() < 0.3 else None
        rows.append({
            "partition_index": index, "error_code": 0, "high_watermark": 500, "last_stable_offset": 500,
            "log_start_offset": 0, "aborted_transactions": aborted, "preferred_read_replica": -1, "records": records,
        })  # fmt: skip
    body = {"throttle_time": 0, "error_code": 0, "session_id": 5,
            "responses": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": rows}]}  # fmt: skip
    return frames.reply_head(FETCH, version, 1) + schemas.encode(FETCH, version, Kind.RESPONSE, body)


class Inputs:
    """An endless source of replies: most of them are damaged, about one of eight is valid."""

    def __init__(self, seed: int) -> None:
        self._mutator = Mutator(seed)
        self._sets = batches()
        dice = self._mutator.dice
        self._sound = [
            (version, reply(version, (one, dice.choice(self._sets)), dice))
            for version in VERSIONS
            for one in self._sets
        ]

    def __next__(self) -> tuple[int, bytes]:
        dice = self._mutator.dice
        version, data = dice.choice(self._sound)
        way = dice.random()
        if way < 0.12:
            return version, data
        if way < 0.5:  # damage anywhere
            return version, self._mutator.damaged(data)
        if way < 0.65:  # damage in the first bytes, where the lengths are
            return version, self._mutator.damaged(data[:60]) + data[60:]
        if way < 0.75:
            return version, data[: dice.randrange(len(data))]
        damaged = (self._mutator.damaged(dice.choice(self._sets)), dice.choice(self._sets))
        return version, reply(version, damaged, dice)


class Reader:
    """A consumer's engine without a connection: ``give`` passes it a reply, and polls take the records."""

    def __init__(self, *, check_crcs: bool) -> None:
        config = ConsumerConfig("127.0.0.1:1", auto_offset_reset="none", columns=COLUMNS, check_crcs=check_crcs)
        self.engine = ConsumerEngine(config, self._never)
        self.engine.fetcher.is_closed = True  # it sends no fetches
        self.engine.subscription.assign_from_user(PARTITIONS)

    @staticmethod
    async def _never(*_: Any) -> None:
        raise AssertionError("no callbacks here")

    def give(self, data: fetch_messages.FetchReply) -> tuple[int, bool]:
        """Takes all records of a reply. Returns how many there were, and whether there was an error."""
        engine, fetcher = self.engine, self.engine.fetcher
        states = engine.subscription.partitions
        for tp in PARTITIONS:
            fetcher.drop(tp)
            states[tp].set_position(START)
        wanted = {tp: FetchPartition(TOPIC_ID, START, 0, 1 << 20) for tp in PARTITIONS}
        fetcher.on_reply(InFlightFetch(1, wanted, {tp: states[tp].version for tp in PARTITIONS}, 1, 1), data)
        failed = isinstance(fetcher.failure, OdradekError)
        assert failed or fetcher.failure is None
        fetcher.failure = None
        rows, polls = 0, 0
        while fetcher.buffer.front() is not None:
            before = {tp: states[tp].position for tp in PARTITIONS}
            polls += 1
            assert polls < 200, "polls that never end"
            try:
                polled = engine.take()
            except OdradekError:
                failed = True
                continue  # a consumer would fetch the records again
            for found in polled.values():
                for batch in found:
                    if isinstance(batch, RowBatch):  # no column holds the times of these records
                        offsets = [row.offset for row in batch.rows]
                    else:
                        batch.validate(full=True)
                        offsets = batch.column("offset").to_pylist()
                    assert min(offsets) >= START
                    assert max(offsets) < MAX_OFFSET
                    rows += batch.num_rows
            for tp in PARTITIONS:
                assert before[tp] <= states[tp].position <= MAX_OFFSET
        return rows, failed


def parsed(version: int, data: bytes) -> fetch_messages.FetchReply | None:
    """The parsed reply; None if our parser refuses it. Without tagged fields, kio's result must be equal."""
    try:
        ours = fetch_messages.parse_reply(version, memoryview(data), 2)
    except ValueError:
        ours = None
    try:
        theirs = frames.decode_reply(FETCH, version, data)[1]
    except (ValueError, KeyError):
        return ours
    if _has_tags(theirs):
        return ours  # kio ignores the length of a tagged field
    assert ours is not None, "kio reads a reply that our parser refuses"
    named = [(topic, row) for topic in theirs.responses for row in topic.partitions]
    assert len(named) == len(ours.partitions)
    for (topic, row), mine in zip(named, ours.partitions, strict=True):
        assert mine.topic in (getattr(topic, "topic", None), getattr(topic, "topic_id", None) or UUID(int=0))
        assert (mine.partition, mine.error_code) == (row.partition_index, row.error_code)
        assert (mine.high_watermark, bytes(mine.records)) == (row.high_watermark, bytes(row.records or b""))
        assert mine.aborted == _aborted(row)
    return ours


def _has_tags(theirs: Any) -> bool:
    rows = [row for topic in theirs.responses for row in topic.partitions]
    tagged = [getattr(row, name, None) for row in rows for name in ("diverging_epoch", "current_leader", "snapshot_id")]
    return bool(getattr(theirs, "node_endpoints", ())) or any(one not in (None, type(one)()) for one in tagged)


def _aborted(row: Any) -> tuple[tuple[int, int], ...] | None:
    if row.aborted_transactions is None:
        return None
    return tuple((one.producer_id, one.first_offset) for one in row.aborted_transactions)


async def fuzz(count: int, seed: int, record_set: Any = RecordSet) -> None:
    inputs = Inputs(seed)
    readers = [Reader(check_crcs=True), Reader(check_crcs=False)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetcher, "record_set", lambda: record_set)
        patch.setattr(kernel_loader, "kernel_record_set", lambda: None)
        await _fuzz(inputs, readers, count)


async def _fuzz(inputs: Inputs, readers: list[Reader], count: int) -> None:
    refused = broken = whole = 0
    warm = resident_mib()
    with watched() as watch:
        for number in range(count):
            version, data = next(inputs)
            watch.begin(bytes([version]) + data)
            answer = parsed(version, data)
            if answer is None:
                refused += 1
            else:
                rows, failed = readers[number & 1].give(answer)
                broken += failed
                whole += rows > 0 and not failed
            watch.end()
            if number == min(2_000, count // 2):
                warm = resident_mib()
            if number % 500 == 0:
                await asyncio.sleep(0)  # for callbacks that polls have scheduled
    assert min(refused, broken, whole) > count // 50, f"{refused} refused, {broken} broken, {whole} whole"
    assert resident_mib() - warm < MAX_GROWTH_MIB
    for reader in readers:
        await reader.engine.fetcher.close()


@pytest.mark.parametrize(("record_set", "count"), [(RecordSet, 4_000), (PlainRecordSet, 1_000)])
def test_damaged_replies_give_errors_or_records_in_order(record_set: Any, count: int) -> None:
    asyncio.run(fuzz(count, 1, record_set))


class Damage:
    """Damages two of three replies of a broker, in ways that no parser can mistake for valid replies."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker, self._count = broker, 0

    def answer(self, message: Any, version: int) -> Any:
        sound = self._broker.answer_1(message, version)
        self._count += 1
        way = self._count % 9
        if way % 3 == 0:
            return sound
        if way == 1:  # records with a wrong CRC
            row = sound["responses"][0]["partitions"][0]
            row["records"] = row["records"][:-1] + b"\xff"
            return sound
        head = frames.reply_head(FETCH, version, self._broker.asking.id)
        body = schemas.encode(FETCH, version, Kind.RESPONSE, sound)
        if way == 2:
            return frames.frame(head, body[: len(body) // 2])
        if way == 4:  # an array longer than the reply
            at = body.index(TOPIC_ID.bytes) - 1 if version >= 13 else 10
            return frames.frame(head, body[:at] + b"\xff\xff\xff\xff\x07" + body[at + 1 :])
        if way == 5:
            return frames.frame(frames.reply_head(FETCH, version, 77), body)  # a reply to another request
        if way == 7:
            return b"\x7f\xff\xff\xff" + body  # a frame of two gigabytes
        return frames.frame(head, body)[:-7]  # the missing bytes are taken from the next reply, or never come


def test_a_consumer_reads_all_records_despite_damaged_replies(cluster: ScriptedCluster) -> None:
    (broker,) = cluster.brokers.values()
    broker.answers[FETCH] = Damage(broker).answer
    settings = {"retry_backoff_ms": 1, "fetch_max_wait_ms": 20, "request_timeout_ms": 500, "max_poll_records": 7}
    found: list[int] = []
    errors: set[str] = set()
    with Consumer(cluster.bootstrap, auto_offset_reset="earliest", **settings) as one:
        one.assign([PARTITIONS[0]])

        def all_read() -> bool:
            try:
                found.extend(record.offset for record in one.poll(0.2).records())
            except OdradekError as error:
                errors.add(type(error).__name__)
            return len(found) >= 60

        eventually(all_read, within_s=60)
    assert found == list(range(60))
    assert errors == {"CorruptRecord"}


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with scripted() as made:
        for first in range(0, 60, 10):
            items = [Item(b"k", b"%d" % n) for n in range(first, first + 10)]
            made.log.append((first + 9, encode_batch(items, now_ms=1, base_offset=first)))
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_a_million_damaged_replies_give_errors_or_records_in_order(seed: int) -> None:
    asyncio.run(fuzz(100_000, seed))
