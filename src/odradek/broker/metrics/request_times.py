"""The requests of a broker by API: their number, their bytes, and the time until their replies were ready.

It stands in front of the router and of the fast path of commits, so a broker that measures nothing has no cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from odradek.wire.api_keys import OFFSET_COMMIT

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


_COMMIT = OFFSET_COMMIT.to_bytes(2, "big")
"""Only these requests have a fast path."""
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
    """``dispatch`` and ``fast_path`` take the place of the node's functions of these names.

    Each is one function, as the node's are, and not a method: every request calls both.
    """

    def __init__(self, node: RoutingNode, fast_path: Callable[[bytes], FastPath | None]) -> None:
        self._times = tuple(ApiTimes() for _ in range(_KEYS))
        self.dispatch = _counted_dispatch(node, self._times)
        """Serves a request as the node does, and counts it when it has begun."""
        self.fast_path = _counted_fast_path(fast_path, self._times[OFFSET_COMMIT])

    @property
    def by_api(self) -> Mapping[int, ApiTimes]:
        """The APIs that have served a request, by key."""
        return {key: times for key, times in enumerate(self._times) if times.requests}


def _counted_dispatch(node: RoutingNode, all_times: Sequence[ApiTimes]) -> Callable[[bytes, Client], Reply]:
    # Names of this function: a look-up of a global name costs more.
    clock, length, kind, plain = perf_counter, len, type, list

    def dispatch(frame: bytes, connection: Client) -> Reply:
        started_s = clock()
        reply = node.router.dispatch(frame, connection)
        times = all_times[frame[1]]
        times.requests += 1
        times.request_bytes += length(frame)
        if kind(reply) is plain:
            for chunk in reply:  # type: ignore[union-attr]  # a list
                times.reply_bytes += length(chunk)
            times.seconds += clock() - started_s
        else:
            reply.then(partial(times.note_reply, started_s))  # type: ignore[union-attr]  # a promise
        return reply

    return dispatch


def _counted_fast_path(
    fast_path: Callable[[bytes], FastPath | None], times: ApiTimes
) -> Callable[[bytes], FastPath | None]:
    def counted(frame: bytes) -> FastPath | None:
        if frame[:2] != _COMMIT:  # as the node decides, without a call of it
            return None
        path = fast_path(frame)
        return None if path is None else TimedFastPath(path, times)

    return counted


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
