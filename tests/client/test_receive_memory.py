"""The memory of a large reply is reused when no view of it exists any more, and not before."""

from __future__ import annotations

import asyncio

from odradek.net.connection import KEPT_BYTES, KEPT_REPLIES, SCRATCH_BYTES, BrokerConnection
from odradek.net.transports import Address


def memory_id(view: memoryview) -> int:
    return id(view.obj)


def test_memory_with_a_view_is_not_reused() -> None:
    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        first = connection.memory_for(100_000)
        second = connection.memory_for(100_000)
        assert memory_id(first) != memory_id(second)
        kept, slice_of_it = memory_id(first), first[10:20].toreadonly()
        del first
        third = connection.memory_for(100_000)
        assert memory_id(third) != kept, "a slice of it exists"
        del slice_of_it
        again = connection.memory_for(90_000)
        assert (memory_id(again), len(again)) == (kept, 90_000)
        assert memory_id(connection.memory_for(200_000)) != kept, "too small"

    asyncio.run(go())


def test_the_kept_memory_is_limited() -> None:
    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        held = [connection.memory_for(1 << 20) for _ in range(KEPT_REPLIES * 3)]
        assert len({memory_id(view) for view in held}) == len(held)
        held.append(connection.memory_for(KEPT_BYTES + 1))
        assert len(connection.kept) == KEPT_REPLIES
        assert max(map(len, connection.kept)) <= KEPT_BYTES

    asyncio.run(go())


def test_replies_in_pieces_arrive_complete_in_reused_memory() -> None:
    """Sizes grow and shrink, and some replies are kept: each frame has its own bytes."""

    async def go() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "me", 1000)
        loop = asyncio.get_running_loop()
        held: list[tuple[int, memoryview]] = []
        for number in range(60):
            size = (SCRATCH_BYTES * (1 + number % 5)) + number
            body = number.to_bytes(4, "big") + bytes([number]) * (size - 4)
            future = loop.create_future()
            connection.waiting[number] = (future, loop.call_later(60, print))
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
            for sent, frame in held:
                assert bytes(frame) == sent.to_bytes(4, "big") + bytes([sent]) * (len(frame) - 4)

    asyncio.run(go())
