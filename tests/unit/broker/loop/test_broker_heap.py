"""The return of free memory to the system after a burst: its time, its frequency and its effect."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
from support.loops import Loop

from odradek.broker.loop.heap import PATIENCE, PAUSE_S, TRIM_BYTES, Heap, trim


def test_one_trim_follows_a_burst() -> None:
    loop = Loop()
    jobs: list[Callable[[], None]] = []
    heap = Heap(loop.call_later, jobs.append)
    heap.count_freed(TRIM_BYTES - 1)
    loop.run(10 * PAUSE_S)
    assert jobs == [], "the C library keeps a small amount"
    heap.count_freed(1)
    heap.count_freed(5 * TRIM_BYTES)
    assert jobs == []
    loop.run(PAUSE_S)
    assert jobs == [trim]
    heap.count_freed(TRIM_BYTES - 1)
    loop.run(10 * PAUSE_S)
    assert jobs == [trim], "the count starts at the last trim"


def test_a_trim_waits_for_the_end_of_the_request_that_caused_it() -> None:
    loop = Loop()
    jobs: list[Callable[[], None]] = []
    at_work = [True]
    heap = Heap(loop.call_later, jobs.append, lambda: at_work[0])
    heap.count_freed(90 << 20)
    loop.run(5 * PAUSE_S)
    assert jobs == []
    at_work[0] = False
    loop.run(PAUSE_S)
    assert jobs == [trim]
    loop.run(10 * PAUSE_S)
    assert jobs == [trim]
    assert loop.waiting == 0


def test_a_broker_that_is_never_idle_trims_at_intervals() -> None:
    loop = Loop()
    jobs: list[Callable[[], None]] = []
    at_work = [True]
    heap = Heap(loop.call_later, jobs.append, lambda: at_work[0])
    heap.count_freed(TRIM_BYTES)
    loop.run(2 * (PATIENCE + 1) * PAUSE_S)
    assert jobs == [trim, trim]
    at_work[0] = False
    loop.run(PAUSE_S)
    assert jobs == [trim, trim, trim], "one more trim at the end of the work"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_trim_returns_pages_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    blocks = [bytearray(100_000) for _ in range(1000)]  # too small for memory mappings of their own
    kept = blocks[::20]
    del blocks
    before = resident()
    trim()
    assert before - resident() > 50_000_000
    assert len(kept) == 50
