"""A high watermark that is held back, as by a lagging replica: reads end below it, and producers wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.brokers import create_offsets_topic, delete_topic
from support.logs import T0, batch, open_log, sequenced
from support.partitions import registered
from support.peers import Peer, run_alone, until
from support.replicas import make_replicated

from odradek.broker.partitions.partition import Partition
from odradek.broker.partitions.purgatory import Wake
from odradek.broker.partitions.watermark_waits import WatermarkWaits
from odradek.broker.server import BrokerServer
from odradek.core.errors import ErrorCode
from odradek.wire import frames
from odradek.wire.api_keys import FETCH, OFFSET_COMMIT, PRODUCE

PATIENCE_MS = 60_000
ALL, LEADER = -1, 1


class Setup:
    """A broker with a topic ``t`` of two partitions. The high watermark of the first partition is held back at 0."""

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

    def fetch_and_produce(self, acks: int) -> tuple[Caller, Caller]:
        """One client fetches from the end of the empty first partition, then another client produces a record. Returns
        both clients."""
        reader, writer = self.client(), self.client()
        reader.fetch(0)
        writer.produce(0, acks=acks)
        return reader, writer

    async def rest(self) -> None:
        """Runs some iterations of the event loop. After them, the broker has sent every reply that is due."""
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
            number, reply = frames.decode_reply(key, version, frame)
            assert number == len(found), "replies are in the order of the requests"
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


@pytest.fixture
def run_scenario(tmp_path: Path) -> Callable[[Callable[[Setup], Any]], None]:
    """Returns a function that runs a coroutine function with a ``Setup``."""
    settings = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
    return lambda scenario: run_alone(scenario, tmp_path, Setup, partitions=2, **settings)


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


def test_a_fetch_waits_for_the_high_watermark(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        reader, writer = setup.fetch_and_produce(LEADER)
        await writer.answered()
        await setup.rest()
        assert not reader.replies, "the append has completed no fetch"
        assert len(setup.first.waiters) == 1

        hasty = setup.client()
        hasty.fetch(0, wait_ms=0)
        assert sizes((await hasty.answered())[0]) == (OK, 0, 0)

        setup.first.move_high_watermark(1)
        assert sizes((await reader.answered())[0]) == (OK, 1, SIZE)
        assert setup.broker.purgatory.partitions == 0

    run_scenario(scenario)


def test_only_bytes_below_the_high_watermark_count_for_a_fetch(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        reader, writer = setup.client(), setup.client()
        reader.fetch(0, min_bytes=2 * SIZE)
        for _ in range(4):
            writer.produce(0, acks=LEADER)
        await writer.answered(4)
        setup.first.move_high_watermark(1)
        await setup.rest()
        assert not reader.replies, "only one of the four batches counts"
        setup.first.move_high_watermark(3)
        assert sizes((await reader.answered())[0]) == (OK, 3, 3 * SIZE)

    run_scenario(scenario)


def test_a_released_high_watermark_follows_the_log_end(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        reader, writer = setup.fetch_and_produce(ALL)
        await setup.rest()
        assert not writer.replies
        setup.first.move_high_watermark(None)
        assert results((await writer.answered())[0]) == [(OK, 0)]
        assert sizes((await reader.answered())[0]) == (OK, 1, SIZE)
        reader.fetch(1)
        writer.produce(0, acks=ALL)
        assert results((await writer.answered(2))[1]) == [(OK, 1)]
        assert sizes((await reader.answered(2))[1]) == (OK, 2, SIZE)

    run_scenario(scenario)


@pytest.mark.parametrize("is_awaited", [False, True])
def test_appends_wake_fetches_but_only_moved_high_watermarks_are_reported(tmp_path: Path, *, is_awaited: bool) -> None:
    """A coordinator reads the high watermark itself after its own appends. So a partition does not report it to the
    coordinator after an append, whether a fetch waits or not."""
    log = open_log(tmp_path)
    partition = Partition("t", 3, log, lambda: T0)
    moved: list[int] = []
    arrived: list[int] = []
    partition.on_high_watermark = moved.append

    class Waiter:
        awaits = Wake.HIGH_WATERMARK

        def count_readable(self, size: int) -> None:
            arrived.append(size)

    if is_awaited:
        partition.waiters[Waiter()] = None  # the methods that a partition calls
    partition.produce(batch(1))
    partition.append(batch(1))
    assert (moved, arrived) == ([], [SIZE, SIZE] if is_awaited else [])
    partition.move_high_watermark(1)
    partition.move_high_watermark(None)
    assert moved == [3, 3]
    log.close()


def test_only_bytes_in_the_active_segment_are_counted(tmp_path: Path) -> None:
    """A fetch of a segment before the last one never waits, for any min_bytes."""
    log = open_log(tmp_path, segment_bytes=3 * SIZE)
    partition = Partition("t", 0, log, lambda: T0)
    partition.move_high_watermark(0)
    arrived: list[int] = []

    class Waiter:
        awaits = Wake.HIGH_WATERMARK

        def count_readable(self, size: int) -> None:
            arrived.append(size)

    partition.waiters[Waiter()] = None  # the methods that a partition calls
    for _ in range(5):
        partition.produce(batch(1))
    partition.move_high_watermark(1)
    assert arrived.pop() > 1 << 40
    partition.move_high_watermark(4)
    assert arrived.pop() > 1 << 40
    partition.move_high_watermark(99)
    assert (arrived, partition.high_watermark) == ([SIZE], 5), "the high watermark does not pass the log end"
    log.close()


# --- producers --------------------------------------------------------------------------------------------------


def test_acks_all_waits_for_the_high_watermark_and_acks_1_does_not(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        patient, quick = setup.client(), setup.client()
        patient.produce(0, acks=ALL)
        quick.produce(0, acks=LEADER)
        assert results((await quick.answered())[0]) == [(OK, 1)]
        quick.produce(1, acks=ALL)
        assert results((await quick.answered(2))[1]) == [(OK, 0)], "the other partition is not held back"
        await setup.rest()
        assert not patient.replies
        setup.first.move_high_watermark(1)
        assert results((await patient.answered())[0]) == [(OK, 0)]
        assert not patient.connection.parked

    run_scenario(scenario)


def test_replies_are_in_order_and_wait_for_their_records(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        writer, order = setup.client(), []
        for number in range(6):
            other = setup.client()
            other.produce(0, acks=ALL)
            writer.produce(0, acks=ALL)
            write, place = other.writelines, 2 * number
            other.writelines = lambda chunks, write=write, place=place: (order.append(place), write(chunks))[1]
        for end in (1, 4, 5, 12):
            setup.first.move_high_watermark(end)
            await setup.rest()
            assert len(writer.replies) == end // 2
            assert order == [place for place in range(0, 12, 2) if place < end]
        assert [results(reply) for reply in writer.replies] == [[(OK, number)] for number in range(1, 12, 2)]

    run_scenario(scenario)


def test_a_request_waits_for_all_of_its_partitions(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        setup.second.move_high_watermark(0)
        writer = setup.client()
        writer.produce(0, 1, 7)
        setup.second.move_high_watermark(1)
        await setup.rest()
        assert not writer.replies
        setup.first.move_high_watermark(1)
        unknown = (ErrorCode.unknown_topic_or_partition, -1)
        assert results((await writer.answered())[0]) == [(OK, 0), (OK, 0), unknown]

    run_scenario(scenario)


def test_a_long_request_waits_too(run_scenario) -> None:
    """The records of a long request are checked in steps, and its reply is created in steps."""

    async def scenario(setup: Setup) -> None:
        setup.broker.create_topic("wide", partition_count=300)
        partitions = [setup.partition(index, "wide") for index in range(300)]
        for partition in partitions:
            partition.move_high_watermark(0)
        writer = setup.client()
        data = [{"index": index, "records": batch(1)} for index in range(300)]
        topic = {"name": "wide", "partition_data": data}
        message = {"transactional_id": None, "acks": ALL, "timeout": PATIENCE_MS, "topic_data": [topic]}
        writer.send(PRODUCE, 9, message)
        await until(lambda: all(partition.log_end_offset for partition in partitions))
        for partition in partitions[:299]:
            partition.move_high_watermark(1)
        await setup.rest()
        assert not writer.replies
        partitions[299].move_high_watermark(1)
        assert results((await writer.answered())[0]) == [(OK, 0)] * 300

    run_scenario(scenario)


def test_a_producer_gets_an_error_after_its_timeout(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        setup.second.move_high_watermark(0)
        writer, started_s = setup.client(), time.monotonic()
        writer.produce(0, 1, timeout_ms=80)
        setup.second.move_high_watermark(1)
        assert results((await writer.answered())[0]) == [(ErrorCode.request_timed_out, 0), (OK, 0)]
        assert time.monotonic() - started_s >= 0.08
        waits = setup.first.watermark_waits
        assert waits is not None
        assert not len(waits), "no wait remains"
        writer.produce(0, timeout_ms=0)
        writer.produce(0, timeout_ms=-5)
        assert [results(reply) for reply in (await writer.answered(3))[1:]] == [
            [(ErrorCode.request_timed_out, 1)], [(ErrorCode.request_timed_out, 2)]
        ]  # fmt: skip

    run_scenario(scenario)


def test_a_duplicate_batch_waits_for_its_first_copy(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        writer, again = setup.client(), setup.client()
        writer.produce(0, records=sequenced(0))
        writer.produce(0, records=sequenced(5))
        again.produce(0, records=sequenced(0))
        await setup.rest()
        assert not again.replies
        setup.first.move_high_watermark(5)
        assert results((await again.answered())[0]) == [(OK, 0)], "it does not wait for later batches"
        assert len(await writer.answered()) == 1

    run_scenario(scenario)


# --- ends -------------------------------------------------------------------------------------------------------


def test_a_deleted_topic_ends_all_waits(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        reader, writer, both = setup.client(), setup.client(), setup.client()
        reader.fetch(0)
        writer.produce(0)
        both.produce(0, 1)
        delete_topic(setup.broker, "t")
        gone = ErrorCode.unknown_topic_or_partition
        assert results((await writer.answered())[0]) == [(gone, 0)]
        assert results((await both.answered())[0]) == [(gone, 1), (OK, 0)]
        assert sizes((await reader.answered())[0])[0] is gone

    run_scenario(scenario)


def test_a_stop_answers_all_waits(run_scenario) -> None:
    """When a broker stops, it calls ``close`` of each connection."""

    async def scenario(setup: Setup) -> None:
        writer = setup.client()
        writer.produce(0)
        writer.connection.close()
        assert results((await writer.answered())[0]) == [(ErrorCode.not_leader_or_follower, 0)]

    run_scenario(scenario)


def test_truncated_records_are_not_acknowledged(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        writer = setup.client()
        writer.produce(0)
        setup.first.log.removals.truncate_to(0, setup.broker.now_ms())
        setup.first.move_high_watermark(None)
        assert results((await writer.answered())[0]) == [(ErrorCode.not_leader_or_follower, 0)]

    run_scenario(scenario)


def test_a_disconnected_client_leaves_no_wait(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        writer, reader = setup.client(), setup.client()
        writer.produce(0)
        reader.fetch(0)
        waits = setup.first.watermark_waits
        assert waits is not None
        assert (len(waits), writer.connection.parked_partitions) == (1, 1)
        writer.abort()
        reader.abort()
        assert (len(waits), writer.connection.parked_partitions) == (0, 0)
        setup.first.move_high_watermark(1)
        await setup.rest()
        assert not writer.written
        assert not reader.written
        assert setup.first.log_end_offset == 1, "the records stay"

    run_scenario(scenario)


def test_a_client_that_disconnects_before_its_reply_gets_none(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        writer = setup.client()
        writer.produce(0)
        setup.first.move_high_watermark(1)
        writer.abort()
        await setup.rest()
        assert not writer.written

    run_scenario(scenario)


# --- too few replicas -------------------------------------------------------------------------------------------


def lacking(partition: Partition) -> None:
    """Gives the partition three replicas, of which one is in sync, and min.insync.replicas=2."""
    assert partition.registration is not None
    epoch = partition.registration.partition_epoch + 1
    partition.apply(
        registered((1, 2, 3), isr=(1,), leader_epoch=partition.leader_epoch, partition_epoch=epoch,
                   index=partition.index),
        1, 0,
    )  # fmt: skip
    partition.reconfigure(replace(partition.log.config, min_isr=2))


def test_with_too_few_replicas_acks_all_is_refused_and_acks_1_is_not(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        second = make_replicated(setup.broker, "t", 1)
        lacking(second)
        writer = setup.client()
        writer.produce(1, acks=ALL)
        ((part,),) = [topic.partition_responses for topic in (await writer.answered())[0].responses]
        assert (part.error_code, part.base_offset, part.log_start_offset) == (ErrorCode.not_enough_replicas, -1, 0)
        assert second.log_end_offset == 0
        writer.produce(1, acks=LEADER)
        assert results((await writer.answered(2))[1]) == [(OK, 0)]
        assert second.high_watermark == 0

    run_scenario(scenario)


def test_with_too_few_replicas_no_commit_is_acknowledged(run_scenario) -> None:
    """As in Kafka the commit is written, and may stand when there are enough replicas again."""

    async def scenario(setup: Setup) -> None:
        setup.broker.groups.config = replace(setup.broker.groups.config, offsets_commit_timeout_ms=100)
        create_offsets_topic(setup.broker)
        await until(lambda: setup.broker.groups.shard(0) is not None)
        offsets = setup.partition(0, "__consumer_offsets")
        lacking(offsets)
        client = setup.client()
        client.commit(3)
        (topic,) = (await client.answered())[0].topics
        assert [part.error_code for part in topic.partitions] == [ErrorCode.coordinator_not_available]
        assert (offsets.log_end_offset, offsets.high_watermark) == (1, 0)

    run_scenario(scenario)


# --- the coordinator --------------------------------------------------------------------------------------------


def test_commits_are_answered_when_the_watermark_has_passed_them(run_scenario) -> None:
    async def scenario(setup: Setup) -> None:
        broker = setup.broker
        create_offsets_topic(broker)
        await until(lambda: broker.groups.shard(0) is not None)
        offsets = setup.partition(0, "__consumer_offsets")
        offsets.move_high_watermark(0)
        one, other = setup.client(), setup.client()
        one.commit(3)
        await until(lambda: offsets.log_end_offset == 1)
        other.commit(4)
        await until(lambda: offsets.log_end_offset == 2)
        await setup.rest()
        assert not one.replies
        offsets.move_high_watermark(1)
        await one.answered()
        await setup.rest()
        assert not other.replies
        offsets.move_high_watermark(None)
        await other.answered()

    run_scenario(scenario)


def test_waits_end_once_in_order_of_offset_and_arrival() -> None:
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
