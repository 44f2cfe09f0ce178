"""The requests of a broker by API: their number, their bytes, and the time until their replies were ready.

It stands in front of the router and of the fast path of commits, so a broker that measures nothing has no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections import deque
    from typing import Protocol

    from odradek.broker.front_end.connection import FastPath
    from odradek.broker.front_end.router import Router
    from odradek.broker.handlers.api import Client
    from odradek.core.deferred import Deferred
    from odradek.wire.chunks import Chunk

    Reply = list[Chunk] | Deferred[list[Chunk] | None]

    # For type checks only: at run time a Protocol would occupy kilobytes.

    class RoutingNode(Protocol):
        """The part of a node that serves requests. It has its router after its start has begun."""

        router: Router


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

    def note_reply(self, started_s: float, chunks: list[Chunk] | None) -> None:
        self.seconds += perf_counter() - started_s
        for chunk in chunks or ():
            self.reply_bytes += len(chunk)


class RequestStatistics:
    """``dispatch`` and ``fast_path`` take the place of the node's functions of these names."""

    def __init__(self, node: RoutingNode, fast_path: Callable[[bytes], FastPath | None]) -> None:
        self._node = node
        self._fast_path = fast_path
        self._times = tuple(ApiTimes() for _ in range(_KEYS))

    @property
    def by_api(self) -> Mapping[int, ApiTimes]:
        """The APIs that have served a request, by key."""
        return {key: times for key, times in enumerate(self._times) if times.requests}

    def dispatch(self, frame: bytes, connection: Client) -> Reply:
        """Serves a request as the node does, and counts it when it has begun."""
        started_s = perf_counter()
        reply = self._node.router.dispatch(frame, connection)
        times = self._times[frame[1]]
        times.requests += 1
        times.request_bytes += len(frame)
        if type(reply) is list:
            times.seconds += perf_counter() - started_s
            for chunk in reply:
                times.reply_bytes += len(chunk)
        else:
            reply.then(partial(times.note_reply, started_s))  # type: ignore[union-attr]  # a promise
        return reply

    def fast_path(self, frame: bytes) -> FastPath | None:
        path = self._fast_path(frame)
        return None if path is None else TimedFastPath(path, self._times[frame[1]])


class TimedFastPath:
    """A fast path whose requests are counted. The frames of one call have one length."""

    def __init__(self, path: FastPath, times: ApiTimes) -> None:
        self._path = path
        self._times = times
        self._size = 0

    def take(self, backlog: deque[bytes], room: int, until_s: float, client: Client) -> tuple[Any, list[Any]] | None:
        self._size = len(backlog[0])
        return self._path.take(backlog, room, until_s, client)

    def submit(self, planned: Any, requests: list[Any], send: Callable[[list[bytes]], None]) -> None:
        started_s, count, times = perf_counter(), len(requests), self._times
        times.requests += count
        times.request_bytes += count * self._size

        def note(chunks: list[bytes]) -> None:
            times.seconds += (count - 1) * (perf_counter() - started_s)
            times.note_reply(started_s, list(chunks))
            send(chunks)

        self._path.submit(planned, requests, note)
