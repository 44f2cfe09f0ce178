"""For any bytes, a connection replies, waits or closes. It never raises and never exceeds its memory limit."""

from __future__ import annotations

import asyncio
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from support.connections import FakeTransport, Server

from odradek.broker.front_end.connection import Connection
from odradek.broker.front_end.router import Api, served_apis
from odradek.core.errors import ErrorCode, KafkaError

KNOWN = served_apis()


def refuse(*_: object) -> None:
    raise KafkaError(ErrorCode.invalid_request, "no")


class AllApis(Server):
    """Every API with its real versions. The handlers refuse each message that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.router.apis = {key: Api(key, (api.oldest, api.newest), refuse) for key, api in KNOWN.items()}


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A frame with a plausible header, any body and, in most cases, the correct length."""
    api_key = draw(st.sampled_from(sorted(KNOWN)) | st.integers(-1, 100))
    version = draw(st.integers(-1, 19))
    name = draw(st.binary(max_size=8))
    head = struct.pack(">hhih", api_key, version, draw(st.integers(0, 9)), draw(st.just(len(name)) | st.just(-1)))
    body = head + name + draw(st.binary(max_size=200))
    wrong = draw(st.sampled_from([0] * 8 + [-1, 3]))
    return struct.pack(">i", max(len(body) + wrong, 0)) + body


@settings(max_examples=100)
@given(st.lists(frames() | st.binary(max_size=30), max_size=6), st.integers(1, 64))
def test_any_bytes_in_any_pieces_are_answered_or_close_the_connection(stream: list[bytes], piece: int) -> None:
    with asyncio.Runner() as runner:
        runner.run(_try(b"".join(stream), piece))


SERVER = AllApis()


async def _try(data: bytes, piece: int) -> None:
    SERVER.use(asyncio.get_running_loop())
    connection, transport = Connection(SERVER), FakeTransport()
    connection.connection_made(transport)
    for at in range(0, len(data), piece):
        if not transport.closed:
            connection.data_received(data[at : at + piece])
    while SERVER.scheduler.busy:
        await asyncio.sleep(0)
    assert not connection.slots, "each request was answered or closed the connection"
    assert connection.reader.buffered <= 1000 + 4 + piece
    transport.replies()
    connection.connection_lost(None)
