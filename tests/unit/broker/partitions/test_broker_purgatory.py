"""Parked fetches: enough bytes or a timeout completes each fetch once, and the fetch is removed."""

from __future__ import annotations

from types import SimpleNamespace

from support.loops import Loop

from odradek.broker.partitions.purgatory import ParkedFetch, Purgatory, Wake


class Partition:
    def __init__(self) -> None:
        self.waiters: dict[ParkedFetch, None] = {}


def park(loop: Loop, partitions, missing: int, wait_ms: int = 500):
    done: list[tuple[float, Wake | None]] = []
    queue = SimpleNamespace(add=lambda fetch: loop.call_soon(lambda: fetch.run_share(0.0)))
    client = SimpleNamespace(parked=set(), parked_partitions=0)
    purgatory = Purgatory(loop, queue)
    return purgatory.park(client, partitions, missing, wait_ms, lambda wake: done.append((loop.now, wake))), done


def test_enough_bytes_complete_a_fetch_in_the_next_round() -> None:
    loop, partitions = Loop(), [Partition(), Partition()]
    parked, done = park(loop, partitions, 100)
    parked.count_readable(60)
    loop.run()
    assert not done
    parked.count_readable(40)
    assert not done, "appends of one round share a reply"
    loop.run()
    assert done == [(0.0, Wake.HIGH_WATERMARK)]


def test_a_timeout_completes_a_fetch_with_the_available_bytes() -> None:
    loop = Loop()
    _, done = park(loop, [Partition()], 100, wait_ms=250)
    loop.run(0.2)
    assert not done
    loop.run(0.1)
    assert done == [(0.25, None)], "the result of the first read is still valid"


def test_bytes_below_the_minimum_are_reported_at_the_timeout() -> None:
    loop = Loop()
    parked, done = park(loop, [Partition()], 100, wait_ms=250)
    parked.count_readable(1)
    loop.run(0.3)
    assert done == [(0.25, Wake.HIGH_WATERMARK)]


def test_a_fetch_completes_once_and_is_removed() -> None:
    loop, partitions = Loop(), [Partition(), Partition()]
    parked, done = park(loop, partitions, 1)
    parked.count_readable(5)
    parked.count_readable(5)
    parked.wake()
    loop.run(10)
    assert len(done) == 1
    assert not any(partition.waiters for partition in partitions)
    assert not loop.waiting


def test_an_abandoned_fetch_is_removed() -> None:
    loop, partitions = Loop(), [Partition()]
    parked, done = park(loop, partitions, 1)
    parked.abandon()
    parked.count_readable(5)
    loop.run(10)
    assert not done
    assert not partitions[0].waiters
    assert not loop.waiting


def test_a_fetch_without_new_bytes_uses_one_timer_and_no_rounds() -> None:
    loop = Loop()
    for _ in range(100):
        park(loop, [Partition()], 1, wait_ms=60_000)
    assert loop.waiting == 100
    loop.run(59)
    assert loop.waiting == 100
