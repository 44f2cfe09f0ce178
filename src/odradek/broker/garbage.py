"""Full garbage collections of a broker's process, at moments when no long request is at work.

CPython runs one by itself when enough objects have been made, and looks at every object then. In the middle of a
request of a hundred thousand elements that takes up to a tenth of a second, in which no other client is served. Nearly
all that a broker drops goes by reference counts, so a full collection can wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

INTERVAL_S = 5.0
"""Between two looks whether a collection is due."""
DUE_COLLECTIONS = 10
"""So many collections of the middle generation make a full one due. CPython's own value."""
PATIENCE = 24
"""So many looks may find the broker at work; then it is collected all the same."""
_NEVER = 1 << 30


class Collector:
    """``call_later`` is the event loop's. ``is_busy`` says whether a long request is at work.

    ``on_collected`` is called after each full collection.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        is_busy: Callable[[], bool],
        on_collected: Callable[[], object] = lambda: None,
    ) -> None:
        self._call_later = call_later
        self._is_busy = is_busy
        self._on_collected = on_collected
        self._waited = 0

    def start(self) -> None:
        """Turns the collector on. What is there now stays, so it is never looked at again."""
        gc.freeze()
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, _NEVER)
        gc.enable()
        self._call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        if gc.get_count()[2] >= DUE_COLLECTIONS:
            if self._is_busy() and self._waited < PATIENCE:
                self._waited += 1
            else:
                self._waited = 0
                gc.collect()
                self._on_collected()
        self._call_later(INTERVAL_S, self._look)
