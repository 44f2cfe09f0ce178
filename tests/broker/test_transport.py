"""Parts of files in replies: a client gets them complete and in order, however it reads, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop
from support.connections import Server, heartbeat

from odradek.broker.front_end import transport as transport_module
from odradek.broker.front_end.connection import Connection
from odradek.core.deferred import Deferred
from odradek.storage.disk.files import OsFiles
from odradek.storage.segments.slice import Slice
from odradek.wire.chunks import FILE_FROM_BYTES

FILE_BYTES = 24 << 20
TRANSPORTS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}


@pytest.fixture(scope="module")
def content() -> bytes:
    return Random(4).randbytes(FILE_BYTES)


class Broker:
    """Connections in a separate thread. ``answer`` returns the parts of each reply."""

    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = new_loop()
        self.connections: list[Connection] = []
        self.answer: Callable[[], Any] = lambda: [b""]
        self.lost = threading.Event()
        server = Server(k12=lambda *_: self.answer())
        server.use(self.loop)
        server.remove = lambda _: self.lost.set()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

        def build() -> Connection:
            self.connections.append(Connection(server))
            return self.connections[-1]

        self._listening = self.run(self.loop.create_server(build, "127.0.0.1", 0))
        self.port = self._listening.sockets[0].getsockname()[1]

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(20)

    def do(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            return function()

        return self.run(call())

    def connect(self, receive_bytes: int = 0) -> socket.socket:
        client = socket.socket()
        if receive_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(20)
        client.connect(("127.0.0.1", self.port))
        return client

    def close(self) -> None:
        self.do(self._listening.close)
        for connection in self.connections:
            self.do(connection.abort)
        self.do(lambda: None)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


@pytest.fixture(params=list(TRANSPORTS))
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    running = Broker(TRANSPORTS[request.param])
    yield running
    running.close()


@pytest.fixture
def whole(tmp_path: Path, content: bytes) -> Slice:
    """The file as one part. Like the files of a log, it is closed when its last part is released."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    return Slice(OsFiles().open(path), 0, FILE_BYTES, 0)


def part(whole: Slice, position: int, size: int, failures: list[OSError] | None = None) -> Slice:
    return Slice(whole.file, position, size, 0, None if failures is None else failures.append)


def reply(client: socket.socket) -> tuple[int, bytes]:
    """The next reply: its correlation id and the rest."""
    size, correlation_id = struct.unpack(">ii", exactly(client, 8))
    return correlation_id, exactly(client, size - 4)


def exactly(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = client.recv(min(size - len(data), 1 << 16))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += piece
    return bytes(data)


def ended(client: socket.socket) -> bool:
    """Waits for the end of the connection, and discards all bytes before it."""
    with contextlib.suppress(ConnectionError):
        while client.recv(1 << 20):
            pass
    return True


def test_files_and_bytes_keep_their_order_through_a_slow_reader(broker, whole, content) -> None:
    sizes = [100, 70_000, 9 << 20, 3, 1 << 20, 65_536, 5 << 20, 50]
    answers: list[tuple[list[Any], bytes]] = []
    at = 0
    for size in sizes:
        body = content[at : at + size]
        is_file = size >= FILE_FROM_BYTES
        answers.append(([b"head", part(whole, at, size) if is_file else body, b"tail"], b"head" + body + b"tail"))
        at += size
    ready = iter([chunks for chunks, _ in answers])
    broker.answer = lambda: next(ready)
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(b"".join(heartbeat(n) for n in range(len(sizes))))
        for number, (_, expected) in enumerate(answers):
            received, data = reply(client)
            assert received == number
            assert hashlib.sha1(data).digest() == hashlib.sha1(expected).digest(), number


def test_a_file_waits_for_earlier_bytes_in_the_transport(broker, whole, content) -> None:
    """A reply of six megabytes fills the socket and the transport. The file of the next reply must follow it."""
    plain = content[: 6 << 20]
    promises: list[Deferred[Any]] = [Deferred(), Deferred()]
    ready = iter(promises)
    broker.answer = lambda: next(ready)
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(heartbeat(1) + heartbeat(2))
        while len(broker.connections[0].slots if broker.connections else ()) < 2:
            broker.do(lambda: None)
        broker.do(lambda: promises[0].resolve([plain]))
        broker.do(lambda: None)
        assert broker.do(broker.connections[0].transport.get_write_buffer_size) > 0
        broker.do(lambda: promises[1].resolve([b"h", part(whole, 6 << 20, 8 << 20), b"t"]))
        assert broker.do(lambda: broker.connections[0].busy)
        assert reply(client) == (1, plain)
        assert reply(client) == (2, b"h" + content[6 << 20 : 14 << 20] + b"t")
        broker.answer = lambda: [b"after"]
        client.sendall(heartbeat(3))
        assert reply(client) == (3, b"after")
    assert broker.lost.wait(10)


def test_requests_wait_while_a_file_waits(broker, whole) -> None:
    served = []
    broker.answer = lambda: served.append(1) or [part(whole, 0, FILE_BYTES)]
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(heartbeat(1) * 50)
        exactly(client, 1000)
        assert broker.do(lambda: len(served)) <= 2
        assert broker.do(broker.connections[0].transport.is_reading) is False


def test_a_removed_segment_is_sent_to_its_end(broker, whole, content) -> None:
    broker.answer = lambda: [part(whole, 0, FILE_BYTES)]
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(heartbeat(1))
        exactly(client, 8)
        whole.file.path.unlink()
        whole.file = None  # the segment drops its reference; the part that is being sent keeps one
        assert exactly(client, FILE_BYTES) == content


def test_a_truncated_segment_closes_the_connection(broker, whole) -> None:
    failures: list[OSError] = []
    broker.answer = lambda: [part(whole, 0, FILE_BYTES, failures)]
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(heartbeat(1))
        exactly(client, 8)
        os.truncate(whole.file.path, 1 << 20)
        assert ended(client)
    assert broker.lost.wait(10)
    assert not failures


@pytest.mark.parametrize("code", [errno.EIO, errno.ECONNRESET])
def test_a_read_error_is_reported_to_the_log_and_a_lost_client_is_not(broker, whole, monkeypatch, code) -> None:
    def failing(*_: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(transport_module.os, "sendfile", failing)
    failures: list[OSError] = []
    broker.answer = lambda: [part(whole, 0, FILE_BYTES, failures)]
    with broker.connect() as client:
        client.sendall(heartbeat(1))
        assert ended(client)
    assert broker.lost.wait(10)
    assert [error.errno for error in failures] == [errno.EIO] * (code == errno.EIO)


def test_a_client_that_disconnects_during_a_reply_leaves_no_descriptor(broker, whole) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    broker.answer = lambda: [part(whole, 0, FILE_BYTES)]
    before = descriptors()
    for _ in range(3):
        broker.lost.clear()
        client = broker.connect(receive_bytes=8192)
        client.sendall(heartbeat(1) * 3)
        exactly(client, 1000)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert broker.lost.wait(10)
    broker.do(lambda: None)
    assert descriptors() <= before


def test_a_close_waits_for_a_file_that_is_being_sent(broker, whole, content) -> None:
    broker.answer = lambda: [b"h", part(whole, 0, FILE_BYTES), b"t"]
    with broker.connect(receive_bytes=8192) as client:
        client.sendall(heartbeat(1))
        exactly(client, 9)
        broker.do(broker.connections[0].close)
        assert exactly(client, FILE_BYTES + 1) == content + b"t"
        assert client.recv(1) == b""


def test_other_clients_are_served_while_a_file_is_sent(broker, whole, monkeypatch) -> None:
    monkeypatch.setattr(transport_module, "TICK_BYTES", 1 << 16)
    real, order = os.sendfile, []

    def counted(out: int, source: int, position: int, size: int) -> int:
        order.append("file")
        return real(out, source, position, min(size, 1 << 16))

    monkeypatch.setattr(transport_module.os, "sendfile", counted)
    broker.answer = lambda: broker.loop.call_soon(order.append, "other") and [part(whole, 0, 1 << 20)]
    with broker.connect() as client:
        client.sendall(heartbeat(1))
        assert len(reply(client)[1]) == 1 << 20
    assert order.index("other") <= 1
