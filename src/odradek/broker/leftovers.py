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
"""What holds no more is not worth a step."""

Container = list[Any] | dict[Any, Any] | set[Any]


class Leftovers:
    """``start`` runs a generator in shares of the loop."""

    def __init__(self, start: Callable[[Generator[None, None, None]], object]) -> None:
        self._start = start
        self._left: deque[Container] = deque()

    def add(self, *containers: Container) -> None:
        """Empties them later. Nobody may use them any more."""
        is_idle = not self._left
        self._left.extend(container for container in containers if len(container) > FEW)
        if is_idle and self._left:
            self._start(self._emptied())

    def _emptied(self) -> Generator[None, None, None]:
        left = self._left
        while left:
            container = left[0]
            if isinstance(container, list):
                del container[-STEP_ELEMENTS:]
            elif isinstance(container, dict):
                for _ in range(min(STEP_ELEMENTS, len(container))):
                    container.popitem()
            else:
                for _ in range(min(STEP_ELEMENTS, len(container))):
                    container.pop()
            if not container:
                left.popleft()
            yield
