"""A node's connection to another node: order, time-outs, reconnections, and replies that cannot be used."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from support.simulated_loop import SimulatedLoop
from support.world import Process, World

from odradek.broker.remote.connection import RemoteNode
from odradek.broker.remote.node_request import NodeRequest, schema_request
from odradek.core.errors import ErrorCode
from odradek.wire import fetch_messages, frames, schemas
from odradek.wire.schemas import Kind

if TYPE_CHECKING:
    from kio.schema.heartbeat.v4.response import HeartbeatResponse

HEARTBEAT, VERSION = 12, 4
BODY: dict[str, object] = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
FETCH = 1


def error_of(reply: HeartbeatResponse) -> int:
    return int(reply.error_code)


BEAT = schema_request(HEARTBEAT, VERSION, BODY, error_of)


class Far:
    """The other end of a connection, and its transport here."""

    def __init__(self) -> None:
        self.protocol: asyncio.Protocol
        self.numbers: list[int] = []
        self.is_open = True
        self._reader = frames.FrameReader()

    def write(self, data: bytes) -> None:
        self.numbers += [frames.read_request_head(frame).correlation_id for frame in self._reader.feed(data)]

    def abort(self) -> None:
        self.is_open = False

    def reply(self, number: int, error: int = 0) -> None:
        body = schemas.encode(HEARTBEAT, VERSION, Kind.RESPONSE, {"throttle_time": 0, "error_code": error})
        self.protocol.data_received(frames.frame(frames.reply_head(HEARTBEAT, VERSION, number), body))

    def hang_up(self) -> None:
        self.is_open = False
        self.protocol.connection_lost(None)


class ScriptedDialer:
    """A dialer whose attempts the test ends."""

    name = "node 2"

    def __init__(self, world: World) -> None:
        self._world = world
        self.attempts_ms: list[int] = []
        self.given_up = 0
        self._make: Callable[[], asyncio.Protocol]
        self._on_failure: Callable[[str], None]

    def dial(self, make: Callable[[], asyncio.Protocol], on_failure: Callable[[str], None]) -> Callable[[], None]:
        self.attempts_ms.append(self._world.now_ms)
        self._make, self._on_failure = make, on_failure
        return self._give_up

    def _give_up(self) -> None:
        self.given_up += 1

    def reason(self, error: Exception | None) -> str:
        return str(error or "it has closed the connection")

    def make(self) -> Any:
        return self._make()

    def accept(self) -> Far:
        far = Far()
        far.protocol = self._make()
        far.protocol.connection_made(far)
        return far

    def refuse(self) -> None:
        self._on_failure("Connection refused")


class Near:
    """A ``RemoteNode`` and what it has answered: name of the request → the error code of the reply, or None."""

    def __init__(self, **options: Any) -> None:
        self.world = World()
        self.dialer = ScriptedDialer(self.world)
        loop = SimulatedLoop(self.world, Process(self.world))
        self.node = RemoteNode(loop, self.dialer, client_id="node-1", **options)
        self.answers: list[tuple[str, int | None]] = []

    def send(self, name: str, timeout_ms: int = 5_000, *, repeats: bool = False) -> None:
        self.node.send(BEAT, timeout_ms, lambda error: self.answers.append((name, error)), repeats=repeats)


@pytest.fixture
def near() -> Near:
    return Near()


def test_requests_wait_for_the_connection_and_replies_come_in_their_order(near: Near) -> None:
    near.send("a")
    near.send("b")
    assert len(near.dialer.attempts_ms) == 1
    far = near.dialer.accept()
    near.send("c")
    assert far.numbers == [1, 2, 3]
    for number, error in zip(far.numbers, (0, 25, 27), strict=True):
        far.reply(number, error)
    assert near.answers == [("a", 0), ("b", 25), ("c", 27)]
    near.world.advance(60_000)
    assert near.dialer.attempts_ms == [near.dialer.attempts_ms[0]], "time-outs of answered requests change nothing"


def test_attempts_follow_one_another_with_a_growing_pause_and_the_request_waits(near: Near) -> None:
    pauses: list[int] = []
    near.send("a", timeout_ms=20_000)
    for _ in range(7):
        before = len(near.dialer.attempts_ms)
        near.dialer.refuse()
        started = near.world.now_ms
        while len(near.dialer.attempts_ms) == before:
            near.world.advance(1)
        pauses.append(near.world.now_ms - started)
    assert pauses == [50, 100, 200, 400, 800, 1000, 1000]
    far = near.dialer.accept()
    far.reply(far.numbers[0])
    assert near.answers == [("a", 0)]


def test_an_attempt_that_hangs_ends_and_another_follows(near: Near) -> None:
    near.send("a", timeout_ms=30_000)
    near.world.advance(10_100)
    assert (len(near.dialer.attempts_ms), near.dialer.given_up) == (2, 1)


def test_a_request_that_waits_too_long_is_not_sent_later(near: Near) -> None:
    near.send("a", timeout_ms=500)
    near.send("b", timeout_ms=5_000)
    near.dialer.refuse()
    near.world.advance(600)
    assert near.answers == [("a", None)]
    assert len(near.dialer.accept().numbers) == 1


def test_a_missing_reply_ends_the_connection_with_all_its_requests(near: Near) -> None:
    near.send("a", timeout_ms=1_000)
    far = near.dialer.accept()
    near.send("b", timeout_ms=9_000)
    near.send("c", timeout_ms=9_000, repeats=True)
    near.world.advance(1_000)
    assert (far.is_open, near.answers) == (False, [("a", None), ("b", None)])
    far.reply(far.numbers[0])
    near.world.advance(100)
    again = near.dialer.accept()
    again.reply(*again.numbers)
    assert near.answers == [("a", None), ("b", None), ("c", 0)]


def test_a_repeated_request_ends_at_its_time_out(near: Near) -> None:
    near.send("a", timeout_ms=3_000, repeats=True)
    for _ in range(4):
        far = near.dialer.accept()
        assert len(far.numbers) == 1
        far.hang_up()
        near.world.advance(400)
    near.world.advance(3_000)
    assert near.answers == [("a", None)]
    near.world.advance(60_000)
    assert len(near.dialer.attempts_ms) <= 6, "without requests there are no attempts"


def test_a_repeated_request_without_a_reply_is_not_sent_after_its_time(near: Near) -> None:
    near.send("a", timeout_ms=1_000, repeats=True)
    near.dialer.accept()
    near.world.advance(2_000)
    assert near.answers == [("a", None)]
    near.send("b")
    near.world.advance(2_000)
    assert len(near.dialer.accept().numbers) == 1


def test_a_node_that_accepts_and_hangs_up_is_not_dialled_in_a_hurry(near: Near) -> None:
    near.send("a", timeout_ms=4_000, repeats=True)
    attempts = 0
    while not near.answers:
        if len(near.dialer.attempts_ms) > attempts:
            attempts = len(near.dialer.attempts_ms)
            near.dialer.accept().hang_up()
        near.world.advance(5)
    assert attempts <= 8


def test_an_idle_connection_that_is_closed_is_opened_at_the_next_request(near: Near) -> None:
    near.send("a")
    far = near.dialer.accept()
    far.reply(1)
    far.hang_up()
    near.world.advance(5_000)
    assert len(near.dialer.attempts_ms) == 1
    near.send("b")
    assert near.dialer.attempts_ms[1:] == [near.world.now_ms]


@pytest.mark.parametrize(
    "data",
    [
        frames.frame(b"\0\0\0\7\0", bytes(6)),  # another number
        frames.frame(b"\0\0\0\1\0", b"\0"),  # a message that is cut
        frames.frame(b"\0\0"),
        (1 << 20).to_bytes(4, "big"),  # longer than the limit
        b"\xff\xff\xff\xff",
    ],
)  # fmt: skip
def test_what_is_no_reply_ends_the_connection(data: bytes) -> None:
    near = Near(most_bytes=1000)
    near.send("a")
    far = near.dialer.accept()
    far.protocol.data_received(data)
    assert (far.is_open, near.answers) == (False, [("a", None)])


def test_a_reply_without_a_request_ends_the_connection(near: Near) -> None:
    near.send("a")
    far = near.dialer.accept()
    far.reply(1)
    far.reply(2)
    assert (far.is_open, near.answers) == (False, [("a", 0)])


def raising(error: int | None) -> None:
    raise RuntimeError(error)


def fetch_of(version: int, count: int) -> NodeRequest[fetch_messages.FetchReply]:
    """A fetch of ``count`` partitions that is packed and read by ``wire/fetch_messages``, without kio."""
    rows = {(f"t{index}", 0): fetch_messages.FetchPartition(None, 7, 1, 1 << 20) for index in range(count)}
    packed = fetch_messages.pack(
        version, fetch_messages.Limits(500, 1, 1 << 20, 0), fetch_messages.FetchRequestData(rows)
    )
    return NodeRequest(
        FETCH, version, packed, lambda data: fetch_messages.parse_reply(version, memoryview(data), count)
    )  # fmt: skip


def fetch_reply(version: int, records: bytes) -> bytes:
    row = {
        "partition_index": 0, "error_code": ErrorCode.none, "high_watermark": 9, "last_stable_offset": 9,
        "log_start_offset": 0, "aborted_transactions": None, "preferred_read_replica": -1, "records": records,
    }  # fmt: skip
    topic = {"topic": "t0", "partitions": [row]}
    message = {"throttle_time": 0, "error_code": ErrorCode.none, "session_id": 0, "responses": [topic]}
    return schemas.encode(FETCH, version, Kind.RESPONSE, message)


@pytest.mark.parametrize("version", [11, 12])
def test_a_request_reads_its_reply_itself_beside_those_that_a_schema_reads(near: Near, version: int) -> None:
    read: list[fetch_messages.FetchReply | None] = []
    records = random.Random(version).randbytes(100_000)
    near.send("a")
    near.node.send(fetch_of(version, 1), 5_000, read.append)
    near.send("b")
    far = near.dialer.accept()
    far.reply(1, 25)
    far.protocol.data_received(frames.frame(frames.reply_head(FETCH, version, 2), fetch_reply(version, records)))
    far.reply(3, 27)
    (reply,) = read
    assert reply is not None
    (part,) = reply.partitions
    assert (part.topic, part.partition, part.high_watermark, bytes(part.records)) == ("t0", 0, 9, records)
    assert near.answers == [("a", 25), ("b", 27)]


def test_a_reply_that_its_request_cannot_read_ends_the_connection(near: Near) -> None:
    """The request that is repeated is sent again, and its next reply is read."""
    read: list[fetch_messages.FetchReply | None] = []
    near.node.send(fetch_of(12, 1), 5_000, read.append)
    near.node.send(fetch_of(12, 1), 5_000, read.append, repeats=True)
    far = near.dialer.accept()
    body = fetch_reply(12, b"abc")
    far.protocol.data_received(frames.frame(frames.reply_head(FETCH, 12, 1), body[:-6]))
    assert (far.is_open, read) == (False, [None])
    near.world.advance(100)
    again = near.dialer.accept()
    again.protocol.data_received(frames.frame(frames.reply_head(FETCH, 12, *again.numbers), body))
    assert read[1] is not None
    assert bytes(read[1].partitions[0].records) == b"abc"


def test_an_error_of_the_caller_does_not_end_the_connection(near: Near, caplog: pytest.LogCaptureFixture) -> None:
    near.node.send(BEAT, 1_000, raising)
    near.send("b")
    far = near.dialer.accept()
    far.reply(1)
    far.reply(2)
    assert (far.is_open, near.answers) == (True, [("b", 0)])
    assert "the reply of another node to a request for API 12 could not be used" in caplog.text


def test_the_end_answers_all_requests_and_refuses_late_connections(near: Near) -> None:
    near.send("a")
    near.node.close()
    assert (near.answers, near.dialer.given_up) == ([("a", None)], 1)
    assert not near.dialer.accept().is_open
    near.send("b")
    near.world.settle()
    assert near.answers == [("a", None), ("b", None)]
    assert len(near.dialer.attempts_ms) == 1


def test_abandoned_requests_end_and_later_ones_have_another_connection(near: Near) -> None:
    near.send("a")
    first = near.dialer.accept()
    near.send("b")
    near.node.abandon()
    assert (near.answers, first.is_open) == ([("a", None), ("b", None)], False)
    near.send("c")
    assert len(near.dialer.attempts_ms) == 2, "at once"
    first.reply(1, 25)
    second = near.dialer.accept()
    second.reply(second.numbers[0], 7)
    assert near.answers[2:] == [("c", 7)], "the reply to an abandoned request is not read"


def test_requests_that_wait_for_a_connection_can_be_abandoned(near: Near) -> None:
    near.send("a")
    near.node.abandon()
    assert near.answers == [("a", None)]
    near.send("b")
    far = near.dialer.accept()
    assert len(far.numbers) == 1
    far.reply(far.numbers[0])
    assert near.answers[1:] == [("b", 0)]


def test_a_node_that_is_starting_is_not_named(near: Near, caplog: pytest.LogCaptureFixture) -> None:
    near.send("a")
    for _ in range(3):
        near.dialer.refuse()
        near.world.advance(200)
    far = near.dialer.accept()
    far.reply(1)
    assert near.answers == [("a", 0)]
    assert [record.getMessage() for record in caplog.records] == []


def test_an_outage_is_logged_once_and_its_end_too(near: Near, caplog: pytest.LogCaptureFixture) -> None:
    near.send("a")
    for _ in range(5):
        near.dialer.refuse()
        near.world.advance(900)
    far = near.dialer.accept()
    far.reply(1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines == ["node 2 cannot be reached: Connection refused", "node 2 can be reached again"]


def test_a_connection_whose_session_ends_is_replaced_when_nothing_is_in_flight(near: Near) -> None:
    """A broker logs in again in time, and no request is lost by that (KIP-368)."""
    near.send("a", timeout_ms=30_000)
    far = Far()
    far.protocol = near.dialer.make()
    far.protocol.limit_session(near.world.now_ms / 1000 + 10)
    far.protocol.connection_made(far)
    near.world.advance(9_000)
    near.send("b", timeout_ms=20_000)
    assert far.numbers == [1, 2]
    near.world.advance(2_000)
    near.send("c", timeout_ms=20_000)
    assert far.numbers == [1, 2, 3], "a request in flight keeps the connection"
    for number in far.numbers:
        far.reply(number)
    near.send("d")
    assert (far.is_open, len(near.dialer.attempts_ms)) == (False, 2)
    again = near.dialer.accept()
    again.reply(*again.numbers)
    assert [name for name, error in near.answers if error == 0] == ["a", "b", "c", "d"]


def test_bytes_of_another_protocol_are_named_as_that(near: Near, caplog: pytest.LogCaptureFixture) -> None:
    near.send("a", timeout_ms=3_000, repeats=True)
    for _ in range(6):
        far = near.dialer.accept()
        far.protocol.data_received(bytes.fromhex("15030300020246"))  # an alert of TLS
        near.world.advance(1_100)
    assert sum("perhaps its listener has another protocol" in line for line in caplog.messages) == 1
