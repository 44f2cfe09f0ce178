"""Large containers of finished requests: hundreds of thousands of objects, freed in steps.

CPython frees all objects of a list or dictionary at once when its last reference is removed: 250,000 small objects take
up to a tenth of a second. So handlers pass their large containers to ``Leftovers``, which empties them in shares of the
event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from odradek.broker.loop.long_lists import STEP_ELEMENTS
from odradek.core.deferred import Deferred

FEW = 1000
"""Containers with at most this number of elements together are freed at once."""

Container = list[Any] | dict[Any, Any] | set[Any]
Then = Callable[[], object]


class Leftovers:
    """The containers to empty. ``start`` runs a generator in shares of the event loop."""

    def __init__(self, start: Callable[[Generator[None, None, None]], object]) -> None:
        self._start = start
        self._containers: deque[Container | Then] = deque()

    def add(self, *containers: Container, then: Then | None = None) -> None:
        """Empties large containers later, in steps. No other code may use the containers after this call.

        Calls ``then`` when these containers are empty, or at once if they are small.
        """
        if sum(map(len, containers)) <= FEW:
            if then is not None:
                then()
            return
        is_idle = not self._containers
        self._containers.extend(containers)
        if then is not None:
            self._containers.append(then)
        if is_idle:
            self._start(self._empty())

    def add_after(self, promise: Deferred[Any], *containers: Container) -> None:
        """Does the same when a promise is resolved. Until then, its owner uses the containers."""
        promise.then(lambda _: self.add(*containers))

    def _empty(self) -> Generator[None, None, None]:
        containers = self._containers
        while containers:
            room = STEP_ELEMENTS
            while containers and room > 0:
                container = containers[0]
                if callable(container):
                    containers.popleft()
                    container()
                    continue
                room -= _take_from(container, room) + 1  # the container itself counts, too
                if not container:
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
