"""Memory for long replies: requests that are refused, and connections that are closed."""

from __future__ import annotations

import pytest

from odradek.broker.api import Hangup
from odradek.broker.reply_memory import ReplyMemory
from odradek.broker.request_memory import STALL_S

LIMIT = 1000


class Client:
    def __init__(self) -> None:
        self.client_host = "/127.0.0.1"
        self.unsent_bytes = 0
        self.is_answering = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class MemoryRig:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.memory = ReplyMemory(lambda: self.now_s, LIMIT)


def test_a_client_that_reads_its_replies_gets_any_number_of_them() -> None:
    rig, client = MemoryRig(), Client()
    for _ in range(100):
        rig.memory.claim(client, 300)
    assert rig.memory.used <= LIMIT
    assert not client.aborted


def test_a_client_that_reads_nothing_is_refused_and_later_closed_to_free_memory() -> None:
    rig, stalled, other = MemoryRig(), Client(), Client()
    for _ in range(3):
        rig.memory.claim(stalled, 300)
        stalled.unsent_bytes += 300
    with pytest.raises(Hangup, match="longer than 1,000 bytes"):
        rig.memory.claim(stalled, 300)
    rig.memory.release(stalled)
    assert rig.memory.used == 0

    for _ in range(3):
        rig.memory.claim(stalled, 300)
    with pytest.raises(Hangup):
        rig.memory.claim(other, 300)
    rig.memory.release(other)
    rig.now_s += STALL_S
    rig.memory.claim(other, 300)
    assert stalled.aborted
    assert not other.aborted
    assert rig.memory.used == 300


def test_a_client_that_reads_a_long_reply_slowly_is_not_closed() -> None:
    rig, slow, other = MemoryRig(), Client(), Client()
    rig.memory.claim(slow, 900)
    for slow.unsent_bytes in (900, 800, 750):
        with pytest.raises(Hangup):
            rig.memory.claim(other, 300)
        rig.memory.release(other)
        rig.now_s += STALL_S
    slow.unsent_bytes = 600
    rig.memory.claim(other, 300)
    assert not slow.aborted
