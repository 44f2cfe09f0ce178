"""Full garbage collections of the broker's process, which wait while a long request is in progress.

By itself, CPython starts a full collection after a number of new objects and then visits all objects. During a request
of a hundred thousand elements this takes up to a tenth of a second, in which no other client is served. Reference
counts free nearly all objects of a broker, so a full collection can wait.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Protocol

INTERVAL_S = 5.0
"""Seconds between two checks whether a collection is due."""
DUE_COLLECTIONS = 10
"""A full collection is due after this number of collections of the middle generation. It is CPython's own value."""
PATIENCE = 24
"""A due collection waits for the end of a long request, for at most this number of checks."""
_NEVER = 1 << 30


class GarbageCollector(Protocol):
    """The functions of ``gc`` that the timer calls."""

    def freeze(self) -> None: ...
    def enable(self) -> None: ...
    def get_threshold(self) -> tuple[int, int, int]: ...
    def set_threshold(self, young: int, middle: int, full: int, /) -> None: ...
    def get_count(self) -> tuple[int, int, int]: ...
    def collect(self) -> int: ...


class Collector:
    """The timer of full collections. ``call_later`` is the event loop's. ``is_busy``: a long request is in progress.

    ``on_collected`` is called after each full collection. ``collector`` is Python's own.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], object],
        is_busy: Callable[[], bool],
        on_collected: Callable[[], object] = lambda: None,
        collector: GarbageCollector = gc,
    ) -> None:
        self._call_later = call_later
        self._is_busy = is_busy
        self._on_collected = on_collected
        self._collector = collector
        self._waited = 0

    def start(self) -> None:
        """Turns the collector on. Collections never visit the present objects, since these stay in use."""
        collector = self._collector
        collector.freeze()
        young, middle, _ = collector.get_threshold()
        collector.set_threshold(young, middle, _NEVER)
        collector.enable()
        self._call_later(INTERVAL_S, self._look)

    def _look(self) -> None:
        if self._collector.get_count()[2] >= DUE_COLLECTIONS:
            if self._is_busy() and self._waited < PATIENCE:
                self._waited += 1
            else:
                self._waited = 0
                self._collector.collect()
                self._on_collected()
        self._call_later(INTERVAL_S, self._look)
