"""The requests of a broker by API: their number, their bytes, and the time until their replies were ready.

Connections count them if the broker has a page of metrics; without it, no module loads this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from odradek.wire.chunks import Chunk

_KEYS = 256
"""The keys of APIs are below this number: the second byte of a request is its API."""


class ApiTimes:
    """What one API has served. ``seconds``: from the begin of each request to its reply, with all waits."""

    __slots__ = ("reply_bytes", "request_bytes", "requests", "seconds")

    def __init__(self) -> None:
        self.requests = 0
        self.seconds = 0.0
        self.request_bytes = 0
        self.reply_bytes = 0

    def counting(
        self, requests: int, size: int, began_s: float, clock: Callable[[], float]
    ) -> Callable[[Sequence[Chunk] | None], None]:
        """Counts requests of together ``size`` bytes, which began at ``began_s``. Returns what counts their replies."""
        self.requests += requests
        self.request_bytes += size

        def note(chunks: Sequence[Chunk] | None) -> None:
            self.seconds += (clock() - began_s) * requests
            self.reply_bytes += sum(map(len, chunks or ()))

        return note


class RequestStatistics:
    """``of_key``: the times of each API, by key."""

    def __init__(self) -> None:
        self.of_key = tuple(ApiTimes() for _ in range(_KEYS))

    @property
    def by_api(self) -> Mapping[int, ApiTimes]:
        """The APIs that have served a request, by key."""
        return {key: times for key, times in enumerate(self.of_key) if times.requests}
