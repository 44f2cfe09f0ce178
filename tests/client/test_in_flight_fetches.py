"""How fetches in flight end, and what the client does next. The connection is a fake without a socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.client.consumer.in_flight_fetches import THROTTLE_CHECK_S, InFlightFetch, InFlightFetches
from odradek.client.errors import BrokerUnreachable, ConnectionLost, UnsupportedVersion
from odradek.client.group.config import ConsumerConfig
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.net.transports import Address
from odradek.wire import fetch_messages, frames, schemas
from odradek.wire.api_keys import FETCH
from odradek.wire.fetch_messages import FetchPartition
from odradek.wire.schemas import Kind

T0 = TopicPartition("t", 0)


class FakeConnection:
    """A connection that keeps the sent requests and the callbacks for their replies."""

    address = Address("127.0.0.1", 1)
    closed = False

    def __init__(self) -> None:
        self.throttled_until_s = 0.0
        self.sent: list[tuple[int, bytes, Any]] = []
        self.send_error: Exception | None = None

    def version(self, api_key: int, ceiling: int | None = None) -> int:
        return 17 if ceiling is None else ceiling

    def send(self, api_key: int, version: int, message: bytes, reply: Any, *, held_s: float) -> None:
        if self.send_error is not None:
            raise self.send_error
        self.sent.append((version, message, reply))

    def note_throttle_time(self, api_key: int, version: int, throttle_ms: int) -> None:
        self.throttled_until_s = asyncio.get_running_loop().time() + throttle_ms / 1000

    @property
    def throttle_left_s(self) -> float:
        return max(0.0, self.throttled_until_s - asyncio.get_running_loop().time())

    def close(self) -> None:
        self.closed = True


def reply(error: ErrorCode = ErrorCode.none, session_id: int = 5, throttle_ms: int = 0) -> memoryview:
    message = {"throttle_time": throttle_ms, "error_code": error.value, "session_id": session_id, "responses": []}
    return memoryview(frames.reply_head(FETCH, 17, 1) + schemas.encode(FETCH, 17, Kind.RESPONSE, message))


class Harness:
    """Fetches to broker 1, and the callbacks that their owner gets."""

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.events: list[Any] = []
        self.outdated: set[str] = set()
        self.on_reply_error: Exception | None = None
        self.opening: Callable[[], Coroutine[Any, Any, Any]] | None = None
        config = ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", "retry_backoff_ms": 1})
        cluster = SimpleNamespace(
            config=config.client(), forget_topics=lambda names: self.events.append(("forget", names))
        )
        self.in_flight = InFlightFetches(
            config,
            cluster,  # the attributes that it uses
            prepare=self._prepare,
            on_reply=self._on_reply,
            on_lost=lambda fetch: self.events.append("lost"),
            on_end=lambda fetch: self.events.append("end"),
            fail=self.events.append,
            connections=SimpleNamespace(known=self._known, get=self._get, close=self.connection.close),  # a fake
        )
        self.is_open = False

    async def _prepare(self) -> None:
        await asyncio.sleep(0)

    def _known(self, node_id: int) -> FakeConnection | None:
        return self.connection if self.is_open and not self.connection.closed else None

    async def _get(self, node_id: int) -> FakeConnection:
        if self.opening is not None:
            await self.opening()
        self.is_open = True
        return self.connection

    def _on_reply(self, fetch: InFlightFetch, found: fetch_messages.FetchReply) -> set[str]:
        if self.on_reply_error is not None:
            raise self.on_reply_error
        self.events.append(found.session_id)
        return self.outdated

    def begin(self) -> None:
        self.in_flight.begin(InFlightFetch(1, {T0: FetchPartition(UUID(int=7), 0, 0, 100)}, {T0: 1}, 1000, 500))

    async def sent(self, count: int) -> Any:
        while len(self.connection.sent) < count:
            await asyncio.sleep(0.001)
        return self.connection.sent[-1][2]

    async def ended(self) -> list[Any]:
        while self.in_flight.by_node:
            await asyncio.sleep(0.001)
        events = list(self.events)
        self.events.clear()
        return events


def run(scenario: Callable[[Harness], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        harness = Harness()
        async with asyncio.timeout(60):  # a request that is never sent is a failure, not a test without end
            await scenario(harness)
        await harness.in_flight.close()

    asyncio.run(go())


def session_of(packed: bytes) -> tuple[int, int]:
    found, _ = schemas.decode(FETCH, 17, Kind.REQUEST, packed)
    return found.session_id, found.session_epoch


def test_a_reply_is_handled_and_the_next_fetch_sent_in_one_iteration_of_the_loop() -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        callback = await harness.sent(1)
        assert not callback.done()
        callback.set_result(reply())
        assert callback.done()
        assert harness.events == [5, "end"]
        harness.begin()
        assert [session_of(packed) for _, packed, _ in harness.connection.sent] == [(0, 0), (5, 1)], "in one iteration"

    run(scenario)


def test_a_refused_fetch_session_restarts_after_a_backoff(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply())
        await harness.ended()
        harness.begin()
        harness.connection.sent[-1][2].set_result(reply(ErrorCode.fetch_session_id_not_found, 0))
        assert harness.in_flight.by_node, "not at once: there is a backoff"
        assert await harness.ended() == [("forget", {"t"}), "lost", "end"]
        harness.begin()
        assert session_of(harness.connection.sent[-1][1]) == (0, 0)

    with caplog.at_level(logging.INFO, "odradek.consumer"):
        run(scenario)
    assert "broker 1 refused the fetch" in caplog.text


def test_after_a_changed_leader_the_metadata_is_dropped_and_the_next_fetch_waits() -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        harness.outdated = {"t"}
        (await harness.sent(1)).set_result(reply())
        assert harness.in_flight.by_node
        assert await harness.ended() == [5, ("forget", {"t"}), "end"]
        harness.begin()
        assert session_of(harness.connection.sent[-1][1]) == (5, 1), "the session continues, as in Java"

    run(scenario)


def test_after_an_error_within_a_session_the_next_fetch_ends_the_session() -> None:
    """As in Java. Otherwise the broker would keep the old session until a thousand others displace it."""

    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply())
        await harness.ended()
        harness.begin()
        (await harness.sent(2)).set_exception(ConnectionLost("closed"))
        await harness.ended()
        harness.begin()
        assert session_of(harness.connection.sent[-1][1]) == (5, 0)
        (await harness.sent(3)).set_result(reply(session_id=6))
        await harness.ended()
        harness.begin()
        assert session_of(harness.connection.sent[-1][1]) == (6, 1)

    run(scenario)


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.invalid_fetch_session_epoch])
def test_no_fetch_is_sent_during_the_throttle_time(error: ErrorCode) -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply(error, throttle_ms=600))
        fetch = harness.in_flight.by_node[1]
        assert (fetch.max_bytes == 0) is (error is ErrorCode.none)
        events = await harness.ended()
        assert harness.connection.throttle_left_s == 0
        expected = [5, "end", "end"] if error is ErrorCode.none else [("forget", {"t"}), "lost", "end", "end"]
        assert events == expected, "the memory of the fetch is freed at once; the next fetch waits"
        assert fetch.max_bytes == 0, "the memory of the fetch is freed only once"

    run(scenario)


def test_the_throttle_time_ends_with_its_connection() -> None:
    """A broker that restarts reads from the new connection at once."""

    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply(throttle_ms=3_600_000))
        await asyncio.sleep(1.2 * THROTTLE_CHECK_S)
        assert harness.in_flight.by_node, "the broker throttles while the connection is open"
        harness.connection.close()
        async with asyncio.timeout(60):
            assert await harness.ended() == [5, "end", "end"]

    run(scenario)


TRANSIENT = [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch,
           ErrorCode.fetch_session_topic_id_error, ErrorCode.not_leader_or_follower, ErrorCode.unknown_server_error,
           ErrorCode.kafka_storage_error, ErrorCode.corrupt_message, ErrorCode.unknown_topic_id]  # fmt: skip


@pytest.mark.parametrize(
    "error",
    [*TRANSIENT, ErrorCode.topic_authorization_failed, ErrorCode.unsupported_version, ErrorCode.invalid_request],
)
def test_only_non_retriable_errors_are_reported_to_the_caller(error: ErrorCode) -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply(error, 0))
        codes = [one.code for one in await harness.ended() if isinstance(one, KafkaError)]
        assert codes == ([] if error in TRANSIENT else [error])

    run(scenario)


def test_a_broker_without_a_known_fetch_version_is_reported_to_the_caller() -> None:
    async def scenario(harness: Harness) -> None:
        def none_in_common(api_key: int, ceiling: int | None = None) -> int:
            raise UnsupportedVersion("only versions 0 to 3 of fetch")

        harness.connection.version = none_in_common  # a fake
        harness.begin()
        events = await harness.ended()
        assert isinstance(events[0], UnsupportedVersion)
        assert events[1:] == [("forget", {"t"}), "lost", "end"]

    run(scenario)


@pytest.mark.parametrize("opened", [False, True])
def test_after_a_lost_connection_the_metadata_is_dropped(opened: bool) -> None:
    async def scenario(harness: Harness) -> None:
        if opened:
            harness.begin()
            (await harness.sent(1)).set_exception(ConnectionLost("closed"))
        else:

            async def unreachable() -> None:
                raise BrokerUnreachable("cannot reach it")

            harness.opening = unreachable
            harness.begin()
        assert await harness.ended() == [("forget", {"t"}), "lost", "end"]

    run(scenario)


def test_an_unreadable_reply_closes_the_connection() -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        (await harness.sent(1)).set_result(reply()[:7])
        assert harness.connection.closed
        assert await harness.ended() == [("forget", {"t"}), "lost", "end"]

    run(scenario)


def test_errors_of_the_client_itself_are_reported_to_the_caller() -> None:
    async def scenario(harness: Harness) -> None:
        broken = RuntimeError("on_reply")
        harness.on_reply_error = broken
        harness.begin()
        (await harness.sent(1)).set_result(reply())
        assert await harness.ended() == [broken, "end"]
        harness.connection.send_error = TypeError("send")
        harness.begin()
        assert await harness.ended() == [harness.connection.send_error, ("forget", {"t"}), "lost", "end"]
        harness.connection.send_error = ConnectionLost("send")
        harness.begin()
        assert await harness.ended() == [("forget", {"t"}), "lost", "end"]

    run(scenario)


def test_after_a_cancelled_connect_the_next_fetch_connects() -> None:
    """On the loop of an aio.Consumer, the caller may cancel every task."""

    async def scenario(harness: Harness) -> None:
        opens = asyncio.Event()

        async def opening() -> None:
            await opens.wait()

        harness.opening = opening
        harness.begin()
        await asyncio.sleep(0.01)
        for task in harness.in_flight.connecting:
            task.cancel()
        assert await harness.ended() == ["end"]
        opens.set()
        harness.begin()
        (await harness.sent(1)).set_result(reply())
        assert await harness.ended() == [5, "end"]

    run(scenario)


def test_there_are_no_callbacks_after_a_close() -> None:
    async def scenario(harness: Harness) -> None:
        harness.begin()
        callback = await harness.sent(1)
        await harness.in_flight.close()
        assert callback.done()
        assert harness.connection.closed
        never = asyncio.Event()

        async def opening() -> None:
            await never.wait()

        connecting = Harness()
        connecting.opening = opening
        connecting.begin()
        await asyncio.sleep(0.01)
        await connecting.in_flight.close()
        await asyncio.sleep(0.01)
        assert (harness.events, connecting.events, connecting.connection.sent) == ([], [], [])

    run(scenario)
