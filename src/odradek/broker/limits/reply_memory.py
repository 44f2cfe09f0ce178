"""The memory for long replies: a limit for each reply, and a limit for all connections together.

A handler counts the bytes of a long reply while it makes them (``Context.grow_reply``). They count until the client has
received them. A reply that exceeds a limit is not sent: its connection is closed, with a line in the log.

Clients that do not read must not block the replies of others. So if memory is short, connections whose client has
received nothing for ``STALL_S`` are closed first. Connections are checked only if memory is short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from odradek.broker.limits.request_memory import STALL_S
from odradek.core.errors import Refusal

log = logging.getLogger("odradek.broker")

MAX_REPLY_BYTES = 100_000_000
"""The limit for one reply. It is librdkafka's default (``receive.message.max.bytes``). Java clients accept 2 GiB."""
MAX_REPLIES_BYTES = 256 << 20
"""The limit for all unfinished and unsent replies together."""


class Hangup(Refusal):
    """Closes the connection of a request without a reply to the request. The message is the reason."""


class Sender(Protocol):
    """The replies of a connection."""

    client_host: str

    @property
    def unsent_bytes(self) -> int:
        """The bytes of finished replies that the client has not received."""

    @property
    def is_making_reply(self) -> bool:
        """Whether a reply is in progress."""

    def abort(self) -> None:
        """Closes the connection at once."""


class _HeldReplies:
    __slots__ = ("moved_s", "reply", "size", "unsent")

    def __init__(self) -> None:
        self.size = 0
        self.reply = 0  # the bytes so far of the reply in progress
        self.unsent = -1  # at the last check
        self.moved_s = 0.0


class ReplyMemory:
    """The bytes of the connections' long replies, at most ``limit``, and of one reply at most ``reply_limit``."""

    def __init__(
        self,
        clock: Callable[[], float],
        limit: int = MAX_REPLIES_BYTES,
        on_freed: Callable[[int], None] = lambda size: None,
        reply_limit: int = MAX_REPLY_BYTES,
    ) -> None:
        """``on_freed`` gets the number of bytes that connections no longer hold."""
        self._on_freed = on_freed
        self._clock = clock
        self._limit = limit
        self._reply_limit = reply_limit
        self._held: dict[Sender, _HeldReplies] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """An upper bound of the held bytes.

        Sent bytes are subtracted only when memory is short or the connection begins its next long reply."""
        return self._used

    def begin(self, sender: Sender) -> None:
        """Begins a connection's long reply. A connection makes one at a time."""
        held = self._held.get(sender)
        if held is None:
            self._held[sender] = _HeldReplies()
        else:
            held.reply = 0
            self._shrink(held, sender.unsent_bytes)

    def grow(self, sender: Sender, size: int) -> None:
        """Counts ``size`` more bytes of the reply in progress. Raises Hangup above a limit."""
        held = self._held.get(sender)
        if held is None:
            return  # the connection has closed
        if held.reply + size > self._reply_limit:
            raise Hangup(f"the reply is longer than {self._reply_limit:,} bytes; ask for less at a time")
        held.reply += size
        self._hold(sender, held, size)

    def add(self, sender: Sender, size: int) -> None:
        """Counts a finished reply. Raises Hangup above the limit for all replies."""
        held = self._held.setdefault(sender, _HeldReplies())
        if self._used + size > self._limit:
            self._shrink(held, sender.unsent_bytes)
        self._hold(sender, held, size)

    def _hold(self, sender: Sender, held: _HeldReplies, size: int) -> None:
        held.size += size
        self._used += size
        if self._used > self._limit:
            self._make_room(sender)
            if self._used > self._limit:
                raise Hangup(f"the replies of all connections are longer than {self._limit:,} bytes; ask again later")

    def release(self, sender: Sender) -> None:
        """Removes a closed connection."""
        held = self._held.pop(sender, None)
        if held is not None:
            self._used -= held.size
            self._on_freed(held.size)

    def _shrink(self, held: _HeldReplies, size: int) -> None:
        if size < held.size:
            self._used -= held.size - size
            self._on_freed(held.size - size)
            held.size = size

    def _make_room(self, asking: Sender) -> None:
        """Subtracts sent bytes and closes connections whose client does not read."""
        now_s = self._clock()
        for sender, held in tuple(self._held.items()):
            if sender is asking or sender.is_making_reply:
                continue
            unsent = sender.unsent_bytes
            self._shrink(held, unsent)
            if not unsent:
                del self._held[sender]
            elif unsent != held.unsent:
                held.unsent, held.moved_s = unsent, now_s
            elif now_s - held.moved_s >= STALL_S:
                log.info(
                    "closing the connection from %s: it has received none of %d bytes for %.0f s, and the memory for "
                    "replies is used up", sender.client_host, unsent, STALL_S,
                )  # fmt: skip
                self.release(sender)
                sender.abort()
