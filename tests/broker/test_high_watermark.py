"""A high watermark that is held back, as by a replica that lags: who sees records above it, and who waits for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from support.brokers import delete_topic
from support.logs import T0, batch, open_log, sequenced
from support.peers import Peer, until

from odradek.broker import scheduler
from odradek.broker.config import BrokerConfig
from odradek.broker.partition import Partition
from odradek.broker.server import BrokerServer
from odradek.broker.watermark_waits import WatermarkWaits
from odradek.core.errors import ErrorCode
from odradek.wire import frames
from odradek.wire.api_keys import FETCH, OFFSET_COMMIT, PRODUCE

PATIENCE_MS = 60_000
ALL, LEADER = -1, 1


class Story:
    """A broker whose topic ``t`` has two partitions; the first one's high watermark is held back at its end."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        self.first, self.second = self.partition(0), self.partition(1)
        self.first.move_high_watermark(self.first.log_end_offset)

    def partition(self, index: int, topic: str = "t") -> Partition:
        found = self.broker.partition(topic, index)
        assert found is not None
        return found

    def client(self) -> Caller:
        return Caller(self.broker)

    async def rest(self) -> None:
        """Some turns of the loop, in which nothing that waits may happen."""
        for _ in range(20):
            await asyncio.sleep(0.001)


class Caller(Peer):
    """Sends requests without waiting for their replies."""

    def __init__(self, broker: BrokerServer) -> None:
        super().__init__(broker)
        self._asked: list[tuple[int, int]] = []

    def send(self, key: int, version: int, message: dict[str, Any]) -> None:
        self._asked.append((key, version))
        self.connection.data_received(frames.encode_request(key, version, len(self._asked) - 1, "c", message))

    @property
    def replies(self) -> list[Any]:
        found = []
        for frame in frames.FrameReader().feed(b"".join(self.written)):
            key, version = self._asked[int.from_bytes(frame[:4], "big")]
            number, reply = frames.decode_response(key, version, frame)
            assert number == len(found), "in the order of the requests"
            found.append(reply)
        return found

    async def answered(self, count: int = 1) -> list[Any]:
        await until(lambda: len(self.replies) >= count)
        return self.replies

    def produce(
        self, *parts: int, acks: int = ALL, timeout_ms: int = PATIENCE_MS, records: bytes | None = None
    ) -> None:
        data = [{"index": index, "records": batch(1) if records is None else records} for index in parts]
        topic = {"name": "t", "partition_data": data}
        message = {"transactional_id": None, "acks": acks, "timeout": timeout_ms, "topic_data": [topic]}
        self.send(PRODUCE, 9, message)

    def fetch(self, offset: int, *, min_bytes: int = 1, wait_ms: int = PATIENCE_MS) -> None:
        wanted = [{"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
        message = {
            "max_wait": wait_ms, "min_bytes": min_bytes, "max_bytes": 1 << 20, "isolation_level": 0,
            "topics": [{"topic": "t", "partitions": wanted}],
        }  # fmt: skip
        self.send(FETCH, 4, message)

    def commit(self, offset: int) -> None:
        row = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        message = {
            "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1,
            "topics": [{"name": "t", "partitions": [row]}],
        }  # fmt: skip
        self.send(OFFSET_COMMIT, 2, message)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[Story]:
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    broker = BrokerServer(BrokerConfig(settings), directory, ("127.0.0.1", 0))
    await broker.start()
    broker.create_topic("t", partition_count=2)
    try:
        yield Story(broker)
    finally:
        for connection in tuple(broker.connections):
            connection.abort()
        await broker.abandon()


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Story], Any]], None]:
    """Runs a coroutine function with a story. No request waits for its share of the loop."""
    for name in ("SHARE_S", "TURN_S"):
        monkeypatch.setattr(scheduler, name, 3600.0)

    def run(tell: Callable[[Story], Any]) -> None:
        async def whole() -> None:
            async with serving(tmp_path) as story, asyncio.timeout(30):
                await tell(story)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(whole())

    return run


def results(reply: Any) -> list[tuple[ErrorCode, int]]:
    """Error and base offset of each partition in a reply to Produce."""
    return [(part.error_code, part.base_offset) for topic in reply.responses for part in topic.partition_responses]


def sizes(reply: Any) -> tuple[ErrorCode, int, int]:
    """Error, high watermark and bytes of the one partition in a reply to Fetch."""
    ((part,),) = [topic.partitions for topic in reply.responses]
    return part.error_code, part.high_watermark, len(part.records or b"")


OK = ErrorCode.none
SIZE = len(batch(1))


# --- fetches ----------------------------------------------------------------------------------------------------


def test_a_fetch_sees_nothing_above_the_watermark_and_wakes_when_it_moves(play) -> None:
    async def tell(story: Story) -> None:
        reader, writer = story.client(), story.client()
        reader.fetch(0)
        writer.produce(0, acks=LEADER)
        await writer.answered()
        await story.rest()
        assert not reader.replies, "the append has woken nobody"
        assert len(story.first.waiters) == 1

        hasty = story.client()
        hasty.fetch(0, wait_ms=0)
        assert sizes((await hasty.answered())[0]) == (OK, 0, 0)

        story.first.move_high_watermark(1)
        assert sizes((await reader.answered())[0]) == (OK, 1, SIZE)
        assert story.broker.purgatory.partitions == 0

    play(tell)


def test_a_fetch_waits_for_the_bytes_below_the_watermark(play) -> None:
    async def tell(story: Story) -> None:
        reader, writer = story.client(), story.client()
        reader.fetch(0, min_bytes=2 * SIZE)
        for _ in range(4):
            writer.produce(0, acks=LEADER)
        await writer.answered(4)
        story.first.move_high_watermark(1)
        await story.rest()
        assert not reader.replies, "four batches are there, but one of them counts"
        story.first.move_high_watermark(3)
        assert sizes((await reader.answered())[0]) == (OK, 3, 3 * SIZE)

    play(tell)


def test_the_watermark_follows_the_end_again(play) -> None:
    async def tell(story: Story) -> None:
        reader, writer = story.client(), story.client()
        reader.fetch(0)
        writer.produce(0, acks=ALL)
        await story.rest()
        assert not writer.replies
        story.first.move_high_watermark(None)
        assert results((await writer.answered())[0]) == [(OK, 0)]
        assert sizes((await reader.answered())[0]) == (OK, 1, SIZE)
        reader.fetch(1)
        writer.produce(0, acks=ALL)
        assert results((await writer.answered(2))[1]) == [(OK, 1)]
        assert sizes((await reader.answered(2))[1]) == (OK, 2, SIZE)

    play(tell)


def test_bytes_are_counted_across_segments(tmp_path: Path) -> None:
    """A reader that is not at the last segment has enough, however few bytes there are."""
    log = open_log(tmp_path, segment_bytes=3 * SIZE)
    partition = Partition("t", 0, log, lambda: T0)
    partition.move_high_watermark(0)
    arrived: list[int] = []

    class Waiter:
        def arrived(self, size: int) -> None:
            arrived.append(size)

    partition.waiters.add(Waiter())  # type: ignore[arg-type]
    for _ in range(5):
        partition.produce(batch(1))
    partition.move_high_watermark(1)
    assert arrived.pop() > 1 << 40
    partition.move_high_watermark(4)
    assert arrived.pop() > 1 << 40
    partition.move_high_watermark(99)
    assert (arrived, partition.high_watermark) == ([SIZE], 5), "it does not pass the log's end"
    log.close()


# --- producers --------------------------------------------------------------------------------------------------


def test_all_replicas_are_waited_for_and_the_leader_alone_is_not(play) -> None:
    async def tell(story: Story) -> None:
        patient, quick = story.client(), story.client()
        patient.produce(0, acks=ALL)
        quick.produce(0, acks=LEADER)
        assert results((await quick.answered())[0]) == [(OK, 1)]
        quick.produce(1, acks=ALL)
        assert results((await quick.answered(2))[1]) == [(OK, 0)], "nothing holds back the other partition"
        await story.rest()
        assert not patient.replies
        story.first.move_high_watermark(1)
        assert results((await patient.answered())[0]) == [(OK, 0)]
        assert not patient.connection.parked

    play(tell)


def test_replies_come_in_order_and_no_earlier_than_their_records(play) -> None:
    async def tell(story: Story) -> None:
        writer, order = story.client(), []
        for number in range(6):
            other = story.client()
            other.produce(0, acks=ALL)
            writer.produce(0, acks=ALL)
            write, place = other.writelines, 2 * number
            other.writelines = lambda chunks, write=write, place=place: (order.append(place), write(chunks))[1]  # type: ignore[method-assign]
        for end in (1, 4, 5, 12):
            story.first.move_high_watermark(end)
            await story.rest()
            assert len(writer.replies) == end // 2
            assert order == [place for place in range(0, 12, 2) if place < end]
        assert [results(reply) for reply in writer.replies] == [[(OK, number)] for number in range(1, 12, 2)]

    play(tell)


def test_a_request_waits_for_all_of_its_partitions(play) -> None:
    async def tell(story: Story) -> None:
        story.second.move_high_watermark(0)
        writer = story.client()
        writer.produce(0, 1, 7)
        story.second.move_high_watermark(1)
        await story.rest()
        assert not writer.replies
        story.first.move_high_watermark(1)
        unknown = (ErrorCode.unknown_topic_or_partition, -1)
        assert results((await writer.answered())[0]) == [(OK, 0), (OK, 0), unknown]

    play(tell)


def test_a_long_request_waits_as_well(play) -> None:
    """Its records are checked in steps, and so is its reply made."""

    async def tell(story: Story) -> None:
        story.broker.create_topic("wide", partition_count=300)
        partitions = [story.partition(index, "wide") for index in range(300)]
        for partition in partitions:
            partition.move_high_watermark(0)
        writer = story.client()
        data = [{"index": index, "records": batch(1)} for index in range(300)]
        topic = {"name": "wide", "partition_data": data}
        message = {"transactional_id": None, "acks": ALL, "timeout": PATIENCE_MS, "topic_data": [topic]}
        writer.send(PRODUCE, 9, message)
        await until(lambda: all(partition.log_end_offset for partition in partitions))
        for partition in partitions[:299]:
            partition.move_high_watermark(1)
        await story.rest()
        assert not writer.replies
        partitions[299].move_high_watermark(1)
        assert results((await writer.answered())[0]) == [(OK, 0)] * 300

    play(tell)


def test_a_producer_without_answer_in_time_is_told_so(play) -> None:
    async def tell(story: Story) -> None:
        story.second.move_high_watermark(0)
        writer, started_s = story.client(), time.monotonic()
        writer.produce(0, 1, timeout_ms=80)
        story.second.move_high_watermark(1)
        assert results((await writer.answered())[0]) == [(ErrorCode.request_timed_out, 0), (OK, 0)]
        assert time.monotonic() - started_s >= 0.08
        waits = story.first.watermark_waits
        assert waits is not None
        assert not len(waits), "nothing of it is left"
        writer.produce(0, timeout_ms=0)
        writer.produce(0, timeout_ms=-5)
        assert [results(reply) for reply in (await writer.answered(3))[1:]] == [
            [(ErrorCode.request_timed_out, 1)], [(ErrorCode.request_timed_out, 2)]
        ]  # fmt: skip

    play(tell)


def test_a_batch_sent_again_waits_for_its_first_copy(play) -> None:
    async def tell(story: Story) -> None:
        writer, again = story.client(), story.client()
        writer.produce(0, records=sequenced(0))
        writer.produce(0, records=sequenced(5))
        again.produce(0, records=sequenced(0))
        await story.rest()
        assert not again.replies
        story.first.move_high_watermark(5)
        assert results((await again.answered())[0]) == [(OK, 0)], "not for what stands behind it"
        assert len(await writer.answered()) == 1

    play(tell)


# --- ends -------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_ends_all_waits(play) -> None:
    async def tell(story: Story) -> None:
        reader, writer, both = story.client(), story.client(), story.client()
        reader.fetch(0)
        writer.produce(0)
        both.produce(0, 1)
        delete_topic(story.broker, "t")
        gone = ErrorCode.unknown_topic_or_partition
        assert results((await writer.answered())[0]) == [(gone, 0)]
        assert results((await both.answered())[0]) == [(gone, 1), (OK, 0)]
        assert sizes((await reader.answered())[0])[0] is gone

    play(tell)


def test_a_broker_that_stops_leads_nothing(play) -> None:
    async def tell(story: Story) -> None:
        writer = story.client()
        writer.produce(0)
        writer.connection.close()
        assert results((await writer.answered())[0]) == [(ErrorCode.not_leader_or_follower, 0)]

    play(tell)


def test_records_that_the_log_loses_are_not_confirmed(play) -> None:
    async def tell(story: Story) -> None:
        writer = story.client()
        writer.produce(0)
        story.first.log.truncate_to(0, story.broker.now_ms())
        story.first.move_high_watermark(None)
        assert results((await writer.answered())[0]) == [(ErrorCode.not_leader_or_follower, 0)]

    play(tell)


def test_a_client_that_goes_leaves_nothing(play) -> None:
    async def tell(story: Story) -> None:
        writer, reader = story.client(), story.client()
        writer.produce(0)
        reader.fetch(0)
        waits = story.first.watermark_waits
        assert waits is not None
        assert (len(waits), writer.connection.parked_partitions) == (1, 1)
        writer.abort()
        reader.abort()
        assert (len(waits), writer.connection.parked_partitions) == (0, 0)
        story.first.move_high_watermark(1)
        await story.rest()
        assert not writer.written
        assert not reader.written
        assert story.first.log_end_offset == 1, "the records stay"

    play(tell)


def test_one_that_goes_between_the_watermark_and_its_reply_gets_none(play) -> None:
    async def tell(story: Story) -> None:
        writer = story.client()
        writer.produce(0)
        story.first.move_high_watermark(1)
        writer.abort()
        await story.rest()
        assert not writer.written

    play(tell)


# --- the coordinator --------------------------------------------------------------------------------------------


def test_commits_are_answered_when_the_watermark_has_passed_them(play) -> None:
    async def tell(story: Story) -> None:
        broker = story.broker
        broker.ensure_offsets_topic()
        await until(lambda: broker.runtime.machine(0) is not None)
        offsets = story.partition(0, "__consumer_offsets")
        offsets.move_high_watermark(0)
        one, other = story.client(), story.client()
        one.commit(3)
        await until(lambda: offsets.log_end_offset == 1)
        other.commit(4)
        await until(lambda: offsets.log_end_offset == 2)
        await story.rest()
        assert not one.replies
        offsets.move_high_watermark(1)
        await one.answered()
        await story.rest()
        assert not other.replies
        offsets.move_high_watermark(None)
        await other.answered()

    play(tell)


def test_waits_end_once_by_offset_and_then_as_they_came() -> None:
    waits, ended = WatermarkWaits(), []

    def wait(name: str, offset: int) -> Any:
        return waits.add(offset, lambda error: ended.append((name, error)))

    for name, offset in (("b", 5), ("c", 9), ("a", 5), ("d", 4)):
        wait(name, offset)
    dropped = wait("e", 5)
    waits.discard(dropped)
    waits.discard(dropped)
    waits.pass_offset(3)
    assert ended == []
    waits.pass_offset(5)
    assert ended == [("d", OK), ("b", OK), ("a", OK)]
    waits.end_all(ErrorCode.not_leader_or_follower)
    waits.pass_offset(100)
    assert ended[3:] == [("c", ErrorCode.not_leader_or_follower)]
