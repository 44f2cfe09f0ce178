"""Large containers of finished requests: hundreds of thousands of objects, freed in steps.

CPython frees all objects of a list or dictionary at once when its last reference is removed: 250,000 small objects take
up to a tenth of a second. So handlers pass their large containers to ``Leftovers``, which empties them in shares of the
event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from odradek.broker.long_lists import STEP_ELEMENTS

FEW = 1000
"""Containers with at most this number of elements together are freed at once."""

Container = list[Any] | dict[Any, Any] | set[Any]


class Leftovers:
    """The containers to empty. ``start`` runs a generator in shares of the event loop."""

    def __init__(self, start: Callable[[Generator[None, None, None]], object]) -> None:
        self._start = start
        self._containers: deque[Container] = deque()

    def add(self, *containers: Container) -> None:
        """Empties large containers later, in steps. No other code may use the containers after this call."""
        if sum(map(len, containers)) <= FEW:
            return
        is_idle = not self._containers
        self._containers.extend(containers)
        if is_idle:
            self._start(self._empty())

    def _empty(self) -> Generator[None, None, None]:
        containers = self._containers
        while containers:
            room = STEP_ELEMENTS
            while containers and room > 0:
                room -= _take_from(containers[0], room) + 1  # the container itself counts, too
                if not containers[0]:
                    containers.popleft()
            yield


def _take_from(container: Container, most: int) -> int:
    """Removes at most ``most`` elements and returns their number."""
    count = min(most, len(container))
    if isinstance(container, list):
        del container[len(container) - count :]
    elif isinstance(container, dict):
        for _ in range(count):
            container.popitem()
    else:
        for _ in range(count):
            container.pop()
    return count
