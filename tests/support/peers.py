"""A broker on this process's loop, and clients with a socket or without one. Some clients read no replies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from unittest.mock import patch

import uvloop

from odradek.broker.front_end.connection import Connection
from odradek.broker.loop import scheduler
from odradek.broker.server import BrokerServer
from odradek.broker.settings.config import BrokerConfig
from odradek.wire import frames, schemas
from support.brokers import create_offsets_topic

S = TypeVar("S")


class Peer:
    """The client's end of a connection: a transport without a socket. With ``takes`` False it reads nothing."""

    def __init__(self, broker: BrokerServer) -> None:
        self.written: list[bytes] = []
        self.ended = False
        self.takes = True
        self.connection = Connection(broker)
        self.connection.connection_made(self)

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.1", 5) if name in ("peername", "sockname") else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0 if self.takes else sum(map(len, self.written))

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, chunks: list[bytes]) -> None:
        self.written += chunks
        if not self.takes:
            self.connection.pause_writing()

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        if not self.ended:
            self.ended = True
            self.connection.connection_lost(None)

    abort = close

    async def ask(self, api_key: int, version: int, message: dict[str, Any] | bytes) -> Any:
        """The decoded reply, or None if the connection is closed instead."""
        data = await self.exchange(frames.encode_request(api_key, version, 7, "c", message))
        if data is None:
            return None
        correlation_id, reply = frames.decode_reply(api_key, version, data)
        assert correlation_id == 7
        return reply

    async def exchange(self, request: bytes) -> bytes | None:
        self.written.clear()
        self.connection.data_received(request)
        await until(lambda: bool(self.written) or self.ended)
        return b"".join(self.written)[4:] if self.written else None


class Client:
    """A raw connection over a socket, on the loop of its broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, broker: BrokerServer) -> Self:
        return cls(*await asyncio.open_connection(*broker.address))

    async def reply(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    async def ask(self, key: int, version: int, message: dict[str, Any]) -> Any:
        self.writer.write(frames.encode_request(key, version, 1, "c", message))
        return frames.decode_reply(key, version, await self.reply())[1]


async def until(condition: Callable[[], bool]) -> None:
    """Waits for a condition. Checks it in each turn of the loop at first, then each millisecond, so
    that threads can run."""
    async with asyncio.timeout(60):
        looks = 0
        while not condition():
            looks += 1
            await asyncio.sleep(0 if looks < 10_000 else 0.001)


@asynccontextmanager
async def serving(directory: Path, **settings: str) -> AsyncIterator[BrokerServer]:
    """A broker with one partition for group offsets, and topic ``t`` with two partitions."""
    texts = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"} | settings
    broker = BrokerServer(BrokerConfig(texts), directory, ("127.0.0.1", 0))
    await broker.start()
    broker.create_topic("t", partition_count=2)
    create_offsets_topic(broker)
    await until(lambda: broker.groups.shard(0) is not None)
    try:
        yield broker
    finally:
        for connection in tuple(broker.connections):
            connection.abort()
        await broker.abandon()


def run_alone(
    scenario: Callable[[S], Awaitable[object]],
    directory: Path,
    set_up: Callable[[BrokerServer], S],
    *,
    partitions: int,
    **settings: str,
) -> None:
    """Runs a coroutine function with what ``set_up`` makes of a broker with topic ``t``, on a loop of its own.

    A share of the loop lasts for an hour. So no request waits for the shares of other requests.
    """

    async def whole() -> None:
        broker = BrokerServer(BrokerConfig(settings), directory, ("127.0.0.1", 0))
        await broker.start()
        broker.create_topic("t", partition_count=partitions)
        try:
            setup = set_up(broker)
            async with asyncio.timeout(30):
                await scenario(setup)
        finally:
            for connection in tuple(broker.connections):
                connection.abort()
            await broker.abandon()

    with (
        patch.multiple(scheduler, SHARE_S=3600.0, TICK_S=3600.0),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(whole())


def message_of(api_key: int, version: int, data: bytes) -> Any:
    return schemas.decode(api_key, version, schemas.Kind.RESPONSE, data)[0]
