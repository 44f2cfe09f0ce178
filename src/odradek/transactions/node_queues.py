"""What waits for requests to other nodes: one request to a node at a time. A pure state machine.

Questions about transactions and markers go to other brokers in this way, as in Kafka: what comes in one tick, or while
a request is on its way, goes together. Two items with the same key never go in one request, because its reply has one
error for a key. So the second item follows when the first has its answer: the items of a key keep their order.

Each item has a subject: the partition for whose leader it is. When another node leads the partition, all its items
leave, those of the request in flight, too. The reply to that request no longer counts for them. In Kafka they wait for
the end of the request, at most ``request.timeout.ms``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")
MOST_ITEMS = 2_000
"""The most items of a request."""


class NodeItem(NamedTuple, Generic[S, T]):
    """``size``: of the item in its request."""

    subject: S
    key: Hashable
    size: int
    value: T


class NodeBatch(Generic[S, T]):
    """The items of one request to a node. ``items``: those whose answer is in its reply."""

    def __init__(self, node: int, items: list[NodeItem[S, T]]) -> None:
        self.node = node
        self.items = items


class Departures(NamedTuple, Generic[S, T]):
    """What has left its node. ``items``: those of a key are in their order. ``abandoned``: the nodes whose request in
    flight has no item any more. ``due``: the nodes for which ``take`` has to be called."""

    items: list[NodeItem[S, T]]
    abandoned: list[int]
    due: list[int]


class NodeQueues(Generic[S, T]):
    """The items by node. When ``add``, ``end`` or ``depart`` names a node, the caller calls ``take`` for it once, at
    the end of this tick. It sends the request that ``take`` returns, and then calls ``end`` once.

    ``most``: the most items of a request, by their sizes. One larger item goes alone.
    """

    def __init__(self, most: int = MOST_ITEMS) -> None:
        self._most = most
        self._waiting: dict[int, deque[NodeItem[S, T]]] = {}
        self._in_flight: dict[int, NodeBatch[S, T]] = {}
        self._due: set[int] = set()

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._in_flight

    def add(self, node: int, item: NodeItem[S, T]) -> bool:
        """Adds an item for a node. Returns whether a request is due."""
        self._waiting.setdefault(node, deque()).append(item)
        return self._is_due(node)

    def take(self, node: int) -> NodeBatch[S, T] | None:
        """Returns the next request to the node; None if its items have left."""
        self._due.discard(node)
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return None
        taken: list[NodeItem[S, T]] = []
        keys: set[Hashable] = set()
        left: deque[NodeItem[S, T]] = deque()
        size = 0
        for item in waiting:
            is_full = bool(taken) and size + item.size > self._most
            if is_full or item.key in keys:
                left.append(item)
            else:
                taken.append(item)
                size += item.size
            keys.add(item.key)  # a later item of this key must not overtake this one
        if left:
            self._waiting[node] = left
        batch = self._in_flight[node] = NodeBatch(node, taken)
        return batch

    def end(self, batch: NodeBatch[S, T]) -> bool:
        """Notes that a request has its reply, or has ended without one. Returns whether the next one is due.

        The items of the batch have their answers. Those that have left are not among them."""
        node = batch.node
        if self._in_flight.get(node) is not batch:
            return False  # all its items have left
        del self._in_flight[node]
        return self._is_due(node)

    def depart(self, subjects: Collection[S], node_of: Callable[[S], int]) -> Departures[S, T]:
        """Removes the items of those of the subjects that have another node now."""
        gone = Departures[S, T]([], [], [])
        for node in dict.fromkeys([*self._in_flight, *self._waiting]):
            batch = self._in_flight.get(node)
            own = {item.subject for item in (*(batch.items if batch else ()), *self._waiting.get(node, ()))}
            if moved := {each for each in own.intersection(subjects) if node_of(each) != node}:
                self._depart_from(node, moved, gone)
        return gone

    def _depart_from(self, node: int, moved: set[S], gone: Departures[S, T]) -> None:
        batch = self._in_flight.get(node)
        if batch is not None:
            gone.items.extend(item for item in batch.items if item.subject in moved)
            batch.items = [item for item in batch.items if item.subject not in moved]
            if not batch.items:
                del self._in_flight[node]
                gone.abandoned.append(node)
        waiting = self._waiting.pop(node, deque())
        gone.items.extend(item for item in waiting if item.subject in moved)
        if left := deque(item for item in waiting if item.subject not in moved):
            self._waiting[node] = left
        if self._is_due(node):
            gone.due.append(node)

    def _is_due(self, node: int) -> bool:
        if node in self._in_flight or node in self._due or node not in self._waiting:
            return False
        self._due.add(node)
        return True
