"""Memory of large replies is used again once nobody sees it, and never before."""

from __future__ import annotations

import asyncio

from odradek.net.connection import KEPT_BYTES, KEPT_REPLIES, SCRATCH_BYTES, BrokerConnection
from odradek.net.endpoint import Address


def place(view: memoryview) -> int:
    return id(view.obj)


def test_what_is_held_is_not_written_again() -> None:
    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        first = connection._memory(100_000)
        second = connection._memory(100_000)
        assert place(first) != place(second)
        kept, slice_of_it = place(first), first[10:20].toreadonly()
        del first
        third = connection._memory(100_000)
        assert place(third) != kept, "a slice is held"
        del slice_of_it
        again = connection._memory(90_000)
        assert (place(again), len(again)) == (kept, 90_000)
        assert place(connection._memory(200_000)) != kept, "too small"

    asyncio.run(go())


def test_what_stays_is_bounded() -> None:
    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        held = [connection._memory(1 << 20) for _ in range(KEPT_REPLIES * 3)]
        assert len({place(view) for view in held}) == len(held)
        held.append(connection._memory(KEPT_BYTES + 1))
        assert len(connection._kept) == KEPT_REPLIES
        assert max(map(len, connection._kept)) <= KEPT_BYTES

    asyncio.run(go())


def test_replies_in_pieces_arrive_whole_whatever_lay_there_before() -> None:
    """Sizes that grow and shrink, some replies held: each frame has its own bytes."""

    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        loop = asyncio.get_running_loop()
        held: list[tuple[int, memoryview]] = []
        for number in range(60):
            size = (SCRATCH_BYTES * (1 + number % 5)) + number
            body = number.to_bytes(4, "big") + bytes([number]) * (size - 4)
            future = loop.create_future()
            connection._waiting[number] = (future, loop.call_later(60, print))
            stream = memoryview(size.to_bytes(4, "big") + body)
            while stream:
                room = connection.get_buffer(-1)
                step = min(len(room), len(stream), 30_000)
                room[:step] = stream[:step]
                connection.buffer_updated(step)
                stream = stream[step:]
            held.append((number, future.result()))
            if number % 3 == 0:
                held = held[-4:]
            for told, frame in held:
                assert bytes(frame) == told.to_bytes(4, "big") + bytes([told]) * (len(frame) - 4)

    asyncio.run(go())
