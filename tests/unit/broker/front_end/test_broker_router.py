"""From frame to reply without a socket: results and errors of handlers, order, and when a connection stops reading."""

from __future__ import annotations

import asyncio
import gc
import logging
import struct
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from support.connections import Server, connect, heartbeat, metadata, turn

from odradek.broker.front_end.connection import Connection
from odradek.broker.front_end.router import Router, served_apis
from odradek.broker.handlers import handler_files
from odradek.broker.limits.reply_memory import Hangup
from odradek.core.deferred import Deferred
from odradek.core.errors import ErrorCode, KafkaError
from odradek.wire import frames, schemas


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def code_of(frame: bytes) -> int:
    return int(frames.decode_reply(12, 0, frame)[1].error_code)


def raising(error: Exception) -> Any:
    def handle(broker: Any, context: Any, message: Any) -> Any:
        raise error

    return handle


def test_handlers_are_in_order_of_number_and_serve_existing_versions() -> None:
    router = Router(SimpleNamespace(), served_apis())
    assert [api.key for api in handler_files("client")] == list(router.apis)
    for key, api in router.apis.items():
        oldest, newest = schemas.known_versions(key)
        assert oldest <= api.oldest <= api.newest <= newest


def test_mappings_bytes_chunks_and_promises_are_replies(loop) -> None:
    later: Deferred[Any] = Deferred()
    answers = iter([{"error_code": 5}, b"\0\x06", [b"\0", memoryview(b"\x07")], later])
    connection, transport = connect(loop, Server(k12=lambda *_: next(answers)))
    connection.data_received(b"".join(heartbeat(n) for n in range(4)))
    assert [(n, code_of(f)) for n, f in transport.replies()] == [(0, 5), (1, 6), (2, 7)]
    later.resolve({"error_code": 8})
    turn(loop)
    assert code_of(transport.replies()[3][1]) == 8


def test_replies_keep_the_order_of_requests(loop) -> None:
    promises: list[Deferred[Any]] = []

    def handle(*_: Any) -> Any:
        promises.append(Deferred())
        return promises[-1]

    connection, transport = connect(loop, Server(k12=handle))
    connection.data_received(heartbeat(1) + heartbeat(2) + heartbeat(3))
    promises[2].resolve({"error_code": 3})
    promises[0].resolve({"error_code": 1})
    turn(loop)
    assert [n for n, _ in transport.replies()] == [1]
    promises[1].resolve({"error_code": 2})
    turn(loop)
    assert [(n, code_of(f)) for n, f in transport.replies()] == [(1, 1), (2, 2), (3, 3)]


def test_none_is_no_reply_and_delays_no_other_reply(loop) -> None:
    answers = iter([None, {"error_code": 0}])
    connection, transport = connect(loop, Server(k12=lambda *_: next(answers)))
    connection.data_received(heartbeat(1) + heartbeat(2))
    assert [n for n, _ in transport.replies()] == [2]


def test_a_kafka_error_becomes_its_code(loop) -> None:
    connection, transport = connect(loop, Server(k12=raising(KafkaError(ErrorCode.not_coordinator))))
    connection.data_received(heartbeat(1))
    assert code_of(transport.replies()[0][1]) == ErrorCode.not_coordinator


@pytest.mark.parametrize("at", ["once", "the first step", "a later step", "a promise"])
def test_the_memory_of_a_refused_request_is_freed_at_once(loop, at: str) -> None:
    """No garbage collection is needed. The next collection may be far away, and a request has up to 100 MB."""
    held: list[weakref.ref[Any]] = []

    def handle(broker: Any, context: Any, message: Any) -> Any:
        large = type("Large", (), {})()
        held.append(weakref.ref(large))
        if at == "once":
            raise KafkaError(ErrorCode.not_coordinator, repr(large))
        if at == "a promise":
            promise: Deferred[Any] = Deferred()
            refused = promise.map(lambda _: steps(1, large).send(None))
            promise.resolve(None)
            return refused
        return steps(3 if at == "a later step" else 0, large)

    def steps(count: int, large: Any) -> Any:
        for _ in range(count):
            paused: Deferred[Any] = Deferred()
            loop.call_soon(paused.resolve, None)
            if at == "a later step":
                yield paused
        raise KafkaError(ErrorCode.not_coordinator, repr(large))

    gc.disable()
    try:
        connection, transport = connect(loop, Server(k12=handle))
        connection.data_received(heartbeat(1))
        for _ in range(8):
            turn(loop)
        assert code_of(transport.replies()[0][1]) == ErrorCode.not_coordinator
        assert held[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("steps", [0, 3])
def test_the_memory_of_a_request_that_closes_its_connection_is_freed(loop, steps: int) -> None:
    held: list[weakref.ref[Any]] = []

    def handle(broker: Any, context: Any, message: Any) -> Any:
        large = type("Large", (), {})()
        held.append(weakref.ref(large))
        for _ in range(steps):
            paused: Deferred[Any] = Deferred()
            loop.call_soon(paused.resolve, None)
            yield paused
        raise Hangup(repr(large))

    gc.disable()
    try:
        connection, transport = connect(loop, Server(k12=handle))
        connection.data_received(heartbeat(1))
        for _ in range(8):
            turn(loop)
        assert transport.closed or transport.aborted
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_bug_is_logged_and_answered_if_the_reply_has_an_error_field(loop, caplog) -> None:
    connection, transport = connect(loop, Server(k12=raising(ZeroDivisionError("oops"))))
    with caplog.at_level(logging.ERROR):
        connection.data_received(heartbeat(1))
    assert code_of(transport.replies()[0][1]) == ErrorCode.unknown_server_error
    assert "oops" in caplog.text
    assert not transport.closed


def test_without_an_error_field_in_the_reply_the_connection_closes(loop) -> None:
    server = Server(k03=raising(ZeroDivisionError()), k12=lambda *_: {"error_code": 0})
    connection, transport = connect(loop, server)
    connection.data_received(heartbeat(1) + metadata(2) + heartbeat(3))
    assert [n for n, _ in transport.replies()] == [1], "only the request before the failed one gets a reply"
    assert transport.closed


def test_a_reply_that_cannot_be_encoded_is_an_error(loop) -> None:
    connection, transport = connect(loop, Server(k12=lambda *_: {"error_code": "nonsense"}))
    connection.data_received(heartbeat(1))
    assert code_of(transport.replies()[0][1]) == ErrorCode.unknown_server_error


def test_a_promised_reply_that_cannot_be_encoded_closes_its_connection(loop) -> None:
    promise: Deferred[Any] = Deferred()
    connection, transport = connect(loop, Server(k03=lambda *_: promise))
    connection.data_received(metadata(1))
    promise.resolve({"no": "such field"})
    assert transport.aborted


def test_a_promise_that_cannot_be_converted_to_a_reply_is_an_error(loop) -> None:
    promise: Deferred[Any] = Deferred()
    connection, transport = connect(loop, Server(k12=lambda *_: promise.map(lambda _: 1 // 0)))
    connection.data_received(heartbeat(1))
    promise.resolve(1)
    turn(loop)
    assert code_of(transport.replies()[0][1]) == ErrorCode.unknown_server_error


def test_a_hangup_closes_the_connection(loop) -> None:
    connection, transport = connect(loop, Server(k12=raising(Hangup("acks=0 failed"))))
    connection.data_received(heartbeat(1))
    assert transport.closed
    assert transport.written == b""


class FewRequests(Connection):
    __slots__ = ()
    MAX_IN_FLIGHT = 3


class FewBytes(Connection):
    __slots__ = ()
    MAX_IN_FLIGHT_BYTES = 2 * len(heartbeat(0)) - 8


class FewReadyBytes(Connection):
    __slots__ = ()
    MAX_READY_BYTES = 40


def test_reading_stops_while_too_many_requests_are_open(loop) -> None:
    promises: list[Deferred[Any]] = []

    def handle(*_: Any) -> Any:
        promises.append(Deferred())
        return promises[-1]

    connection, transport = connect(loop, Server(k12=handle), FewRequests)
    connection.data_received(b"".join(heartbeat(n) for n in range(10)))
    assert len(promises) == 3
    assert not transport.reading
    while len(transport.replies()) < 10:
        next(p for p in promises if not p.resolved).resolve({"error_code": 0})
        turn(loop)
        assert sum(not p.resolved for p in promises) <= 3
    assert [n for n, _ in transport.replies()] == list(range(10))
    assert transport.reading


def test_reading_stops_while_too_many_bytes_are_open(loop) -> None:
    promise: Deferred[Any] = Deferred()
    connection, transport = connect(loop, Server(k12=lambda *_: promise), FewBytes)
    connection.data_received(b"".join(heartbeat(n) for n in range(5)))
    assert not transport.reading
    promise.resolve({"error_code": 0})
    turn(loop)
    assert len(transport.replies()) == 5
    assert transport.reading


def test_reading_stops_while_too_many_bytes_of_replies_wait_for_an_earlier_one(loop) -> None:
    first: Deferred[Any] = Deferred()
    served: list[int] = []

    def handle(*_: Any) -> Any:
        served.append(1)
        return first if len(served) == 1 else {"error_code": 0}

    connection, transport = connect(loop, Server(k12=handle), FewReadyBytes)
    connection.data_received(b"".join(heartbeat(n) for n in range(50)))
    assert 2 < len(served) < 10
    assert not transport.reading
    first.resolve({"error_code": 0})
    turn(loop)
    assert [n for n, _ in transport.replies()] == list(range(50))
    assert transport.reading


def test_requests_wait_while_the_client_does_not_read(loop) -> None:
    served = []
    connection, transport = connect(loop, Server(k12=lambda *_: served.append(1) or {"error_code": 0}))
    connection.pause_writing()
    connection.data_received(heartbeat(1) * 5)
    assert not served
    assert not transport.reading
    connection.resume_writing()
    assert len(served) == 5
    assert transport.reading


def test_a_lost_connection_abandons_its_requests_that_wait(loop) -> None:
    promise: Deferred[Any] = Deferred()
    connection, transport = connect(loop, Server(k12=lambda *_: promise))
    abandoned = []
    connection.data_received(heartbeat(1))

    class Waiting:
        def abandon(self) -> None:
            abandoned.append(1)

    connection.parked.add(Waiting())
    connection.connection_lost(None)
    assert abandoned == [1]
    promise.resolve({"error_code": 0})
    turn(loop)
    assert transport.written == b""


def test_a_frame_that_is_too_long_closes_the_connection(loop) -> None:
    connection, transport = connect(loop, Server(k12=lambda *_: {"error_code": 0}))
    connection.data_received(heartbeat(1) + struct.pack(">i", 1001))
    assert [n for n, _ in transport.replies()] == [1]
    assert transport.closed
    connection.data_received(heartbeat(2))
    assert len(transport.replies()) == 1


def test_a_client_that_reads_a_long_reply_slowly_is_not_idle(loop: asyncio.AbstractEventLoop) -> None:
    server = Server()
    server.config.connections_max_idle_ms = 1000
    now_s, unsent = 0.0, 10
    loop.time = lambda: now_s
    connection, transport = connect(loop, server)
    transport.get_write_buffer_size = lambda: unsent
    for _ in range(5):
        unsent -= 1
        now_s += 1.5
        connection.watch_idleness()
    assert not transport.aborted
    now_s += 1.5
    connection.watch_idleness()
    assert transport.aborted, "the client has not read for longer than the idle time"


def test_an_error_message_with_a_long_name_is_shortened() -> None:
    row = {"error_code": ErrorCode.invalid_request, "error_message": "no " + "x" * 32_767, "configs": ()}
    reply = {"results": [row | {"resource_type": 2, "resource_name": "x" * 32_767}]}
    for version in (1, 4):
        packed = schemas.encode(32, version, schemas.Kind.RESPONSE, reply)
        (result,) = schemas.decode(32, version, schemas.Kind.RESPONSE, packed, 0)[0].results
        assert result.error_message == "no " + "x" * 32_764
