"""The loads of a shard after writes that the disk had no room for, and the reads until such a load begins.

A load that fails because the log cannot be read is tried again as well."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic

from odradek.coordinator.loader import S
from odradek.core.effects import Request

CATCH_UP: Hashable = object()
RELOAD: Hashable = object()
WRITE_TIMEOUT: Hashable = object()
"""The keys of a driver's own timers among those of its shard: a later ``catch_up``, a delayed load, and the end of the
time that replies wait for the high watermark."""
CATCH_UP_MS = 10_000
RELOAD_MS = 1_000
"""The shortest time between two such loads: a load may write at its end, and clients try their requests again soon."""
RELOAD_AFTER_READ_MS = 10_000
"""The time from a load that could not read the log to the next one."""


class Reloads(Generic[S]):
    """Says when a shard may load again, and keeps the former shard for reads until then.

    Durable state changes only in a replay. So the former shard has the durable state of the log, although its other
    state may be ahead of the log.
    """

    __slots__ = ("_earliest_ms", "_former", "_steady")

    def __init__(self, steady: Callable[[], int]) -> None:
        self._steady = steady
        self._earliest_ms = 0
        self._former: S | None = None

    def begin(self, former: S) -> int | None:
        """Returns when a load may begin. None: at once."""
        now_ms = self._steady()
        begins_ms = max(now_ms, self._earliest_ms)
        self._earliest_ms = begins_ms + RELOAD_MS
        if begins_ms == now_ms:
            return None
        self._former = former
        return begins_ms

    def end(self) -> None:
        """Drops the former shard."""
        self._former = None

    def reader_of(self, request: Request[object]) -> S | None:
        """Returns the former shard if it can handle the request, which changes nothing."""
        former = self._former
        return former if former is not None and isinstance(request, former.reads) else None
