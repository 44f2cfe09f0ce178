"""What long requests leave behind: hundreds of thousands of objects, freed a few at a time.

CPython frees what a list or a dictionary held in one go, with the last name of it: 250,000 small objects take up to a
tenth of a second. So what has become long is left here, and is emptied in shares of the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

STEP_ELEMENTS = 500
FEW = 1000
"""Containers that hold no more together are not worth a step."""

Container = list[Any] | dict[Any, Any] | set[Any]


class Leftovers:
    """``start`` runs a generator in shares of the loop."""

    def __init__(self, start: Callable[[Generator[None, None, None]], object]) -> None:
        self._start = start
        self._left: deque[Container] = deque()

    def add(self, *containers: Container) -> None:
        """Empties them later. No other code may use them after this call."""
        if sum(map(len, containers)) <= FEW:
            return
        is_idle = not self._left
        self._left.extend(containers)
        if is_idle:
            self._start(self._emptied())

    def _emptied(self) -> Generator[None, None, None]:
        left = self._left
        while left:
            room = STEP_ELEMENTS
            while left and room > 0:
                room -= _take_from(left[0], room) + 1  # the container is one more
                if not left[0]:
                    left.popleft()
            yield


def _take_from(container: Container, most: int) -> int:
    """Removes so many elements at most; how many they were."""
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
