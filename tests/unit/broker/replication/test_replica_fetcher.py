"""The fetches from one leader: one request at a time, in a session; what is wrong with a partition holds no other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from support.logs import T0, batch, set_base_offset
from support.memory_files import MemoryFiles
from support.partitions import NODE, registered
from support.replicas import BACKOFF_MS, NodeOfPartitions

from odradek.broker.loop.scheduler import finish as scheduled
from odradek.broker.replication.replica_fetcher import FetchLimits, ReplicaFetcher
from odradek.broker.replication.replicated_partition import ReplicatedPartition
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode
from odradek.storage.config import LogConfig
from odradek.storage.log import Log
from odradek.wire import schemas
from odradek.wire.api_keys import FETCH, LIST_OFFSETS
from odradek.wire.fetch_messages import FetchReply, FetchReplyPartition

LEADER = 2
NONE = ErrorCode.none


def placed(offset: int, epoch: int = 1, count: int = 1) -> bytes:
    data = bytearray(batch(count))
    set_base_offset(data, 0, offset, epoch)
    return bytes(data)


class FollowerNode(NodeOfPartitions):
    """A node that follows two partitions. Requests and long work wait until the test lets them end."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = FetchLimits(500, 1, 1 << 20, 1 << 16)
        self.requests: list[tuple[int, Any, Deferred[Any]]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.held: list[Any] = []
        """Work that does not end yet, if ``holds`` is set."""
        self.holds = self.holds_fetches = False
        self.fetchers_per_leader = 1
        self.handed_over: list[int] = []
        self.real = ReplicaFetcher(self, LEADER, 0)
        self.fetcher = SimpleNamespace(add=lambda partition, _: self.real.add(partition), remove=self.real.remove)
        self.partitions = [self.follow(index) for index in (0, 1)]

    def follow(self, index: int) -> ReplicatedPartition:
        one = ReplicatedPartition("t", UUID(int=7), index, self)
        one.apply(registered((LEADER, NODE), LEADER, leader_epoch=1, index=index), NODE, 0)
        one.adopt(Log.open(Path(f"/data/t-{index}"), LogConfig(), T0, clean=False, files=MemoryFiles()))
        return one

    # what a fetcher uses

    def hand_over(self, partition: ReplicatedPartition, fetcher: ReplicaFetcher) -> None:
        self.handed_over.append(partition.index)
        if partition.index < self.fetchers_per_leader - 1:
            fetcher.release(partition)

    def send(self, node_id: int, request: Any, channel: Any) -> Deferred[Any]:
        assert node_id == LEADER
        message = request.body
        if request.api_key == FETCH:
            message = schemas.decode(FETCH, request.version, schemas.Kind.REQUEST, message)[0]
        self.requests.append((request.api_key, message, Deferred()))
        return self.requests[-1][2]

    def start(self, steps: Any) -> Deferred[Any]:
        promise: Deferred[Any] = Deferred()
        if self.holds:
            self.held.append((steps, promise))
        else:
            self.run_to_end(steps, promise)
        return promise

    @staticmethod
    def run_to_end(steps: Any, promise: Deferred[Any]) -> None:
        promise.resolve(scheduled(steps))

    def call_later(self, delay_s: float, work: Callable[[], None]) -> Any:
        entry = self.time_ms + round(delay_s * 1000), work
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: entry in self.timers and self.timers.remove(entry))

    # what the test does

    def pass_ms(self, ms: int = 0) -> None:
        self.time_ms += ms
        while due := [entry for entry in self.timers if entry[0] <= self.time_ms]:
            self.timers.remove(due[0])
            due[0][1]()

    def request(self) -> tuple[tuple[int, int], dict[int, tuple[int, int, int]], list[int]]:
        """The last request: session id and epoch, the partitions with (offset, leader epoch, last epoch), and those
        that are forgotten."""
        key, message, _ = self.requests[-1]
        assert key == FETCH
        rows = {
            part.partition: (part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch)
            for topic in message.topics for part in topic.partitions
        }  # fmt: skip
        forgotten = [index for topic in message.forgotten_topics_data for index in topic.partitions]
        return (message.session_id, message.session_epoch), rows, forgotten

    def answer(self, *rows: FetchReplyPartition, code: ErrorCode = NONE, session: int = 9) -> None:
        self.requests[-1][2].resolve(FetchReply(0, code, session, rows))
        self.pass_ms()


def row(index: int, data: bytes = b"", code: ErrorCode = NONE, high_watermark: int = 0, **more: Any) -> Any:
    made = FetchReplyPartition(UUID(int=7), index, code, high_watermark, -1, 0, None, -1, memoryview(data))
    return made._replace(**more)


@pytest.fixture
def node() -> FollowerNode:
    made = FollowerNode()
    made.pass_ms()
    return made


def test_partitions_of_one_tick_are_in_one_request_of_a_session(node: FollowerNode) -> None:
    assert len(node.requests) == 1
    assert node.request() == ((0, 0), {0: (0, 1, -1), 1: (0, 1, -1)}, [])
    state = node.requests[0][1].replica_state
    assert (state.replica_id, state.replica_epoch) == (NODE, 1)
    node.answer(row(0, placed(0, count=3), high_watermark=2), row(1))
    assert node.request() == ((9, 1), {0: (3, 1, 1)}, []), "the session has the other partition"
    assert (node.partitions[0].high_watermark, node.partitions[0].log_end_offset) == (2, 3)
    node.answer()
    assert node.request() == ((9, 2), {}, [])
    assert len(node.requests) == 3


def test_without_a_reply_a_new_session_begins_after_the_pause(node: FollowerNode) -> None:
    node.answer(row(0, placed(0)), row(1))
    node.requests[-1][2].resolve(None)
    node.pass_ms(BACKOFF_MS - 1)
    assert len(node.requests) == 2
    node.pass_ms(1)
    assert node.request() == ((9, 0), {0: (1, 1, 1), 1: (0, 1, -1)}, [])
    node.answer(code=ErrorCode.fetch_session_id_not_found)
    assert node.request() == ((0, 0), {0: (1, 1, 1), 1: (0, 1, -1)}, []), "at once"


def test_a_timer_that_fires_early_is_set_again(node: FollowerNode) -> None:
    """The time in ms is a rounded one: without another timer the partitions would wait for ever."""
    node.answer(row(0, placed(0)), row(1))
    node.requests[-1][2].resolve(None)
    node.time_ms += BACKOFF_MS - 1
    ((_, fire),) = node.timers
    node.timers.clear()
    fire()
    assert len(node.requests) == 2
    node.pass_ms(1)
    assert len(node.requests) == 3


def test_an_error_concerns_one_partition(node: FollowerNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        node.answer(row(0, code=ErrorCode.kafka_storage_error), row(1, placed(0)))
        assert node.request() == ((9, 1), {1: (1, 1, 1)}, [0]), "the other one goes on"
        node.pass_ms(BACKOFF_MS)
        node.answer(row(1, placed(1)))
        assert node.request() == ((9, 2), {0: (0, 1, -1), 1: (2, 1, 1)}, [])
        node.answer(row(0, code=ErrorCode.kafka_storage_error))
        node.pass_ms(BACKOFF_MS)
        node.answer()
        node.answer(row(0, placed(0)))
    assert node.partitions[0].log_end_offset == 1
    assert [record.getMessage() for record in caplog.records] == [
        "t-0: the reply of its leader, broker 2, is refused: KAFKA_STORAGE_ERROR; it is fetched again"
    ]


DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda data: data[:-1] + bytes([data[-1] ^ 1]), "CRC"),
    (lambda data: data[:16] + b"\1" + data[17:], ""),
    (lambda data: data + placed(0), "follows offset"),
    (lambda data: data + placed(3, epoch=0), "after epoch 1"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGES)
def test_of_a_damaged_reply_nothing_is_appended(
    node: FollowerNode, caplog: pytest.LogCaptureFixture, damage: Callable[[bytes], bytes], text: str
) -> None:
    with caplog.at_level(logging.WARNING):
        node.answer(row(0, damage(placed(0, count=3)), high_watermark=3), row(1, placed(0)))
    one = node.partitions[0]
    assert (one.log_end_offset, one.high_watermark, node.partitions[1].log_end_offset) == (0, 0, 1)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("t-0: the reply of its leader, broker 2, is refused: ")
    assert text in line
    node.pass_ms(BACKOFF_MS)
    node.answer()
    assert node.request()[1][0] == (0, 1, -1), "it is fetched again"


def test_records_of_an_unknown_epoch_wait_for_its_leader(node: FollowerNode) -> None:
    node.answer(row(0, placed(0, epoch=2), high_watermark=1), row(1))
    assert node.partitions[0].log_end_offset == 0
    assert node.request()[1:] == ({}, [0])


def hold_truncation(node: FollowerNode) -> None:
    """The logs have five records and one. Then that of partition 0 is cut, which does not end yet."""
    node.answer(row(0, placed(0, count=5)), row(1, placed(0)))
    started = node.start

    def hold(steps: Any) -> Any:
        node.holds = steps.gi_code.co_name == "_cut"
        return started(steps)

    node.start = hold  # type: ignore[method-assign]
    node.answer(row(0, diverging_epoch=(0, 0)))


def test_a_long_truncation_holds_no_other_partition_up(node: FollowerNode) -> None:
    hold_truncation(node)
    one = node.partitions[0]
    assert node.request() == ((9, 2), {}, [0])
    node.answer(row(1, placed(1)))
    assert node.request() == ((9, 3), {1: (2, 1, 1)}, [])
    ((steps, promise),) = node.held
    node.run_to_end(steps, promise)
    assert one.log_end_offset == 0
    node.answer()
    assert node.request() == ((9, 4), {0: (0, 1, -1)}, [])


def test_a_partition_that_works_goes_to_another_fetcher_when_it_has_ended(node: FollowerNode) -> None:
    hold_truncation(node)
    node.fetchers_per_leader = 2
    node.answer(row(1, placed(1)))
    assert node.handed_over == [1]
    assert node.request() == ((9, 3), {1: (2, 1, 1)}, []), "partition 1 stays here"
    ((steps, promise),) = node.held
    node.run_to_end(steps, promise)
    node.answer()
    assert node.handed_over == [1, 0, 1]
    assert node.request() == ((9, 4), {}, []), "partition 0 has gone"
    node.answer(row(1, placed(2)))
    assert node.handed_over == [1, 0, 1], "all partitions are at their fetcher"


def test_a_partition_that_waits_after_an_error_waits_at_its_next_fetcher(node: FollowerNode) -> None:
    node.answer(row(0, code=ErrorCode.unknown_server_error), row(1))
    one, other = node.partitions[0], ReplicaFetcher(node, LEADER, 1)
    other.take(one, node.real.release(one))
    before = len(node.requests)
    node.pass_ms()
    assert len(node.requests) == before
    node.pass_ms(node.backoff_ms)
    assert node.request() == ((0, 0), {0: (0, 1, -1)}, [])


def test_an_offset_that_the_leader_does_not_have_is_settled_by_its_log_end(node: FollowerNode) -> None:
    node.answer(row(0, placed(0, count=5)), row(1))
    node.answer(row(0, code=ErrorCode.offset_out_of_range))
    asked = [message for key, message, _ in node.requests if key == LIST_OFFSETS]
    assert [(one["replica_id"], one["topics"][0]["partitions"][0]["timestamp"]) for one in asked] == [(NODE, -1)]
    next(promise for key, _, promise in node.requests if key == LIST_OFFSETS).resolve(9)
    last = [(message, promise) for key, message, promise in node.requests if key == LIST_OFFSETS][-1]
    assert last[0]["topics"][0]["partitions"][0]["timestamp"] == -2, "it has more, so it has deleted what is asked"
    last[1].resolve(7)
    one = node.partitions[0]
    assert (one.log_start_offset, one.log_end_offset) == (7, 7)


def test_replies_to_a_former_term_change_nothing(node: FollowerNode) -> None:
    one = node.partitions[0]
    one.apply(registered((LEADER, NODE), LEADER, leader_epoch=2, partition_epoch=1), NODE, 0)
    node.pass_ms()
    node.answer(row(0, placed(0, count=5), high_watermark=5), row(1))
    assert (one.log_end_offset, one.high_watermark) == (0, 0)
    assert node.request()[1][0] == (0, 2, -1)
    one.remove(ErrorCode.unknown_topic_or_partition)
    node.answer(row(0, placed(0, count=5), high_watermark=5), row(1))
    assert node.request()[1:] == ({}, [0])


def test_a_closed_fetcher_sends_nothing(node: FollowerNode) -> None:
    node.real.close()
    node.answer(row(0, placed(0)), row(1))
    node.pass_ms(BACKOFF_MS)
    assert (len(node.requests), node.partitions[0].log_end_offset) == (1, 0)
