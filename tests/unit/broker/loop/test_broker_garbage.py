"""Full collections of garbage wait for the end of a long request, up to a limit."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from support.loops import Loop

from odradek.broker.loop.garbage import DUE_COLLECTIONS, INTERVAL_S, PATIENCE, Collector


class Node:
    """An object in a reference cycle."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def restored_collector() -> Iterator[None]:
    threshold, enabled = gc.get_threshold(), gc.isenabled()
    yield  # what a test has frozen stays so: after `gc.unfreeze` each collection would visit all collected tests
    gc.set_threshold(*threshold)
    gc.enable() if enabled else gc.disable()


def full_collections() -> int:
    return gc.get_stats()[2]["collections"]


def test_python_starts_no_full_collection() -> None:
    Collector(Loop().call_later, lambda: True).start()
    before = full_collections()
    kept = [[number] for number in range(500_000)]
    assert full_collections() == before
    assert gc.get_count()[2] >= DUE_COLLECTIONS
    assert len(kept) == 500_000


def test_a_due_full_collection_waits_for_an_idle_broker_up_to_a_limit() -> None:
    loop, state = Loop(), SimpleNamespace(busy=True, count=DUE_COLLECTIONS - 1, collected=0)

    def collect() -> int:
        state.collected += 1
        return 0

    fake = SimpleNamespace(
        freeze=lambda: None,
        enable=lambda: None,
        get_threshold=gc.get_threshold,
        set_threshold=lambda *_: None,
        get_count=lambda: (0, 0, state.count),
        collect=collect,
    )
    followed: list[int] = []
    Collector(loop.call_later, lambda: state.busy, lambda: followed.append(state.collected), fake).start()
    state.busy = False
    loop.run(10 * INTERVAL_S)
    assert state.collected == 0, "too few objects were allocated"
    state.count, state.busy = DUE_COLLECTIONS, True
    loop.run(PATIENCE * INTERVAL_S)
    assert state.collected == 0
    loop.run(INTERVAL_S)
    assert state.collected == 1, "the wait for the long request has a limit"
    state.busy = False
    loop.run(INTERVAL_S)
    assert state.collected == 2
    assert followed == [1, 2]


def test_cycles_are_collected() -> None:
    loop = Loop()
    Collector(loop.call_later, lambda: False).start()
    for _ in range(200_000):
        Node()
    loop.run(INTERVAL_S)
    gc.collect(1)
    left = sum(isinstance(one, Node) for one in gc.get_objects())
    assert left < 100  # in Python 3.13 a few Node objects remain until the next full collection
