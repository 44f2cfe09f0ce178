"""Memory for long replies: requests that are refused, and connections that are closed."""

from __future__ import annotations

import pytest

from odradek.broker.limits.reply_memory import Hangup, ReplyMemory
from odradek.broker.limits.request_memory import STALL_S

LIMIT = 1000


class Client:
    def __init__(self) -> None:
        self.client_host = "/127.0.0.1"
        self.unsent_bytes = 0
        self.is_making_reply = False
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


class MemoryHarness:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.memory = ReplyMemory(lambda: self.now_s, LIMIT)


def test_a_client_that_reads_its_replies_gets_any_number_of_them() -> None:
    harness, client = MemoryHarness(), Client()
    for _ in range(100):
        harness.memory.add(client, 300)
    assert harness.memory.used <= LIMIT
    assert not client.aborted


def test_a_client_that_reads_nothing_is_refused_and_later_closed_to_free_memory() -> None:
    harness, stalled, other = MemoryHarness(), Client(), Client()
    for _ in range(3):
        harness.memory.add(stalled, 300)
        stalled.unsent_bytes += 300
    with pytest.raises(Hangup, match="longer than 1,000 bytes"):
        harness.memory.add(stalled, 300)
    harness.memory.release(stalled)
    assert harness.memory.used == 0

    for _ in range(3):
        harness.memory.add(stalled, 300)
    with pytest.raises(Hangup):
        harness.memory.add(other, 300)
    harness.memory.release(other)
    harness.now_s += STALL_S
    harness.memory.add(other, 300)
    assert stalled.aborted
    assert not other.aborted
    assert harness.memory.used == 300


def test_a_client_that_reads_a_long_reply_slowly_is_not_closed() -> None:
    harness, slow, other = MemoryHarness(), Client(), Client()
    harness.memory.add(slow, 900)
    for slow.unsent_bytes in (900, 800, 750):
        with pytest.raises(Hangup):
            harness.memory.add(other, 300)
        harness.memory.release(other)
        harness.now_s += STALL_S
    slow.unsent_bytes = 600
    harness.memory.add(other, 300)
    assert not slow.aborted
