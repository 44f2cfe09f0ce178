"""The queues of items for other nodes: one request at a time, the order of each key, and a seeded simulation."""

from __future__ import annotations

import random

import pytest

from odradek.transactions.node_queues import NodeQueues


def test_items_that_come_during_a_request_go_together() -> None:
    queues: NodeQueues[str] = NodeQueues()
    assert queues.add(1, "a", "a1") == ["a1"]
    assert queues.add(1, "b", "b1") is None
    assert queues.add(1, "c", "c1") is None
    assert queues.add(2, "a", "a2") == ["a2"], "another node"
    assert queues.end(1) == ["b1", "c1"]
    assert queues.end(1) is None
    assert queues.add(1, "d", "d1") == ["d1"]


def test_a_key_is_in_a_request_once_and_keeps_its_order() -> None:
    queues: NodeQueues[str] = NodeQueues()
    queues.add(1, "x", "first")
    for key, value in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")):
        queues.add(1, key, value)
    assert queues.end(1) == ["a1", "b1"]
    assert queues.end(1) == ["a2"]
    assert queues.end(1) == ["a3"]
    assert queues.end(1) is None


def test_a_full_request_leaves_the_rest_and_no_item_overtakes_one_of_its_key() -> None:
    queues: NodeQueues[str] = NodeQueues(most=3)
    queues.add(1, "x", "first")
    for key, value, size in (("a", "a1", 2), ("b", "b1", 2), ("b", "b2", 1), ("c", "c1", 1)):
        queues.add(1, key, value, size)
    assert queues.end(1) == ["a1", "c1"]
    assert queues.end(1) == ["b1"], "b2 is small enough for the first request, and must not overtake b1"
    assert queues.end(1) == ["b2"]


def test_an_item_that_is_larger_than_a_request_goes_alone() -> None:
    queues: NodeQueues[str] = NodeQueues(most=3)
    queues.add(1, "x", "first")
    queues.add(1, "a", "large", 100)
    queues.add(1, "b", "small")
    assert queues.end(1) == ["large"]
    assert queues.end(1) == ["small"]


def simulate(seed: int, queues: NodeQueues[tuple[str, int]]) -> None:
    """Adds items and ends requests in any order. Checks that each item goes once, in the order of its key."""
    rng = random.Random(seed)
    added: dict[tuple[int, str], int] = {}
    sent: dict[tuple[int, str], int] = {}
    in_flight: set[int] = set()

    def send(node: int, batch: list[tuple[str, int]] | None) -> None:
        if batch is None:
            return
        assert batch, "a request without items"
        assert node not in in_flight, "two requests at a time"
        assert len({key for key, _ in batch}) == len(batch), "two items of a key in one request"
        assert len(batch) <= 4
        in_flight.add(node)
        for key, number in batch:
            assert number == sent.get((node, key), 0), f"{key} {number} comes before or after its turn"
            sent[node, key] = number + 1

    for _ in range(rng.randrange(5, 120)):
        node = rng.randrange(3)
        if rng.random() < 0.6:
            key = rng.choice("abcde")
            number = added.get((node, key), 0)
            added[node, key] = number + 1
            send(node, queues.add(node, key, (key, number)))
        elif node in in_flight:
            in_flight.discard(node)
            send(node, queues.end(node))
    while in_flight:
        node = in_flight.pop()
        send(node, queues.end(node))
    assert sent == added, "an item is lost"
    assert not any(queues.waiting(node) for node in range(3))


@pytest.mark.parametrize("seed", range(200))
def test_each_item_goes_once_and_in_order(seed: int) -> None:
    simulate(seed, NodeQueues(most=4))


class _Overtaking(NodeQueues[tuple[str, int]]):
    """Planted bug: what does not fit goes behind what comes later."""

    def _next(self, node: int) -> list[tuple[str, int]] | None:
        if waiting := self._waiting.get(node):
            waiting.rotate(1)
        return super()._next(node)


class _Losing(NodeQueues[tuple[str, int]]):
    """Planted bug: what waits is forgotten when a request has ended."""

    def end(self, node: int) -> list[tuple[str, int]] | None:
        self._waiting.pop(node, None)
        return super().end(node)


class _Doubled(NodeQueues[tuple[str, int]]):
    """Planted bug: a second request begins during the first."""

    def add(self, node: int, key: object, value: tuple[str, int], size: int = 1) -> list[tuple[str, int]] | None:
        self._in_flight.discard(node)
        return super().add(node, str(key), value, size)


@pytest.mark.parametrize("bug", [_Overtaking, _Losing, _Doubled])
def test_the_simulation_finds_planted_bugs(bug: type[NodeQueues[tuple[str, int]]]) -> None:
    found = 0
    for seed in range(50):
        try:
            simulate(seed, bug(most=4))
        except AssertionError:
            found += 1
    assert found
