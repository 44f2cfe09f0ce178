"""Memory for long replies: one bound for each, and one for all connections together.

A handler counts what it makes of a long reply while it makes it (``Context.grow_reply``). The bytes are held until
their client has taken them. A reply that exceeds a bound is not sent: its connection is closed, with a line in the log.

What clients do not take must not keep others from their replies. So where memory is short, connections whose client
has taken nothing for ``STALL_S`` are closed first. Nothing is looked at while there is memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from odradek.broker.api import Hangup

log = logging.getLogger("odradek.broker")

MAX_REPLY_BYTES = 100_000_000
"""Of one reply. What librdkafka takes by default (``receive.message.max.bytes``); Java's clients take 2 GiB."""
MAX_REPLIES_BYTES = 256 << 20
"""Of all replies that are being made or sent."""
STALL_S = 10.0


class Sender(Protocol):
    """A connection, as far as its replies are concerned."""

    client_host: str

    @property
    def unsent_bytes(self) -> int:
        """Bytes of finished replies that its client has not taken."""

    @property
    def is_answering(self) -> bool:
        """Whether a reply is being made."""

    def abort(self) -> None:
        """Closes the connection at once."""


class _Held:
    __slots__ = ("moved_s", "reply", "size", "unsent")

    def __init__(self) -> None:
        self.size = 0
        self.reply = 0  # of these, the reply that is being made
        self.unsent = -1  # when it was looked at last
        self.moved_s = 0.0


class ReplyMemory:
    """The bytes of long replies that connections hold, at most ``limit``."""

    def __init__(
        self,
        clock: Callable[[], float],
        limit: int = MAX_REPLIES_BYTES,
        on_freed: Callable[[int], None] = lambda size: None,
    ) -> None:
        """``on_freed`` gets the bytes of replies that are held no longer."""
        self._on_freed = on_freed
        self._clock = clock
        self._limit = limit
        self._held: dict[Sender, _Held] = {}
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes held at most: what was sent meanwhile is found out when memory is short."""
        return self._used

    def begin(self, sender: Sender) -> None:
        """A connection begins to make a long reply. It makes one at a time."""
        held = self._held.get(sender)
        if held is None:
            self._held[sender] = _Held()
        else:
            held.reply = 0
            self._shrink(held, sender.unsent_bytes)

    def grow(self, sender: Sender, size: int) -> None:
        """Counts more bytes of the reply that was begun. Raises Hangup beyond a bound."""
        held = self._held.get(sender)
        if held is None:
            return  # the connection has gone
        if held.reply + size > MAX_REPLY_BYTES:
            raise Hangup(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes; ask for less at a time")
        held.reply += size
        self._add(sender, held, size)

    def hold(self, sender: Sender, size: int) -> None:
        """Counts a reply that was made at once. Raises Hangup beyond the bound for all."""
        held = self._held.setdefault(sender, _Held())
        if self._used + size > self._limit:
            self._shrink(held, sender.unsent_bytes)
        self._add(sender, held, size)

    def _add(self, sender: Sender, held: _Held, size: int) -> None:
        held.size += size
        self._used += size
        if self._used > self._limit:
            self._make_room(sender)
            if self._used > self._limit:
                raise Hangup(f"the replies of all connections are longer than {self._limit:,} bytes; ask again later")

    def release(self, sender: Sender) -> None:
        """The connection has gone."""
        held = self._held.pop(sender, None)
        if held is not None:
            self._used -= held.size
            self._on_freed(held.size)

    def _shrink(self, held: _Held, size: int) -> None:
        if size < held.size:
            self._used -= held.size - size
            self._on_freed(held.size - size)
            held.size = size

    def _make_room(self, asking: Sender) -> None:
        """Forgets what was sent, and closes connections whose client takes nothing."""
        now_s = self._clock()
        for sender, held in tuple(self._held.items()):
            if sender is asking or sender.is_answering:
                continue
            unsent = sender.unsent_bytes
            self._shrink(held, unsent)
            if not unsent:
                del self._held[sender]
            elif unsent != held.unsent:
                held.unsent, held.moved_s = unsent, now_s
            elif now_s - held.moved_s >= STALL_S:
                log.info(
                    "closing the connection of %s: it has taken none of %d bytes for %.0f s, and the memory for "
                    "replies is used up", sender.client_host, unsent, STALL_S,
                )  # fmt: skip
                self.release(sender)
                sender.abort()
