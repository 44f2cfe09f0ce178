"""A connection without a broker and without a socket: a server with some handlers, and a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from odradek.broker.front_end.connection import Connection
from odradek.broker.front_end.router import Api, Router
from odradek.broker.limits.quotas import Quotas
from odradek.broker.limits.reply_memory import ReplyMemory
from odradek.broker.limits.request_memory import RequestMemory
from odradek.broker.loop.scheduler import Scheduler
from odradek.broker.settings.config import BrokerConfig
from odradek.wire import frames


class FakeTransport:
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.closed = self.aborted = False

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 5) if name == "peername" else ("127.0.0.1", 9092)

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, chunks: list[Any]) -> None:
        self.written += b"".join(chunks)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def replies(self) -> list[tuple[int, bytes]]:
        """(correlation id, frame) of each reply written so far."""
        return [(int.from_bytes(f[:4], "big"), f) for f in frames.FrameReader().feed(self.written)]


class Server:
    """The parts of a broker that a connection needs. ``handlers`` maps API keys to functions."""

    def __init__(self, **handlers: Any) -> None:
        self.config = SimpleNamespace(socket_request_max_bytes=1000, connections_max_idle_ms=600_000)
        self.quotas = Quotas(BrokerConfig(), lambda: 0)
        apis = {int(name[1:]): Api(int(name[1:]), (0, 3), handle) for name, handle in handlers.items()}
        self.router = Router(self, apis)

    def use(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float] = lambda: 0.0) -> None:
        """Serves on this loop. With the default clock, no connection's share of the loop ends."""
        self.scheduler = Scheduler(loop.call_soon, clock)
        self.reply_memory = ReplyMemory(lambda: 0.0)
        self.request_times = None
        self.request_memory = RequestMemory(-1, loop.call_later, loop.time)

    @property
    def most_request_bytes(self) -> int:
        return self.config.socket_request_max_bytes

    def admit(self, connection: Connection, host: str, *, is_counted: bool = False) -> bool:
        return True

    def remove(self, connection: Connection) -> None: ...

    def fast_path(self, frame: bytes) -> None: ...

    def dispatch(self, frame: bytes, connection: Connection) -> Any:
        return self.router.dispatch(frame, connection)


def connect(
    loop: asyncio.AbstractEventLoop, server: Server, kind: type[Connection] = Connection
) -> tuple[Connection, FakeTransport]:
    server.use(loop)

    async def build() -> tuple[Connection, FakeTransport]:
        connection, transport = kind(server), FakeTransport()
        connection.connection_made(transport)
        return connection, transport

    return loop.run_until_complete(build())


def turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_until_complete(asyncio.sleep(0))
    loop.run_until_complete(asyncio.sleep(0))


def heartbeat(correlation_id: int) -> bytes:
    message = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    return frames.encode_request(12, 0, correlation_id, "c", message)


def metadata(correlation_id: int) -> bytes:
    return frames.encode_request(3, 1, correlation_id, "c", {"topics": None})
