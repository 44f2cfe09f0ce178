"""Replies of a shard: a few are sent at once, many in shares of the loop."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator, Hashable
from typing import Any, ClassVar, Protocol

from odradek.core.effects import Request
from odradek.core.errors import ErrorCode

log = logging.getLogger("odradek.broker")

MAX_AT_ONCE = 100
"""The most replies that ``ReplyQueue.send`` sends at once."""
PER_STEP = 10
"""The number of replies in one step if there are more than ``MAX_AT_ONCE``. A step packs and sends each of them."""


class Promise(Protocol):
    """The promise of a reply."""

    def resolve(self, value: Any) -> None: ...


PendingReply = tuple[Request[object], Promise, object]


class _NoRequest:
    """Stands for the request of an announcement. After a failure the announcement is dropped."""

    batched: ClassVar[bool] = True

    def error_reply(self, error: ErrorCode) -> None:
        return None


class _Announcement:
    """Passes a value on when the records of its ``Result`` are below the high watermark. None means a failure."""

    __slots__ = ("_index", "_pass_on")

    def __init__(self, pass_on: Callable[[int, Any], None], index: int) -> None:
        self._pass_on = pass_on
        self._index = index

    def resolve(self, value: object) -> None:
        if value is not None:
            self._pass_on(self._index, value)


def announcement(pass_on: Callable[[int, Any], None], index: int, value: object) -> PendingReply:
    """Returns a pending reply that calls ``pass_on(index, value)`` and sends nothing to a client."""
    return _NO_REQUEST, _Announcement(pass_on, index), value


class _ParkedPromise:
    """Stands for a parked request while its records are not replicated. An error ends the request, None does not."""

    __slots__ = ("_key", "_parked")

    def __init__(self, parked: dict[Hashable, tuple[Request[object], Promise]], key: Hashable) -> None:
        self._parked = parked
        self._key = key

    def resolve(self, value: object) -> None:
        waiting = self._parked.pop(self._key, None) if value is not None else None
        if waiting is not None:
            waiting[1].resolve(value)


def parked_reply(parked: dict[Hashable, tuple[Request[object], Promise]], key: Hashable) -> PendingReply:
    """Returns a pending reply that does nothing, or ends the request that is parked under ``key`` with an error."""
    return parked[key][0], _ParkedPromise(parked, key), None


def is_announcement(reply: PendingReply) -> bool:
    """Returns whether a pending reply is an announcement: no client waits for it."""
    return reply[0] is _NO_REQUEST


_NO_REQUEST = _NoRequest()


class ReplyQueue:
    """Sends the replies of one shard in their order. ``start`` runs a generator in shares of the loop."""

    def __init__(self, start: Callable[[Generator[None, None, None]], object]) -> None:
        self._start = start
        self._waiting: deque[PendingReply] = deque()

    def send(self, replies: list[PendingReply]) -> None:
        if not self._waiting and len(replies) <= MAX_AT_ONCE:
            resolve(replies)
            return
        is_begun = bool(self._waiting)
        self._waiting += replies
        if not is_begun:
            self._start(self._send_in_steps())

    def send_all(self) -> None:
        """Sends all waiting replies at once."""
        waiting = list(self._waiting)
        self._waiting.clear()
        resolve(waiting)

    def drop_announcements(self) -> None:
        """Drops the announcements that wait. The next load announces what still counts, in its own term."""
        kept = [one for one in self._waiting if not is_announcement(one)]
        self._waiting.clear()
        self._waiting += kept

    def _send_in_steps(self) -> Generator[None, None, None]:
        waiting = self._waiting
        while waiting:
            resolve([waiting.popleft() for _ in range(min(PER_STEP, len(waiting)))])
            yield


def resolve(replies: list[PendingReply]) -> None:
    for request, promise, reply in replies:
        try:
            promise.resolve(reply)
        except Exception:  # a failure for one client must not stop the replies to the others
            log.exception("the reply to a %s request could not be sent", type(request).__name__)


def error_replies(replies: list[PendingReply], error: ErrorCode) -> list[PendingReply]:
    """Returns the same entries; each has its request's reply for ``error``."""
    return [(request, promise, request.error_reply(error)) for request, promise, _ in replies]
