"""A connection of a node to another node: requests and their replies, on the node's own event loop.

Requests wait while the connection is being opened, and while it cannot be opened: attempts follow one another with a
pause that grows, as with Kafka's ``reconnect.backoff.ms`` and ``reconnect.backoff.max.ms``. Each request has a time-out
from its start on. A server replies in the order of the requests. So a reply that does not come in time ends the
connection, with all its requests: the replies to the later ones would be late, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, cast

from odradek.broker.remote.dialer import OTHER_PROTOCOL
from odradek.broker.remote.node_request import NodeRequest, R, R_co
from odradek.core.ids import CORRELATION_IDS
from odradek.wire.frames import FrameError, FrameReader

if TYPE_CHECKING:
    from odradek.broker.remote.dialer import NamedDialer

log = logging.getLogger("odradek.broker")

FIRST_PAUSE_S, LAST_PAUSE_S = 0.05, 1.0
LINE_AFTER_S = 0.7
"""A node that cannot be reached for this time is named in the log: until then it may only be starting."""
MOST_REPLY_BYTES = 100 << 20
"""The longest reply, as with Kafka's socket.request.max.bytes."""
_MOST_DOUBLINGS = 10


class _RequestToNode(Generic[R_co]):
    """A request without a reply. ``timer``: that of its time-out. ``repeats``: whether it is sent again if the
    connection ends before its reply."""

    __slots__ = ("_on_reply", "_reply", "number", "repeats", "request", "timer")

    def __init__(
        self, request: NodeRequest[R_co], on_reply: Callable[[R_co | None], None], *, repeats: bool
    ) -> None:  # fmt: skip
        self.request = request
        self.repeats = repeats
        self.number = 0
        self.timer: asyncio.TimerHandle | None = None
        self._on_reply = on_reply
        self._reply: R_co | None = None

    def read(self, frame: bytes) -> None:
        """Reads the reply, for ``answer``. Raises ValueError."""
        self._reply = self.request.read(frame)

    def answer(self) -> None:
        """Ends the request, with None if no reply was read. Its owner's error is logged: it must not end the
        connection."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        try:
            self._on_reply(self._reply)
        except Exception:
            log.exception("the reply of another node to a request for API %d could not be used", self.request.api_key)


class RemoteNode:
    """Another node, which the dialer reaches and names in log lines. ``client_id``: in the requests' headers.

    ``most_bytes``: the longest reply; a longer one ends the connection. ``log_level``: that of the lines about a node
    that cannot be reached, and that can be reached again. ``keeps_requests``: whether requests outlive a failed attempt
    to connect. ``connect_ms``: the time of an attempt to connect.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        dialer: NamedDialer,
        *,
        client_id: str,
        most_bytes: int = MOST_REPLY_BYTES,
        log_level: int = logging.WARNING,
        keeps_requests: bool = True,
        connect_ms: int = 10_000,
    ) -> None:
        self._connect_s = connect_ms / 1000
        self._log_level = log_level
        self._keeps_requests = keeps_requests
        self._loop = loop
        self._dialer = dialer
        self._client_id = client_id
        self._most_bytes = most_bytes
        self._waiting: deque[_RequestToNode[object]] = deque()
        self._in_flight: deque[_RequestToNode[object]] = deque()
        self._connection: _ExchangeWithNode | None = None
        self.connections = 0
        """How many connections it has opened."""
        self._give_up: Callable[[], object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        """That of the pause before the next attempt to connect, or of the present attempt."""
        self._attempt = 0
        self._failures = 0
        self._unreached_since: float | None = None
        self._is_named = False
        """Whether the log says that the node cannot be reached."""
        self._number = 0
        self._is_closed = False

    def send(
        self,
        request: NodeRequest[R],
        timeout_ms: int,
        on_reply: Callable[[R | None], None],
        *,
        repeats: bool = False,
    ) -> None:
        """Sends a request, or keeps it until there is a connection. ``on_reply`` is called once, after this call, with
        what the request reads of the reply. It gets None if no reply has come in time, or none that can be read: then
        the other node may have served the request or not.

        ``repeats``: if the connection ends before the reply, the request is sent again, until its time is over, as
        Kafka's brokers do with requests to their controller."""
        sent = _RequestToNode(request, on_reply, repeats=repeats)
        sent.timer = self._loop.call_later(timeout_ms / 1000, self._on_timeout, sent)
        if self._is_closed:
            self._loop.call_soon(sent.answer)
        elif self._connection is not None and not self._ends_session(self._connection):
            self._write(sent)
        else:
            self._waiting.append(sent)
            self._dial()

    def close(self) -> None:
        """Ends the connection. Requests without a reply get None."""
        self._is_closed = True
        self._end_attempt()
        self.abandon()

    def abandon(self) -> None:
        """Ends all requests, which get None, and the connection. The next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        abandoned = [*self._in_flight, *self._waiting]
        self._in_flight.clear()
        self._waiting.clear()
        for request in abandoned:
            request.answer()

    # --- the connection -----------------------------------------------------------------------------------------

    def _ends_session(self, connection: _ExchangeWithNode) -> bool:
        """Closes a connection without requests in flight whose login has to be repeated: the next one logs in again.

        A server ends a session in which a client has not logged in again (KIP-368)."""
        if not connection.ends_s or self._loop.time() < connection.ends_s or self._in_flight:
            return False
        self._connection = None
        connection.close()
        return True

    def _dial(self) -> None:
        """Begins to connect, unless an attempt or a pause is in progress."""
        if self._timer is not None or self._is_closed:
            return
        self._attempt += 1
        attempt = self._attempt
        if self._unreached_since is None:
            self._unreached_since = self._loop.time()
        self._timer = self._loop.call_later(self._connect_s, self._on_failure, attempt, "no answer")
        self._give_up = self._dialer.dial(
            lambda: _ExchangeWithNode(self, attempt, self._most_bytes), lambda reason: self._on_failure(attempt, reason)
        )

    def _end_attempt(self) -> None:
        """Ends an attempt to connect, or the pause before one."""
        self._attempt += 1
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._give_up is not None:
            give_up, self._give_up = self._give_up, None
            give_up()

    def _on_failure(self, attempt: int, reason: str) -> None:
        if attempt == self._attempt and not self._is_closed:
            self._end_attempt()
            self._pause(reason)

    def _pause(self, reason: str) -> None:
        """Notes that there is no connection, and begins the pause before the next attempt."""
        now_s = self._loop.time()
        if self._unreached_since is None:
            self._unreached_since = now_s
        if not self._is_named and now_s >= self._unreached_since + LINE_AFTER_S:
            self._is_named = True
            log.log(self._log_level, "%s cannot be reached: %s", self._dialer.name, reason)
        pause_s = min(FIRST_PAUSE_S * (1 << min(self._failures, _MOST_DOUBLINGS)), LAST_PAUSE_S)
        self._failures += 1
        self._timer = self._loop.call_later(pause_s, self._end_pause)
        if not self._keeps_requests:
            waiting, self._waiting = self._waiting, deque()
            for request in waiting:
                request.answer()

    def _end_pause(self) -> None:
        self._timer = None
        if self._waiting:
            self._dial()

    def on_connected(self, connection: _ExchangeWithNode, attempt: int) -> bool:
        """Sends the requests that wait. Returns False for a connection that is not wanted any more."""
        if attempt != self._attempt or self._is_closed:
            return False
        self._give_up = None  # it has succeeded
        self._end_attempt()
        self._connection = connection
        self.connections += 1
        waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            self._write(request)
        return True

    def reason(self, error: Exception | None, *, has_answered: bool) -> str:
        """Returns why a connection has ended."""
        if error is None and has_answered:
            return "it has closed the connection"
        return self._dialer.reason(error)

    def _write(self, request: _RequestToNode[object]) -> None:
        assert self._connection is not None
        self._number = (self._number + 1) % CORRELATION_IDS
        request.number = self._number
        self._in_flight.append(request)
        self._connection.write(request.request.frame(request.number, self._client_id))

    def on_lost(self, connection: _ExchangeWithNode, reason: str) -> None:
        """Notes the end of a connection. Requests without a reply end, or are sent again over the next one."""
        if connection is not self._connection:
            return
        self._connection = None
        ended, self._in_flight = self._in_flight, deque()
        self._waiting.extendleft(reversed([one for one in ended if one.repeats]))
        if ended:
            self._pause(reason)
        for request in ended:
            if not request.repeats:
                request.answer()
        if self._waiting:
            self._dial()

    def on_frame(self, frame: bytes) -> None:
        """Takes a reply. Raises ValueError if it is none, or not the next one."""
        if not self._in_flight:
            raise FrameError("a reply without a request")
        if len(frame) < 4:
            raise FrameError("the reply is shorter than a correlation id")
        request, number = self._in_flight[0], int.from_bytes(frame[:4], "big", signed=True)
        if number != request.number:
            raise FrameError(f"the reply to request {number}, and the oldest without a reply is {request.number}")
        request.read(frame)
        self._failures, self._unreached_since = 0, None
        if self._is_named:
            self._is_named = False
            log.log(self._log_level, "%s can be reached again", self._dialer.name)
        self._in_flight.popleft()
        request.answer()

    def _on_timeout(self, request: _RequestToNode[object]) -> None:
        request.timer = None
        if request in self._waiting:
            self._waiting.remove(request)
            request.answer()
            return
        connection = self._connection
        if request not in self._in_flight or connection is None:
            return
        request.repeats = False
        connection.close()
        self.on_lost(connection, "it does not reply in time")


class _ExchangeWithNode(asyncio.Protocol):
    """The asyncio protocol of one connection of a ``RemoteNode``."""

    ends_s = 0.0
    """When another connection has to take its place, by the loop's clock; 0: never."""

    def __init__(self, node: RemoteNode, attempt: int, most_bytes: int) -> None:
        self._node = node
        self._has_answered = False
        self._attempt = attempt
        self._reader = FrameReader(most_bytes)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._node.on_connected(self, self._attempt):
            self.close()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._has_answered = True
                if self._transport is not None:
                    self._node.on_frame(frame)
        except ValueError as error:
            self.close()
            self._node.on_lost(self, str(error) if self._has_answered else f"{error}: {OTHER_PROTOCOL}")

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._node.on_lost(self, self._node.reason(error, has_answered=self._has_answered))

    def limit_session(self, ends_s: float) -> None:
        self.ends_s = ends_s

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Ends the connection at once. ``on_lost`` is not called by this."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
