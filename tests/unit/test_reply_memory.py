"""Memory for long replies: who is refused, who is closed, and who is not."""

from __future__ import annotations

import pytest

from odradek.broker.api import Hangup
from odradek.broker.reply_memory import STALL_S, ReplyMemory

LIMIT = 1000


class Client:
    def __init__(self) -> None:
        self.client_host = "/127.0.0.1"
        self.unsent_bytes = 0
        self.is_answering = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class Room:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.memory = ReplyMemory(lambda: self.now_s, LIMIT)


def test_a_client_that_takes_its_replies_gets_any_number_of_them() -> None:
    room, client = Room(), Client()
    for _ in range(100):
        room.memory.hold(client, 300)
    assert room.memory.used <= LIMIT
    assert not client.aborted


def test_a_client_that_takes_nothing_is_refused_and_after_a_while_closed_for_others() -> None:
    room, hostile, other = Room(), Client(), Client()
    for _ in range(3):
        room.memory.hold(hostile, 300)
        hostile.unsent_bytes += 300
    with pytest.raises(Hangup, match="longer than 1,000 bytes"):
        room.memory.hold(hostile, 300)
    room.memory.release(hostile)
    assert room.memory.used == 0

    for _ in range(3):
        room.memory.hold(hostile, 300)
    with pytest.raises(Hangup):
        room.memory.hold(other, 300)
    room.memory.release(other)
    room.now_s += STALL_S
    room.memory.hold(other, 300)
    assert hostile.aborted
    assert not other.aborted
    assert room.memory.used == 300


def test_a_client_that_takes_a_long_reply_slowly_is_not_closed() -> None:
    room, slow, other = Room(), Client(), Client()
    room.memory.hold(slow, 900)
    for slow.unsent_bytes in (900, 800, 750):
        with pytest.raises(Hangup):
            room.memory.hold(other, 300)
        room.memory.release(other)
        room.now_s += STALL_S
    slow.unsent_bytes = 600
    room.memory.hold(other, 300)
    assert not slow.aborted
