"""Waiting fetches: woken by bytes or time, once; forgotten without a trace."""

from __future__ import annotations

from types import SimpleNamespace

from test_broker_clock import Loop

from odradek.broker.purgatory import ParkedFetch, Purgatory


class Partition:
    def __init__(self) -> None:
        self.waiters: set[ParkedFetch] = set()


def park(loop: Loop, partitions, missing: int, wait_ms: int = 500):
    done: list[tuple[float, bool]] = []
    queue = SimpleNamespace(add=lambda fetch: loop.call_soon(lambda: fetch.run_share(0.0)))
    client = SimpleNamespace(parked=set(), parked_partitions=0)
    purgatory = Purgatory(loop, queue)
    return purgatory.park(client, partitions, missing, wait_ms, lambda changed: done.append((loop.now, changed))), done


def test_enough_bytes_wake_it_in_the_next_round() -> None:
    loop, partitions = Loop(), [Partition(), Partition()]
    parked, done = park(loop, partitions, 100)
    parked.arrived(60)
    loop.run()
    assert not done
    parked.arrived(40)
    assert not done, "appends of one round share a reply"
    loop.run()
    assert done == [(0.0, True)]


def test_time_wakes_it_with_whatever_is_there() -> None:
    loop = Loop()
    _, done = park(loop, [Partition()], 100, wait_ms=250)
    loop.run(0.2)
    assert not done
    loop.run(0.1)
    assert done == [(0.25, False)], "and what was read before still holds"


def test_what_came_but_was_too_little_is_told_too() -> None:
    loop = Loop()
    parked, done = park(loop, [Partition()], 100, wait_ms=250)
    parked.arrived(1)
    loop.run(0.3)
    assert done == [(0.25, True)]


def test_it_completes_once_and_leaves_nothing_behind() -> None:
    loop, partitions = Loop(), [Partition(), Partition()]
    parked, done = park(loop, partitions, 1)
    parked.arrived(5)
    parked.arrived(5)
    parked.wake()
    loop.run(10)
    assert len(done) == 1
    assert not any(partition.waiters for partition in partitions)
    assert not loop.waiting


def test_an_abandoned_fetch_is_forgotten() -> None:
    loop, partitions = Loop(), [Partition()]
    parked, done = park(loop, partitions, 1)
    parked.abandon()
    parked.arrived(5)
    loop.run(10)
    assert not done
    assert not partitions[0].waiters
    assert not loop.waiting


def test_an_idle_one_costs_one_timer_and_no_rounds() -> None:
    loop = Loop()
    for _ in range(100):
        park(loop, [Partition()], 1, wait_ms=60_000)
    assert loop.waiting == 100
    loop.run(59)
    assert loop.waiting == 100
