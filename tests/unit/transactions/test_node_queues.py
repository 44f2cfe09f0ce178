"""The queues of items for other nodes: one request at a time, the order of each key, and a seeded simulation."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

import pytest

from odradek.transactions.node_queues import Departures, NodeBatch, NodeItem, NodeQueues

Queues = NodeQueues[str, str]


def add(queues: Queues, node: int, key: str, value: str, size: int = 1, subject: str = "s") -> bool:
    return queues.add(node, NodeItem(subject, key, size, value))


def values(batch: NodeBatch[str, str] | None) -> list[str] | None:
    return None if batch is None else [item.value for item in batch.items]


def next_values(queues: Queues, node: int) -> list[str] | None:
    """Ends the request to a node, and returns the values of the next one."""
    return values(queues.take(node)) if queues.end(queues._in_flight[node]) else None


def test_items_of_one_tick_and_those_that_come_during_a_request_go_together() -> None:
    queues = Queues()
    assert add(queues, 1, "a", "a1")
    assert not add(queues, 1, "b", "b1"), "the request is due already"
    assert values(queues.take(1)) == ["a1", "b1"]
    assert not add(queues, 1, "c", "c1")
    assert not add(queues, 1, "d", "d1")
    assert add(queues, 2, "a", "a2"), "another node"
    assert next_values(queues, 1) == ["c1", "d1"]
    assert next_values(queues, 1) is None
    assert add(queues, 1, "e", "e1")
    assert values(queues.take(1)) == ["e1"]


def test_a_key_is_in_a_request_once_and_keeps_its_order() -> None:
    queues = Queues()
    for key, value in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")):
        add(queues, 1, key, value)
    assert values(queues.take(1)) == ["a1", "b1"]
    assert next_values(queues, 1) == ["a2"]
    assert next_values(queues, 1) == ["a3"]
    assert next_values(queues, 1) is None


def test_a_full_request_leaves_the_rest_and_no_item_overtakes_one_of_its_key() -> None:
    queues = Queues(most=3)
    for key, value, size in (("a", "a1", 2), ("b", "b1", 2), ("b", "b2", 1), ("c", "c1", 1)):
        add(queues, 1, key, value, size)
    assert values(queues.take(1)) == ["a1", "c1"]
    assert next_values(queues, 1) == ["b1"], "b2 is small enough for the first request, and must not overtake b1"
    assert next_values(queues, 1) == ["b2"]


def test_an_item_that_is_larger_than_a_request_goes_alone() -> None:
    queues = Queues(most=3)
    add(queues, 1, "a", "large", 100)
    add(queues, 1, "b", "small")
    assert values(queues.take(1)) == ["large"]
    assert next_values(queues, 1) == ["small"]


def test_items_of_a_moved_subject_leave_the_request_in_flight_and_the_queue() -> None:
    queues = Queues()
    add(queues, 1, "a", "a1", subject="x")
    add(queues, 1, "b", "b1", subject="y")
    batch = queues.take(1)
    assert batch is not None
    add(queues, 1, "a", "a2", subject="x")
    add(queues, 1, "c", "c1", subject="y")
    gone = queues.depart({"x", "z"}, {"x": 2, "y": 1, "z": 3}.__getitem__)
    assert ([item.value for item in gone.items], gone.abandoned, gone.due) == (["a1", "a2"], [], [])
    assert [item.value for item in batch.items] == ["b1"], "the reply counts for the rest"
    assert next_values(queues, 1) == ["c1"]
    assert next_values(queues, 1) is None
    assert queues.is_empty


def test_a_request_whose_items_have_all_left_is_abandoned_and_its_reply_ends_nothing() -> None:
    queues = Queues()
    add(queues, 1, "a", "a1", subject="x")
    batch = queues.take(1)
    assert batch is not None
    add(queues, 1, "b", "b1", subject="y")
    gone = queues.depart({"x"}, {"x": 2}.__getitem__)
    assert ([item.value for item in gone.items], gone.abandoned, gone.due) == (["a1"], [1], [1])
    later = queues.take(1)
    assert values(later) == ["b1"]
    assert (queues.end(batch), batch.items) == (False, [])
    assert not add(queues, 1, "c", "c1"), "the later request is in flight"


def test_a_subject_that_stays_at_its_node_does_not_leave() -> None:
    queues = Queues()
    add(queues, 1, "a", "a1", subject="x")
    assert queues.depart({"x"}, {"x": 1}.__getitem__) == ([], [], [])
    assert values(queues.take(1)) == ["a1"]


def test_nothing_is_taken_for_a_node_whose_items_have_left() -> None:
    queues = Queues()
    assert add(queues, 1, "a", "a1", subject="x")
    queues.depart({"x"}, {"x": 2}.__getitem__)
    assert queues.take(1) is None
    assert queues.is_empty
    assert add(queues, 1, "b", "b1", subject="y"), "the next request is due by itself"


# --- a seeded simulation ------------------------------------------------------------------------------------------

Numbered = NodeQueues[int, tuple[str, int]]
SUBJECTS = {"a": 0, "b": 0, "c": 1, "d": 1, "e": 2}


class Simulation:
    """Adds items, ends requests and moves subjects in any order. Each item is answered once, at the node of its
    subject, in the order of its key."""

    def __init__(self, seed: int, queues: Numbered) -> None:
        self.rng = random.Random(seed)
        self.queues = queues
        self.nodes = [0, 0, 1]
        self.added: dict[str, int] = {}
        self.answered: dict[str, int] = {}
        self.due: list[int] = []
        self.in_flight: dict[int, NodeBatch[int, tuple[str, int]]] = {}
        self.late: list[NodeBatch[int, tuple[str, int]]] = []

    def run(self) -> None:
        steps: list[Callable[[], None]] = [self._add, self._add, self._take, self._end, self._move, self._end_late]
        for _ in range(self.rng.randrange(5, 150)):
            self.rng.choice(steps)()
        while self.due or self.in_flight:
            self._take()
            self._end()
        assert self.answered == self.added, "an item is lost"
        assert self.queues.is_empty

    def _add(self) -> None:
        key = self.rng.choice("abcde")
        number = self.added.get(key, 0)
        self.added[key] = number + 1
        self._place(NodeItem(SUBJECTS[key], key, 1, (key, number)))

    def _place(self, item: NodeItem[int, tuple[str, int]]) -> None:
        node = self.nodes[item.subject]
        if self.queues.add(node, item):
            self._note_due(node)

    def _note_due(self, node: int) -> None:
        assert node not in self.due, "a request is due twice"
        self.due.append(node)

    def _take(self) -> None:
        if not self.due:
            return
        node = self.due.pop(self.rng.randrange(len(self.due)))
        batch = self.queues.take(node)
        if batch is None:
            return
        assert batch.items, "a request without items"
        assert node not in self.in_flight, "two requests at a time"
        assert len({item.key for item in batch.items}) == len(batch.items) <= 4
        self.in_flight[node] = batch

    def _end(self) -> None:
        if self.in_flight:
            node = self.rng.choice(sorted(self.in_flight))
            self._answer(self.in_flight.pop(node))

    def _end_late(self) -> None:
        if self.late:
            self._answer(self.late.pop())

    def _answer(self, batch: NodeBatch[int, tuple[str, int]]) -> None:
        if self.queues.end(batch):
            self._note_due(batch.node)
        for item in batch.items:
            key, number = item.value
            assert batch.node == self.nodes[item.subject], f"{key} {number} is answered by a former node"
            assert number == self.answered.get(key, 0), f"{key} {number} is answered before or after its turn"
            self.answered[key] = number + 1

    def _move(self) -> None:
        changed = self.rng.sample((0, 1, 2), self.rng.choice((1, 2)))
        for subject in changed:
            self.nodes[subject] = self.rng.randrange(3)
        gone = self.queues.depart(changed, self.nodes.__getitem__)
        for node in gone.abandoned:
            self.late.append(self.in_flight.pop(node))
        for node in gone.due:
            self._note_due(node)
        for item in gone.items:
            self._place(item)


@pytest.mark.parametrize("seed", range(200))
def test_each_item_is_answered_once_in_order_by_its_node(seed: int) -> None:
    Simulation(seed, NodeQueues(most=4)).run()


class _Overtaking(Numbered):
    """Planted bug: what does not fit goes behind what comes later."""

    def take(self, node: int) -> NodeBatch[int, tuple[str, int]] | None:
        if waiting := self._waiting.get(node):
            waiting.rotate(1)
        return super().take(node)


class _Losing(Numbered):
    """Planted bug: what waits is forgotten when a request has ended."""

    def end(self, batch: NodeBatch[int, tuple[str, int]]) -> bool:
        self._waiting.pop(batch.node, None)
        return super().end(batch)


class _Doubled(Numbered):
    """Planted bug: a second request begins during the first."""

    def _is_due(self, node: int) -> bool:
        if node not in self._waiting or node in self._due:
            return False
        self._due.add(node)
        return True


class _Waiting(Numbered):
    """Planted bug: nothing leaves a node that has a request in flight."""

    def _depart_from(self, node: int, moved: set[int], gone: Departures[int, tuple[str, int]]) -> None:
        if node not in self._in_flight:
            super()._depart_from(node, moved, gone)


class _Held(Numbered):
    """Planted bug: an abandoned request holds the next one up."""

    def depart(self, subjects: Collection[int], node_of: Callable[[int], int]) -> Departures[int, tuple[str, int]]:
        gone = super().depart(subjects, node_of)
        return Departures(gone.items, gone.abandoned, [])


@pytest.mark.parametrize("bug", [_Overtaking, _Losing, _Doubled, _Waiting, _Held])
def test_the_simulation_finds_planted_bugs(bug: type[Numbered]) -> None:
    found = 0
    for seed in range(50):
        try:
            Simulation(seed, bug(most=4)).run()
        except AssertionError:
            found += 1
    assert found
