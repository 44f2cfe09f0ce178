"""Fetches under way: what ends them, and what follows. A connection that is played by the test, no socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.client.consumer.config import ConsumerConfig
from odradek.client.consumer.in_flight_requests import THROTTLE_CHECK_S, InFlightFetch, InFlightFetches
from odradek.client.errors import BrokerUnreachable, ConnectionLost, UnsupportedVersion
from odradek.core.errors import ErrorCode, KafkaError
from odradek.core.ids import TopicPartition
from odradek.net import fetch_wire
from odradek.net.fetch_wire import FetchPartition
from odradek.wire import frames, schemas
from odradek.wire.api_keys import FETCH
from odradek.wire.schemas import Kind

T0 = TopicPartition("t", 0)


class Line:
    """A connection: keeps what is sent, and the sink of its reply."""

    closed = False

    def __init__(self) -> None:
        self.rests_until_s = 0.0
        self.sent: list[tuple[int, bytes, Any]] = []
        self.refuses: Exception | None = None

    def version(self, api_key: int, ceiling: int | None = None) -> int:
        return 17 if ceiling is None else ceiling

    def send(self, api_key: int, version: int, message: bytes, reply: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((version, message, reply))

    def throttled(self, api_key: int, version: int, throttle_ms: int) -> None:
        self.rests_until_s = asyncio.get_running_loop().time() + throttle_ms / 1000

    @property
    def throttle_left_s(self) -> float:
        return max(0.0, self.rests_until_s - asyncio.get_running_loop().time())

    def close(self) -> None:
        self.closed = True


def reply(error: ErrorCode = ErrorCode.none, session_id: int = 5, throttle_ms: int = 0) -> memoryview:
    message = {"throttle_time": throttle_ms, "error_code": error.value, "session_id": session_id, "responses": []}
    return memoryview(frames.response_head(FETCH, 17, 1) + schemas.encode(FETCH, 17, Kind.RESPONSE, message))


class Rig:
    """Fetches to broker 1, and what their owner hears."""

    def __init__(self) -> None:
        self.line = Line()
        self.heard: list[Any] = []
        self.moved: set[str] = set()
        self.raises: Exception | None = None
        self.opening: Callable[[], Coroutine[Any, Any, Any]] | None = None
        config = ConsumerConfig.of({"bootstrap_servers": "127.0.0.1:1", "retry_backoff_ms": 1})
        cluster = SimpleNamespace(
            config=config.client(), forget_topics=lambda names: self.heard.append(("forget", names))
        )
        self.in_flight = InFlightFetches(
            config,
            cluster,  # type: ignore[arg-type]  # as much of a cluster as is asked
            prepare=self._prepare,
            on_reply=self._on_reply,
            on_lost=lambda fetch: self.heard.append("lost"),
            on_end=lambda fetch: self.heard.append("end"),
            fail=self.heard.append,
        )
        self.in_flight._connections = SimpleNamespace(known=self._known, get=self._get, close=self.line.close)  # type: ignore[assignment]  # played here
        self.is_open = False

    async def _prepare(self) -> None:
        await asyncio.sleep(0)

    def _known(self, node_id: int) -> Line | None:
        return self.line if self.is_open and not self.line.closed else None

    async def _get(self, node_id: int) -> Line:
        if self.opening is not None:
            await self.opening()
        self.is_open = True
        return self.line

    def _on_reply(self, fetch: InFlightFetch, found: fetch_wire.FetchReply) -> set[str]:
        if self.raises is not None:
            raise self.raises
        self.heard.append(found.session_id)
        return self.moved

    def begin(self) -> None:
        self.in_flight.begin(InFlightFetch(1, {T0: FetchPartition(UUID(int=7), 0, 0, 100)}, {T0: 1}, 1000, 500))

    async def sent(self, count: int) -> Any:
        while len(self.line.sent) < count:
            await asyncio.sleep(0.001)
        return self.line.sent[-1][2]

    async def ended(self) -> list[Any]:
        while self.in_flight.by_node:
            await asyncio.sleep(0.001)
        heard = list(self.heard)
        self.heard.clear()
        return heard


def run(story: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        rig = Rig()
        await story(rig)
        await rig.in_flight.close()

    asyncio.run(go())


def session_of(packed: bytes) -> tuple[int, int]:
    found, _ = schemas.decode(FETCH, 17, Kind.REQUEST, packed)
    return found.session_id, found.session_epoch


def test_a_reply_is_handled_and_the_next_fetch_sent_in_one_turn() -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        sink = await rig.sent(1)
        assert not sink.done()
        sink.set_result(reply())
        assert sink.done()
        assert rig.heard == [5, "end"]
        rig.begin()
        assert [session_of(packed) for _, packed, _ in rig.line.sent] == [(0, 0), (5, 1)], "no turn of the loop between"

    run(story)


def test_a_refused_session_begins_anew_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply())
        await rig.ended()
        rig.begin()
        rig.line.sent[-1][2].set_result(reply(ErrorCode.fetch_session_id_not_found, 0))
        assert rig.in_flight.by_node, "not at once"
        assert await rig.ended() == [("forget", {"t"}), "lost", "end"]
        rig.begin()
        assert session_of(rig.line.sent[-1][1]) == (0, 0)

    with caplog.at_level(logging.INFO, "odradek.consumer"):
        run(story)
    assert "broker 1 refused the fetch" in caplog.text


def test_a_moved_topic_is_looked_for_and_waited_for() -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        rig.moved = {"t"}
        (await rig.sent(1)).set_result(reply())
        assert rig.in_flight.by_node
        assert await rig.ended() == [5, ("forget", {"t"}), "end"]
        rig.begin()
        assert session_of(rig.line.sent[-1][1]) == (5, 1), "the session goes on, as in Java"

    run(story)


def test_what_failed_within_a_session_ends_it_with_the_next_fetch() -> None:
    """As in Java: the broker would keep the old one, until a thousand others have taken its place."""

    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply())
        await rig.ended()
        rig.begin()
        (await rig.sent(2)).set_exception(ConnectionLost("gone"))
        await rig.ended()
        rig.begin()
        assert session_of(rig.line.sent[-1][1]) == (5, 0)
        (await rig.sent(3)).set_result(reply(session_id=6))
        await rig.ended()
        rig.begin()
        assert session_of(rig.line.sent[-1][1]) == (6, 1)

    run(story)


@pytest.mark.parametrize("error", [ErrorCode.none, ErrorCode.invalid_fetch_session_epoch])
def test_a_broker_that_rests_is_left_alone_so_long(error: ErrorCode) -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply(error, throttle_ms=600))
        fetch = rig.in_flight.by_node[1]
        assert (fetch.max_bytes == 0) is (error is ErrorCode.none)
        heard = await rig.ended()
        assert rig.line.throttle_left_s == 0
        expected = [5, "end", "end"] if error is ErrorCode.none else [("forget", {"t"}), "lost", "end", "end"]
        assert heard == expected, "room for others at once, the next fetch later"
        assert fetch.max_bytes == 0, "its bytes are given back once"

    run(story)


def test_a_rest_is_over_when_its_connection_is() -> None:
    """A broker that restarts reads from another one at once."""

    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply(throttle_ms=3_600_000))
        await asyncio.sleep(1.2 * THROTTLE_CHECK_S)
        assert rig.in_flight.by_node, "it rests while its connection is open"
        rig.line.close()
        async with asyncio.timeout(60):
            assert await rig.ended() == [5, "end", "end"]

    run(story)


PASSING = [ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch,
           ErrorCode.fetch_session_topic_id_error, ErrorCode.not_leader_or_follower, ErrorCode.unknown_server_error,
           ErrorCode.kafka_storage_error, ErrorCode.corrupt_message, ErrorCode.unknown_topic_id]  # fmt: skip


@pytest.mark.parametrize(
    "error", [*PASSING, ErrorCode.topic_authorization_failed, ErrorCode.unsupported_version, ErrorCode.invalid_request]
)
def test_a_refusal_that_does_not_pass_goes_to_the_user(error: ErrorCode) -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply(error, 0))
        told = [one.code for one in await rig.ended() if isinstance(one, KafkaError)]
        assert told == ([] if error in PASSING else [error])

    run(story)


def test_a_broker_without_a_version_of_fetch_that_we_know_is_told_of() -> None:
    async def story(rig: Rig) -> None:
        def none_in_common(api_key: int, ceiling: int | None = None) -> int:
            raise UnsupportedVersion("only versions 0 to 3 of fetch")

        rig.line.version = none_in_common  # type: ignore[method-assign]  # played here
        rig.begin()
        heard = await rig.ended()
        assert isinstance(heard[0], UnsupportedVersion)
        assert heard[1:] == [("forget", {"t"}), "lost", "end"]

    run(story)


@pytest.mark.parametrize("opened", [False, True])
def test_a_lost_connection_is_tried_again(opened: bool) -> None:
    async def story(rig: Rig) -> None:
        if opened:
            rig.begin()
            (await rig.sent(1)).set_exception(ConnectionLost("gone"))
        else:

            async def unreachable() -> None:
                raise BrokerUnreachable("cannot reach it")

            rig.opening = unreachable
            rig.begin()
        assert await rig.ended() == [("forget", {"t"}), "lost", "end"]

    run(story)


def test_what_cannot_be_read_closes_the_connection() -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        (await rig.sent(1)).set_result(reply()[:7])
        assert rig.line.closed
        assert await rig.ended() == [("forget", {"t"}), "lost", "end"]

    run(story)


def test_errors_that_are_no_brokers_go_to_the_user() -> None:
    async def story(rig: Rig) -> None:
        broken = RuntimeError("on_reply")
        rig.raises = broken
        rig.begin()
        (await rig.sent(1)).set_result(reply())
        assert await rig.ended() == [broken, "end"]
        rig.line.refuses = TypeError("send")
        rig.begin()
        assert await rig.ended() == [rig.line.refuses, ("forget", {"t"}), "lost", "end"]
        rig.line.refuses = ConnectionLost("send")
        rig.begin()
        assert await rig.ended() == [("forget", {"t"}), "lost", "end"]

    run(story)


def test_a_cancelled_departure_is_followed_by_another() -> None:
    """On the loop of an aio.Consumer anybody may cancel every task."""

    async def story(rig: Rig) -> None:
        opens = asyncio.Event()

        async def opening() -> None:
            await opens.wait()

        rig.opening = opening
        rig.begin()
        await asyncio.sleep(0.01)
        for task in rig.in_flight._connecting:
            task.cancel()
        assert await rig.ended() == ["end"]
        opens.set()
        rig.begin()
        (await rig.sent(1)).set_result(reply())
        assert await rig.ended() == [5, "end"]

    run(story)


def test_nothing_is_heard_after_the_end() -> None:
    async def story(rig: Rig) -> None:
        rig.begin()
        sink = await rig.sent(1)
        await rig.in_flight.close()
        assert sink.done()
        assert rig.line.closed
        never = asyncio.Event()

        async def opening() -> None:
            await never.wait()

        departing = Rig()
        departing.opening = opening
        departing.begin()
        await asyncio.sleep(0.01)
        await departing.in_flight.close()
        await asyncio.sleep(0.01)
        assert (rig.heard, departing.heard, departing.line.sent) == ([], [], [])

    run(story)
