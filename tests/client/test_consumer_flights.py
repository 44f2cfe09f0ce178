"""Fetches under way: what ends them, and what follows. A connection that is played by the test, no socket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from odradek.client import fetch
from odradek.client.consumer_config import ConsumerConfig
from odradek.client.consumer_flights import Flight, Flights
from odradek.client.errors import BrokerUnreachable, ConnectionLost
from odradek.client.fetch import Wanted
from odradek.core.errors import ErrorCode
from odradek.core.ids import TopicPartition
from odradek.wire import frames, schemas
from odradek.wire.schemas import Kind

T0 = TopicPartition("t", 0)


class Line:
    """A connection: keeps what is sent, and the sink of its reply."""

    closed = False

    def __init__(self) -> None:
        self.sent: list[tuple[int, bytes, Any]] = []
        self.refuses: Exception | None = None

    def version(self, api_key: int, ceiling: int | None = None) -> int:
        return 17 if ceiling is None else ceiling

    def send(self, api_key: int, version: int, message: bytes, reply: Any) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.sent.append((version, message, reply))

    def close(self) -> None:
        self.closed = True


def reply(error: ErrorCode = ErrorCode.none, session_id: int = 5) -> memoryview:
    message = {"throttle_time": 0, "error_code": error.value, "session_id": session_id, "responses": []}
    return memoryview(
        frames.response_head(fetch.FETCH, 17, 1) + schemas.encode(fetch.FETCH, 17, Kind.RESPONSE, message)
    )


class Rig:
    """Flights to broker 1, and what their owner hears."""

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
        self.flights = Flights(
            config,
            cluster,  # type: ignore[arg-type]  # as much of a cluster as is asked
            prepare=self._prepare,
            on_reply=self._on_reply,
            on_lost=lambda flight: self.heard.append("lost"),
            on_end=lambda flight: self.heard.append("end"),
            fail=self.heard.append,
        )
        self.flights._connections = SimpleNamespace(known=self._known, get=self._get, close=self.line.close)  # type: ignore[assignment]  # played here
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

    def _on_reply(self, flight: Flight, found: fetch.FetchReply) -> set[str]:
        if self.raises is not None:
            raise self.raises
        self.heard.append(found.session_id)
        return self.moved

    def begin(self) -> None:
        self.flights.begin(Flight(1, {T0: Wanted(UUID(int=7), 0, 0, 100)}, {T0: 1}, 1000, 500))

    async def sent(self, count: int) -> Any:
        while len(self.line.sent) < count:
            await asyncio.sleep(0.001)
        return self.line.sent[-1][2]

    async def ended(self) -> list[Any]:
        while self.flights.under_way:
            await asyncio.sleep(0.001)
        heard = list(self.heard)
        self.heard.clear()
        return heard


def run(story: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        rig = Rig()
        await story(rig)
        await rig.flights.close()

    asyncio.run(go())


def session_of(packed: bytes) -> tuple[int, int]:
    found, _ = schemas.decode(fetch.FETCH, 17, Kind.REQUEST, packed)
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
        assert rig.flights.under_way, "not at once"
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
        assert rig.flights.under_way
        assert await rig.ended() == [5, ("forget", {"t"}), "end"]
        rig.begin()
        assert session_of(rig.line.sent[-1][1]) == (0, 0)

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
        for task in rig.flights._departures:
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
        await rig.flights.close()
        assert sink.done()
        assert rig.line.closed
        never = asyncio.Event()

        async def opening() -> None:
            await never.wait()

        departing = Rig()
        departing.opening = opening
        departing.begin()
        await asyncio.sleep(0.01)
        await departing.flights.close()
        await asyncio.sleep(0.01)
        assert (rig.heard, departing.heard, departing.line.sent) == ([], [], [])

    run(story)
