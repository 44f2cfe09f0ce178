"""What waits for requests to other nodes: one request to a node at a time. A pure state machine.

Questions about transactions and markers go to other brokers in this way, as in Kafka: what comes while a request is on
its way goes with the next one. Two items with the same key never go in one request, because its reply has one error for
a key. So the second item follows when the first has its answer: the items of a key keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
MOST_ITEMS = 2_000
"""The most items of a request."""


class _Item(NamedTuple, Generic[T]):
    key: Hashable
    size: int
    value: T


class NodeQueues(Generic[T]):
    """The items by node. ``add`` and ``end`` return the items of the next request to the node, which the caller has to
    send, and then has to call ``end`` once. None: no request is due.

    ``most``: the most items of a request, by their sizes. One larger item goes alone.
    """

    def __init__(self, most: int = MOST_ITEMS) -> None:
        self._most = most
        self._waiting: dict[int, deque[_Item[T]]] = {}
        self._in_flight: set[int] = set()

    def add(self, node: int, key: Hashable, value: T, size: int = 1) -> list[T] | None:
        """Adds an item for a node."""
        self._waiting.setdefault(node, deque()).append(_Item(key, size, value))
        return None if node in self._in_flight else self._next(node)

    def end(self, node: int) -> list[T] | None:
        """Notes that the request to a node has its reply, or has ended without one."""
        self._in_flight.discard(node)
        return self._next(node)

    def waiting(self, node: int) -> int:
        """Returns how many items wait for the next request."""
        return len(self._waiting.get(node, ()))

    def _next(self, node: int) -> list[T] | None:
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return None
        taken: list[T] = []
        keys: set[Hashable] = set()
        left: deque[_Item[T]] = deque()
        size = 0
        for item in waiting:
            is_full = bool(taken) and size + item.size > self._most
            if is_full or item.key in keys:
                left.append(item)
                keys.add(item.key)  # a later item of this key must not overtake this one
            else:
                taken.append(item.value)
                size += item.size
                keys.add(item.key)
        if left:
            self._waiting[node] = left
        self._in_flight.add(node)
        return taken
