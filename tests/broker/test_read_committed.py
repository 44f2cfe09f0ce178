"""Fetch and ListOffsets with read_committed, for a partition with transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.logs import batch, sequenced
from support.peers import Peer, serving

from odradek.broker.handlers import k01_fetch
from odradek.broker.partitions.partition import Partition
from odradek.broker.server import BrokerServer
from odradek.core.errors import ErrorCode
from odradek.core.ids import EndTransactionMarker
from odradek.storage.appends import AppendInfo
from odradek.wire import frames
from odradek.wire.api_keys import FETCH, LIST_OFFSETS

OK = ErrorCode.none
PATIENCE_MS = 60_000
SIZE = len(batch(2))
MARKER = 78
MOST = 1 << 20
NEVER = 1 << 30
COMMITTED, UNCOMMITTED = 1, 0
LATEST, MAX_TIMESTAMP = -1, -3


class Setup:
    """A broker and partition 0 of its topic ``t``. The tests write with the producer ids 7 and 8."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        found = broker.partition("t", 0)
        assert found is not None
        self.partition: Partition = found
        self.t0 = broker.now_ms()
        """The time of the records. Markers have the broker's time, which is hardly later: a much later marker would
        begin a segment."""

    def send(self, producer_id: int, *, epoch: int = 0, sequence: int = 0, later_ms: int = 0) -> None:
        """Appends two records of a transaction."""
        at_ms = self.t0 + later_ms
        self.append(sequenced(sequence, 2, producer_id, epoch, transactional=True, at_ms=at_ms))

    def plain(self, later_ms: int = 0) -> bytes:
        """Two records without a transaction."""
        return batch(2, at_ms=self.t0 + later_ms)

    def append(self, data: bytes) -> None:
        assert isinstance(self.partition.produce(data), AppendInfo)

    def end(self, producer_id: int, *, commit: bool = False, epoch: int = 1) -> int:
        """Appends a marker and returns its offset."""
        return self.partition.append_marker(EndTransactionMarker(producer_id, epoch, 0, commit, 2)).base_offset

    async def fetch(self, offset: int, isolation: int = COMMITTED, *, version: int = 12, **options: int) -> Any:
        return partition_of(await Peer(self.broker).ask(FETCH, version, request(offset, isolation, **options)))

    def waiting(self, offset: int, isolation: int = COMMITTED, *, min_bytes: int = 1) -> Waiting:
        """Sends a fetch that may wait, and returns it."""
        return Waiting(self.broker, request(offset, isolation, min_bytes=min_bytes, wait_ms=PATIENCE_MS))

    async def offset(self, timestamp: int, isolation: int = COMMITTED) -> tuple[ErrorCode, int, int]:
        """Sends ListOffsets. Returns the error, the offset and the timestamp of the reply."""
        part = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
        message = {"replica_id": -1, "isolation_level": isolation, "topics": [{"name": "t", "partitions": [part]}]}
        reply = await Peer(self.broker).ask(LIST_OFFSETS, 7, message)
        found = reply.topics[0].partitions[0]
        return found.error_code, found.offset, found.timestamp


class Waiting(Peer):
    """A fetch that may wait."""

    def __init__(self, broker: BrokerServer, message: dict[str, Any]) -> None:
        super().__init__(broker)
        self.connection.data_received(frames.encode_request(FETCH, 12, 1, "c", message))

    async def answer(self) -> Any:
        """Returns the partition of the reply, or None if there is no reply within 30 ms."""
        for _ in range(30):
            if self.written:
                return partition_of(frames.decode_reply(FETCH, 12, b"".join(self.written)[4:])[1])
            await asyncio.sleep(0.001)
        return None


def request(
    offset: int, isolation: int, *, max_bytes: int = MOST, min_bytes: int = 0, wait_ms: int = 0,
    session: tuple[int, int] = (0, -1), listed: bool = True,
) -> dict[str, Any]:  # fmt: skip
    wanted = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes, "current_leader_epoch": -1,
              "last_fetched_epoch": -1, "log_start_offset": -1}  # fmt: skip
    return {
        "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": MOST, "isolation_level": isolation,
        "session_id": session[0], "session_epoch": session[1], "forgotten_topics_data": [], "rack_id": "",
        "topics": [{"topic": "t", "partitions": [wanted]}] if listed else [],
    }  # fmt: skip


def partition_of(reply: Any) -> Any:
    """The one partition of a reply, or None if it has none."""
    found = [part for topic in reply.responses for part in topic.partitions]
    return found[0] if found else None


def seen(part: Any) -> tuple[int, int, list[tuple[int, int]] | None]:
    """The last stable offset, the bytes and the aborted transactions in a reply."""
    aborted = part.aborted_transactions
    rows = None if aborted is None else [(row.producer_id, row.first_offset) for row in aborted]
    assert part.error_code == OK
    return part.last_stable_offset, len(part.records or b""), rows


@pytest.fixture
def run_with_setup(tmp_path: Path) -> Callable[[Callable[[Setup], Any]], None]:
    def run(scenario: Callable[[Setup], Any]) -> None:
        async def whole() -> None:
            # These tests have no transaction coordinator, so no batch can be verified.
            unverified = {"transaction.partition.verification.enable": "false"}
            async with serving(tmp_path, **unverified) as broker, asyncio.timeout(30):
                await scenario(Setup(broker))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())

    return run


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_a_fetch_lists_the_aborted_transactions_of_its_records(run_with_setup, version: int) -> None:
    async def scenario(setup: Setup) -> None:
        peer = Peer(setup.broker)

        async def fetch(offset: int, isolation: int) -> Any:
            message = request(offset, isolation)
            if version >= 13:
                topic = setup.broker.catalog.topic("t")
                assert topic is not None
                message["topics"][0]["topic_id"] = topic.id
            return seen(partition_of(await peer.ask(FETCH, version, message)))

        setup.append(setup.plain())
        assert await fetch(0, COMMITTED) == (2, SIZE, [])
        setup.send(7)
        setup.send(8)
        setup.end(8)
        whole = 3 * SIZE + MARKER
        assert await fetch(0, UNCOMMITTED) == (2, whole, None)
        assert await fetch(0, COMMITTED) == (2, SIZE, [(8, 4)]), "as in Kafka, the list may have later transactions"
        setup.end(7)
        setup.send(7, epoch=1)
        setup.end(7, commit=True, epoch=2)
        assert await fetch(0, COMMITTED) == (11, whole + SIZE + 2 * MARKER, [(8, 4), (7, 2)])
        assert await fetch(7, COMMITTED) == (11, SIZE + 2 * MARKER, [(7, 2)])
        assert await fetch(8, COMMITTED) == (11, SIZE + MARKER, [])
        assert await fetch(11, COMMITTED) == (11, 0, [])
        assert await fetch(0, UNCOMMITTED) == (11, whole + SIZE + 2 * MARKER, None)

    run_with_setup(scenario)


def test_a_first_batch_of_any_size_is_returned_with_its_aborted_transaction(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        setup.send(7)
        setup.end(7)
        setup.append(setup.plain())
        assert seen(await setup.fetch(0, max_bytes=1)) == (5, SIZE, [(7, 0)])

    run_with_setup(scenario)


def test_only_bytes_below_the_last_stable_offset_count_for_a_waiting_fetch(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        setup.append(setup.plain())
        committed = setup.waiting(0, min_bytes=SIZE + 1)
        uncommitted = setup.waiting(0, UNCOMMITTED, min_bytes=SIZE + 1)
        setup.send(7)
        answer = await uncommitted.answer()
        assert seen(answer) == (2, 2 * SIZE, None)
        for number in range(1, 4):
            setup.append(setup.plain())
            setup.send(7, sequence=2 * number)
        assert await committed.answer() is None, "the last stable offset has not moved"
        setup.end(7)
        assert seen(await committed.answer()) == (17, 8 * SIZE + MARKER, [(7, 2)])

    run_with_setup(scenario)


def test_appends_in_a_transaction_cause_no_read_for_a_waiting_fetch(run_with_setup, monkeypatch) -> None:
    async def scenario(setup: Setup) -> None:
        reads: list[int] = []
        read = k01_fetch._Fetch._read
        monkeypatch.setattr(k01_fetch._Fetch, "_read", lambda self, wanted: reads.append(1) or read(self, wanted))
        committed = setup.waiting(0)
        while not reads:  # on a busy machine the broker reads the request in a later turn of the event loop
            await asyncio.sleep(0)
        reads.clear()
        for number in range(50):
            setup.send(7, sequence=2 * number)
            await asyncio.sleep(0)
        assert await committed.answer() is None
        assert not reads
        setup.end(7, commit=True)
        assert seen(await committed.answer()) == (101, setup.partition.log.size, [])
        assert len(reads) == 1

    run_with_setup(scenario)


def test_a_marker_counts_the_bytes_up_to_the_next_open_transaction(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        setup.send(7)
        setup.send(8)
        short = setup.waiting(0, min_bytes=SIZE)
        long = setup.waiting(0, min_bytes=SIZE + 1)
        setup.end(7)
        assert seen(await short.answer()) == (2, SIZE, [(7, 0)])
        assert await long.answer() is None
        setup.end(8, commit=True)
        assert seen(await long.answer()) == (6, 2 * SIZE + 2 * MARKER, [(7, 0)])

    run_with_setup(scenario)


def test_a_marker_that_ends_no_transaction_counts_its_own_bytes(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        waiting, other = setup.waiting(0), setup.waiting(0, UNCOMMITTED)
        setup.end(7)
        assert seen(await waiting.answer()) == (1, MARKER, [])
        assert seen(await other.answer()) == (1, MARKER, None)

    run_with_setup(scenario)


def test_the_batches_of_a_coordinator_count_below_the_last_stable_offset(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        waiting = setup.waiting(0, min_bytes=SIZE + 1)
        setup.partition.append(setup.plain() + sequenced(0, 2, transactional=True, at_ms=setup.t0))
        assert await waiting.answer() is None
        setup.partition.append(setup.plain())
        assert await waiting.answer() is None
        setup.end(7, commit=True)
        assert seen(await waiting.answer()) == (7, 3 * SIZE + MARKER, [])

    run_with_setup(scenario)


def test_a_fetch_before_the_segment_of_the_last_stable_offset_does_not_wait(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        log = setup.partition.log
        setup.append(setup.plain())
        setup.send(7)
        log.roll(setup.t0)
        setup.append(setup.plain())
        assert await setup.waiting(0, min_bytes=NEVER).answer() is None, "the segment also has the last stable offset"
        assert seen(await setup.waiting(0, UNCOMMITTED, min_bytes=NEVER).answer()) == (2, 2 * SIZE, None)
        late = setup.waiting(2, min_bytes=NEVER)
        setup.end(7)
        assert seen(await late.answer()) == (7, SIZE, [(7, 2)])

    run_with_setup(scenario)


def test_a_held_back_high_watermark_holds_back_the_end_of_a_transaction(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        setup.send(7)
        setup.partition.move_high_watermark(2)
        waiting = setup.waiting(0)
        setup.end(7)
        assert await waiting.answer() is None
        setup.partition.move_high_watermark(3)
        assert seen(await waiting.answer()) == (3, SIZE + MARKER, [(7, 0)])

    run_with_setup(scenario)


def test_a_session_reply_has_a_partition_with_records_or_a_new_high_watermark(run_with_setup) -> None:
    """As in Kafka, a new last stable offset alone is no reason for a partition in the reply."""

    async def scenario(setup: Setup) -> None:
        peer = Peer(setup.broker)
        setup.send(7)
        setup.send(8)
        reply = await peer.ask(FETCH, 12, request(0, COMMITTED, session=(0, 0)))
        assert seen(partition_of(reply)) == (0, 0, [])
        again = await peer.ask(FETCH, 12, request(0, COMMITTED, session=(reply.session_id, 1), listed=False))
        assert partition_of(again) is None
        setup.end(8)
        again = await peer.ask(FETCH, 12, request(0, COMMITTED, session=(reply.session_id, 2), listed=False))
        assert seen(partition_of(again)) == (0, 0, []), "the high watermark has moved"
        setup.end(7)
        again = await peer.ask(FETCH, 12, request(0, COMMITTED, session=(reply.session_id, 3), listed=False))
        assert seen(partition_of(again)) == (6, 2 * SIZE + 2 * MARKER, [(8, 2), (7, 0)])

    run_with_setup(scenario)


@pytest.mark.behaviour(50)
def test_list_offsets_ends_at_the_last_stable_offset(run_with_setup) -> None:
    async def scenario(setup: Setup) -> None:
        setup.append(setup.plain())
        setup.send(7, later_ms=100)
        setup.append(setup.plain(200))
        assert await setup.offset(LATEST) == (OK, 2, -1)
        assert await setup.offset(LATEST, UNCOMMITTED) == (OK, 6, -1)
        assert await setup.offset(setup.t0 + 1) == (OK, 1, setup.t0 + 1)
        assert await setup.offset(setup.t0 + 100) == (OK, -1, -1)
        assert await setup.offset(setup.t0 + 100, UNCOMMITTED) == (OK, 2, setup.t0 + 100)
        assert await setup.offset(MAX_TIMESTAMP) == (OK, -1, -1), "Kafka looks for no other record"
        assert await setup.offset(MAX_TIMESTAMP, UNCOMMITTED) == (OK, 5, setup.t0 + 201)
        setup.end(7)
        assert await setup.offset(LATEST) == (OK, 7, -1)
        assert await setup.offset(setup.t0 + 100) == (OK, 2, setup.t0 + 100)

    run_with_setup(scenario)


def test_an_unreadable_index_of_aborted_transactions_is_a_storage_error(run_with_setup, caplog) -> None:
    """A reader of committed records gets no aborted record, however often it asks. Other readers need no index."""

    async def scenario(setup: Setup) -> None:
        setup.send(7)
        setup.end(7)
        log = setup.partition.log
        log.roll(setup.t0)
        while log.recovery_point < log.log_end_offset:  # the sync of the closed segment needs the file
            await asyncio.sleep(0.001)
        log.segments[0].close_file()
        index = log.segments[0].path(".txnindex")
        right = index.rename(index.with_suffix(".lost"))
        for content in (None, b"", bytes(34)):
            if content is not None:
                index.write_bytes(content)
            for _ in range(3):
                refused = await setup.fetch(0)
                assert (refused.error_code, refused.records or b"") == (ErrorCode.kafka_storage_error, b"")
            assert seen(await setup.fetch(0, UNCOMMITTED)) == (3, SIZE + MARKER, None)
        right.rename(index)
        assert seen(await setup.fetch(0)) == (3, SIZE + MARKER, [(7, 0)])
        assert len([line for line in caplog.messages if index.name in line]) == 1

    run_with_setup(scenario)


# --- clients ----------------------------------------------------------------------------------------------------


def by_confluent(address: str, isolation: str, count: int) -> list[int]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "g", "isolation.level": isolation, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", 0, 0)])
    offsets: list[int] = []
    while len(offsets) < count:
        offsets += [message.offset() for message in consumer.consume(100, timeout=0.2) if not message.error()]
    offsets += [message.offset() for message in consumer.consume(100, timeout=0.3) if not message.error()]
    consumer.close()
    return offsets


def by_ours(address: str, isolation: str, count: int) -> list[int]:
    from odradek import Consumer

    with Consumer(bootstrap_servers=address, isolation_level=isolation) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)

        def poll(timeout: float) -> list[int]:
            found = consumer.poll(timeout=timeout).values()
            return [offset for batches in found for part in batches for offset in part.column("offset").to_pylist()]

        offsets: list[int] = []
        while len(offsets) < count:
            offsets += poll(0.2)
        return offsets + poll(0.3)


@pytest.mark.behaviour(54, part="a")
@pytest.mark.parametrize("read", [by_confluent, by_ours])
def test_clients_skip_aborted_records_and_stop_at_an_open_transaction(run_with_setup, read) -> None:
    async def scenario(setup: Setup) -> None:
        committed: list[int] = []
        every: list[int] = []
        for number in range(12):
            first = setup.partition.log_end_offset
            for producer_id in (7, 8):
                setup.send(producer_id, epoch=number)
            setup.append(setup.plain())
            every += range(first, first + 6)
            setup.end(7, commit=number % 2 == 0, epoch=number + 1)
            setup.end(8, commit=number % 3 == 0, epoch=number + 1)
            committed += [
                *(range(first, first + 2) if number % 2 == 0 else ()),
                *(range(first + 2, first + 4) if number % 3 == 0 else ()),
                *range(first + 4, first + 6),
            ]
            if number % 4 == 3:
                setup.partition.log.roll(setup.t0)
        first = setup.partition.log_end_offset
        setup.send(7, epoch=12)
        setup.append(setup.plain())
        every += range(first, first + 4)
        address = ":".join(map(str, setup.broker.address))
        assert await asyncio.to_thread(read, address, "read_committed", len(committed)) == committed
        assert await asyncio.to_thread(read, address, "read_uncommitted", len(every)) == every

    run_with_setup(scenario)
