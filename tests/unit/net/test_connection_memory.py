"""The memory of a large reply is used again only when no object refers to the received data."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from odradek.net.connection import KEPT_REPLIES, BrokerConnection
from odradek.net.transports import Address

VIEWS: list[Callable[[memoryview], Any]] = [
    lambda reply: reply,
    lambda reply: reply.toreadonly()[100:200],
    lambda reply: np.frombuffer(reply.toreadonly(), np.uint8)[7:].view(np.int8),
    lambda reply: pa.Array.from_buffers(pa.uint8(), 64, [None, pa.py_buffer(reply.toreadonly()[64:])]),
]


def place(reply: memoryview) -> int:
    return int(np.frombuffer(reply, np.uint8).__array_interface__["data"][0])


@pytest.mark.parametrize("size", [100_000, 4 << 20])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("numpy_is_loaded", [True, False])
def test_memory_with_a_live_view_is_not_overwritten(
    size: int, view: Callable[[memoryview], Any], numpy_is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def receive() -> None:
        connection = BrokerConnection(Address("127.0.0.1", 1), "c", 1000)
        if not numpy_is_loaded:
            monkeypatch.delitem(sys.modules, "numpy")
        first = place(connection.memory_for(size))
        assert {place(connection.memory_for(size)) for _ in range(3)} == {first}
        reply = connection.memory_for(size)
        assert len(reply) == size
        seen = view(reply)
        del reply
        others = {place(connection.memory_for(size)) for _ in range(3)}
        assert len(others) == 1
        assert first not in others
        del seen
        assert {place(connection.memory_for(size)) for _ in range(3)} <= {first, *others}
        assert len(connection.kept) == 2
        held = [connection.memory_for(size) for _ in range(KEPT_REPLIES + 3)]
        assert len({place(one) for one in held}) == KEPT_REPLIES + 3
        assert len(connection.kept) == KEPT_REPLIES

    asyncio.run(receive())
